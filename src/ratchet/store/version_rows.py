"""Versions of datasets, metrics and benchmarks in the database: one store of contents by name, with three users.

A version's content never changes, and the same content again is the version that has it already. Numbers of a name
count from 1 on, none left out. Rows and questions are files.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from ratchet.errors import Conflict, NotFound
from ratchet.store.database import Database
from ratchet.store.schema import VersionRow


class _Version(Protocol):
    @property
    def version(self) -> int: ...
    @property
    def is_active(self) -> bool: ...


Stored = TypeVar("Stored", bound=_Version)


class _VersionStore(Generic[Stored]):
    """The versions of one kind. ``_command`` is the group of commands that users know it by."""

    _kind: ClassVar[str]
    _command: ClassVar[str]

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[Stored]:
        """Every version, by name and number."""
        return self._database.read(self._find)

    def get(self, name: str, version: int | None = None) -> Stored:
        """A version; for None the newest active one, or the newest where all are archived.

        Raises:
            NotFound: there is none of this name, or no such version of it.
        """
        found = self._database.read(lambda session: self._find(session, VersionRow.name == name))
        if not found:
            raise NotFound(
                f"There is no {self._kind} {name}. See ratchet {self._command} list, or add it with ratchet "
                f"{self._command} add."
            )
        if version is None:
            return next((one for one in reversed(found) if one.is_active), found[-1])
        for one in found:
            if one.version == version:
                return one
        raise NotFound(f"{self._kind.capitalize()} {name} has no version {version}: it has 1 to {found[-1].version}.")

    def _find(self, session: Session, *conditions: sa.ColumnElement[bool]) -> list[Stored]:
        query = sa.select(VersionRow).where(VersionRow.kind == self._kind, *conditions)
        return [self._stored(row) for row in session.scalars(query.order_by(VersionRow.name, VersionRow.number))]

    def _enter(self, name: str, content_hash: str, content: Mapping[str, Any]) -> Stored:
        """Enter a content under the next number of a name, or find the version that has it already."""

        def work(session: Session) -> Stored:
            is_named = sa.and_(VersionRow.kind == self._kind, VersionRow.name == name)
            same = session.scalar(sa.select(VersionRow).where(is_named, VersionRow.content_hash == content_hash))
            if same is not None:
                return self._stored(same)
            newest = session.scalar(sa.select(sa.func.max(VersionRow.number)).where(is_named))
            row = VersionRow(
                kind=self._kind,
                name=name,
                number=(newest or 0) + 1,
                content_hash=content_hash,
                content=dict(content),
                created_at=datetime.now(UTC),
                archived_at=None,
            )
            session.add(row)
            session.flush()
            return self._stored(row, is_new=True)

        return self._database.write(work)

    def _stored(self, row: VersionRow, *, is_new: bool = False) -> Stored:
        raise NotImplementedError


@dataclass(frozen=True)
class DatasetContent:
    """What a version is made of. ``rows`` counts train, validation and test; ``seed`` is None for given splits."""

    content_hash: str
    format: str
    column_map: Mapping[str, str]
    origin: str
    rows: Mapping[str, int]
    seed: int | None


@dataclass(frozen=True)
class StoredDataset:
    """One version of a dataset. ``is_new``: whether this call added it."""

    name: str
    version: int
    content: DatasetContent
    created_at: datetime
    is_new: bool = False
    is_active: ClassVar[bool] = True


class DatasetStore(_VersionStore[StoredDataset]):
    """The versions of all datasets."""

    _kind, _command = "dataset", "data"

    def add(self, name: str, content: DatasetContent) -> StoredDataset:
        """Enter a version under the next number; the same content again is the version that has it already."""
        fields = asdict(content)
        return self._enter(name, fields.pop("content_hash"), fields)

    def _stored(self, row: VersionRow, *, is_new: bool = False) -> StoredDataset:
        return StoredDataset(
            row.name, row.number, DatasetContent(row.content_hash, **row.content), row.created_at, is_new
        )


@dataclass(frozen=True)
class StoredMetric:
    """One version of a metric. ``is_new``: whether this call added it."""

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


class MetricStore(_VersionStore[StoredMetric]):
    """The versions of all metrics. What is in a source, and whether it runs, is not known here."""

    _kind, _command = "metric", "metric"

    def add(self, name: str, source: str) -> StoredMetric:
        """Enter a source under the next number; the same source again is the version that has it already."""
        return self._enter(name, hashlib.sha256(source.encode()).hexdigest(), {"source": source})

    def archive(self, name: str, version: int | None = None) -> StoredMetric:
        """Archive a version, for None the newest active one: no new run takes it, and old runs keep it.

        Raises:
            NotFound: there is no such metric or version.
            Conflict: it is archived already, perhaps by someone else just now.
        """
        chosen = self.get(name, version)
        update = (
            sa.update(VersionRow)
            .where(VersionRow.kind == self._kind, VersionRow.name == name, VersionRow.number == chosen.version)
            .where(VersionRow.archived_at.is_(None))
            .values(archived_at=datetime.now(UTC))
        )
        if not self._database.write(lambda session: session.connection().execute(update).rowcount):
            raise Conflict(f"Version {chosen.version} of metric {name} is archived already.")
        return self.get(name, chosen.version)

    def _stored(self, row: VersionRow, *, is_new: bool = False) -> StoredMetric:
        source = row.content["source"]
        return StoredMetric(row.name, row.number, source, row.content_hash, row.created_at, row.archived_at, is_new)


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
    version: ClassVar[int] = 1
    is_active: ClassVar[bool] = True


_OWN_COLUMNS = ("name", "content_hash", "created_at")  # of an entry; the others are its content


class BenchmarkStore(_VersionStore[BenchmarkEntry]):
    """All benchmarks. They are added, read and removed, never changed: a name has one content, a content one name."""

    _kind, _command = "benchmark", "bench"

    def add(self, entry: BenchmarkEntry) -> tuple[BenchmarkEntry, bool]:
        """Enter a benchmark; the same name and content again is the one there is.

        Returns:
            The entry, and whether it is new.

        Raises:
            Conflict: the name belongs to other content, or the content has another name.
            NotFound: its dataset or metric version is not here.
        """
        fields = asdict(entry)
        name, content_hash, created_at = (fields.pop(column) for column in _OWN_COLUMNS)

        def work(session: Session) -> tuple[BenchmarkEntry, bool]:
            if (same := self._same(session, name, content_hash)) is not None:
                return same, False
            for store, version in ((DatasetStore, entry.dataset), (MetricStore, entry.metric)):
                _require(session, store._kind, store._command, version)
            row = VersionRow(kind=self._kind, name=name, number=1, content_hash=content_hash, content=fields)
            row.created_at = created_at
            session.add(row)
            return entry, True

        return self._database.write(work)

    def same(self, name: str, content_hash: str) -> BenchmarkEntry | None:
        """The benchmark of that name and content, None where neither is taken.

        Raises:
            Conflict: as of ``add``.
        """
        return self._database.read(lambda session: self._same(session, name, content_hash))

    def remove(self, name: str) -> BenchmarkEntry:
        """Remove a benchmark and return what it was. Its questions are not touched.

        Raises:
            NotFound: there is none of that name.
        """
        entry = self.get(name)
        is_it = sa.and_(VersionRow.kind == self._kind, VersionRow.name == name)
        self._database.write(lambda session: session.execute(sa.delete(VersionRow).where(is_it)))
        return entry

    def _same(self, session: Session, name: str, content_hash: str) -> BenchmarkEntry | None:
        taken = self._find(session, sa.or_(VersionRow.name == name, VersionRow.content_hash == content_hash))
        for entry in taken:
            if entry.name == name and entry.content_hash != content_hash:
                raise Conflict(
                    f"The benchmark {name} has other content, and scores on different contents cannot be compared. "
                    f"Choose another name, or remove it first: ratchet bench remove {name}."
                )
        for entry in taken:
            if entry.name != name:
                raise Conflict(
                    f"The benchmark {entry.name} has the same questions, harness and verifier already. Use that one."
                )
        return taken[0] if taken else None

    def _stored(self, row: VersionRow, *, is_new: bool = False) -> BenchmarkEntry:
        fields = dict(row.content)
        for made_of in ("dataset", "metric"):
            fields[made_of] = None if fields[made_of] is None else Version(*fields[made_of])
        fields["score_columns"] = tuple(fields["score_columns"])
        return BenchmarkEntry(row.name, content_hash=row.content_hash, created_at=row.created_at, **fields)


def _require(session: Session, kind: str, command: str, version: Version | None) -> None:
    """Refuse a version that is not in the database."""
    if version is None:
        return
    is_it = (VersionRow.kind == kind, VersionRow.name == version.name, VersionRow.number == version.number)
    if session.scalar(sa.select(VersionRow.id).where(*is_it)) is None:
        raise NotFound(f"There is no {kind} {version.name}@{version.number}. See ratchet {command} list.")
