"""Metrics and their versions in the database. What is in a source, and whether it runs, is not known here."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session, joinedload

from ratchet.errors import Conflict, NotFound
from ratchet.store.database import Database
from ratchet.store.models import Metric, MetricVersion
from ratchet.store.version_numbers import numbered


@dataclass(frozen=True)
class StoredMetric:
    """One version of a metric as the database has it. ``is_new`` tells whether this call made it."""

    name: str
    version: int
    source: str
    source_hash: str
    created_at: datetime
    archived_at: datetime | None
    is_new: bool = False

    @property
    def is_active(self) -> bool:
        """Whether new runs may use it."""
        return self.archived_at is None


class MetricStore:
    """The versions of all metrics. A version's source never changes; it can be archived, once."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, source: str) -> StoredMetric:
        """Enter a source under the next number; the same source again is the version that has it already."""
        digest = hashlib.sha256(source.encode()).hexdigest()

        def work(session: Session) -> StoredMetric:
            metric = session.scalar(sa.select(Metric).where(Metric.name == name))
            if metric is None:
                metric = Metric(name=name, created_at=datetime.now(UTC))
                session.add(metric)
                session.flush()
            same = session.scalar(_versions(name).where(MetricVersion.source_hash == digest))
            if same is not None:
                return _stored(same)
            newest = sa.select(sa.func.max(MetricVersion.number)).where(MetricVersion.metric_id == metric.id)
            version = MetricVersion(
                metric=metric,
                number=(session.scalar(newest) or 0) + 1,
                source=source,
                source_hash=digest,
                created_at=datetime.now(UTC),
            )
            session.add(version)
            session.flush()
            return _stored(version, is_new=True)

        return self._database.write(work)

    def all(self) -> list[StoredMetric]:
        """Return every version, by name and number."""
        query = _versions().order_by(Metric.name, MetricVersion.number)
        return self._database.read(lambda session: [_stored(version) for version in session.scalars(query)])

    def get(self, name: str, version: int | None = None) -> StoredMetric:
        """Return a version; for None the newest active one, or the newest where all are archived.

        Raises:
            NotFound: there is no such metric, or no such version of it.
        """
        found = self._database.read(
            lambda session: [_stored(one) for one in session.scalars(_versions(name).order_by(MetricVersion.number))]
        )
        if not found:
            raise NotFound(f"There is no metric {name}. See ratchet metric list, or add it with ratchet metric add.")
        if version is None:
            return next((one for one in reversed(found) if one.is_active), found[-1])
        return numbered(found, version, f"Metric {name}")

    def archive(self, name: str, version: int | None = None) -> StoredMetric:
        """Archive a version, for None the newest active one: no new run takes it, and old runs keep it.

        Raises:
            NotFound: there is no such metric or version.
            Conflict: it is archived already, perhaps by someone else just now.
        """
        chosen = self.get(name, version)

        def work(session: Session) -> bool:
            owner = sa.select(Metric.id).where(Metric.name == name).scalar_subquery()
            update = (
                sa.update(MetricVersion)
                .where(MetricVersion.metric_id == owner, MetricVersion.number == chosen.version)
                .where(MetricVersion.archived_at.is_(None))
                .values(archived_at=datetime.now(UTC))
            )
            done = session.connection().execute(update)
            return done.rowcount == 1

        if not self._database.write(work):
            raise Conflict(f"Version {chosen.version} of metric {name} is archived already.")
        return self.get(name, chosen.version)


def _versions(name: str | None = None) -> sa.Select[MetricVersion]:
    query = sa.select(MetricVersion).join(MetricVersion.metric).options(joinedload(MetricVersion.metric))
    return query if name is None else query.where(Metric.name == name)


def _stored(version: MetricVersion, *, is_new: bool = False) -> StoredMetric:
    return StoredMetric(
        version.metric.name,
        version.number,
        version.source,
        version.source_hash,
        version.created_at,
        version.archived_at,
        is_new,
    )
