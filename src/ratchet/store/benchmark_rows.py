"""Benchmarks in the database: which there are by name, and of which dataset or metric version. Questions are files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from ratchet.errors import Conflict, NotFound
from ratchet.store.database import Database
from ratchet.store.models import Benchmark, Dataset, DatasetVersion, Metric, MetricVersion


class Version(NamedTuple):
    """One version of a dataset or of a metric."""

    name: str
    number: int


@dataclass(frozen=True)
class BenchmarkEntry:
    """One benchmark as the database has it. ``dataset`` and ``metric`` are what it was made of, None without one."""

    name: str
    source: str
    content_hash: str
    harness: Mapping[str, Any]
    verifier: Mapping[str, Any]
    score_columns: Sequence[str]
    created_at: datetime
    dataset: Version | None = None
    metric: Version | None = None


class BenchmarkStore:
    """All benchmarks. They are added, read and removed, never changed; a content has one name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, entry: BenchmarkEntry) -> tuple[BenchmarkEntry, bool]:
        """Enter a benchmark; return it, and whether it is new: the same name and content again is the one there is.

        Raises:
            Conflict: the name belongs to other content, or the content has another name.
            NotFound: its dataset or metric version is not here.
        """

        def work(session: Session) -> tuple[BenchmarkEntry, bool]:
            if (same := _same(session, entry.name, entry.content_hash)) is not None:
                return same, False
            row = Benchmark(
                name=entry.name,
                source=entry.source,
                dataset_version_id=_dataset_id(session, entry.dataset),
                metric_version_id=_metric_id(session, entry.metric),
                content_hash=entry.content_hash,
                harness=dict(entry.harness),
                verifier=dict(entry.verifier),
                score_columns=list(entry.score_columns),
                created_at=entry.created_at.astimezone(UTC),
            )
            session.add(row)
            session.flush()
            return entry, True

        return self._database.write(work)

    def same(self, name: str, content_hash: str) -> BenchmarkEntry | None:
        """Return the benchmark of that name and content, None where neither is taken.

        Raises:
            Conflict: as of ``add``.
        """
        return self._database.read(lambda session: _same(session, name, content_hash))

    def get(self, name: str) -> BenchmarkEntry:
        """Return a benchmark.

        Raises:
            NotFound: there is none of that name.
        """
        found = self._database.read(lambda session: _entries(session, Benchmark.name == name))
        if not found:
            raise NotFound(f"There is no benchmark {name}. See ratchet bench list, or add it with ratchet bench add.")
        return found[0]

    def all(self) -> list[BenchmarkEntry]:
        """Return every benchmark, by name."""
        return self._database.read(_entries)

    def remove(self, name: str) -> BenchmarkEntry:
        """Remove a benchmark and return what it was. Its questions are not touched.

        Raises:
            NotFound: there is none of that name.
        """
        entry = self.get(name)
        self._database.write(lambda session: session.execute(sa.delete(Benchmark).where(Benchmark.name == name)))
        return entry


def _same(session: Session, name: str, content_hash: str) -> BenchmarkEntry | None:
    taken = _entries(session, sa.or_(Benchmark.name == name, Benchmark.content_hash == content_hash))
    for entry in taken:
        if entry.name == name and entry.content_hash != content_hash:
            raise Conflict(
                f"The benchmark {name} has other content, and what is measured on one is not compared with another. "
                f"Choose another name, or remove it first with ratchet bench remove {name}."
            )
    for entry in taken:
        if entry.name != name:
            raise Conflict(
                f"The benchmark {entry.name} has the same questions, harness and verifier already. Use that one."
            )
    return taken[0] if taken else None


def _entries(session: Session, condition: sa.ColumnElement[bool] | None = None) -> list[BenchmarkEntry]:
    query = (
        sa.select(Benchmark, Dataset.name, DatasetVersion.number, Metric.name, MetricVersion.number)
        .outerjoin(DatasetVersion, DatasetVersion.id == Benchmark.dataset_version_id)
        .outerjoin(Dataset, Dataset.id == DatasetVersion.dataset_id)
        .outerjoin(MetricVersion, MetricVersion.id == Benchmark.metric_version_id)
        .outerjoin(Metric, Metric.id == MetricVersion.metric_id)
        .order_by(Benchmark.name)
    )
    if condition is not None:
        query = query.where(condition)
    return [
        BenchmarkEntry(
            name=row.name,
            source=row.source,
            content_hash=row.content_hash,
            harness=dict(row.harness),
            verifier=dict(row.verifier),
            score_columns=tuple(row.score_columns),
            created_at=row.created_at,
            dataset=None if dataset is None else Version(dataset, of_dataset),
            metric=None if metric is None else Version(metric, of_metric),
        )
        for row, dataset, of_dataset, metric, of_metric in session.execute(query)
    ]


def _dataset_id(session: Session, version: Version | None) -> int | None:
    if version is None:
        return None
    query = sa.select(DatasetVersion.id).join(Dataset, Dataset.id == DatasetVersion.dataset_id)
    found = session.scalar(query.where(Dataset.name == version.name, DatasetVersion.number == version.number))
    if found is None:
        raise NotFound(f"There is no dataset {version.name}@{version.number}. See ratchet data list.")
    return found


def _metric_id(session: Session, version: Version | None) -> int | None:
    if version is None:
        return None
    query = sa.select(MetricVersion.id).join(Metric, Metric.id == MetricVersion.metric_id)
    found = session.scalar(query.where(Metric.name == version.name, MetricVersion.number == version.number))
    if found is None:
        raise NotFound(f"There is no metric {version.name}@{version.number}. See ratchet metric list.")
    return found
