"""Datasets and their versions in the database."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session, joinedload

from ratchet.errors import NotFound
from ratchet.store.database import Database
from ratchet.store.models import Dataset, DatasetVersion
from ratchet.store.version_numbers import numbered


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
    """One version of a dataset as the database has it. ``is_new`` tells whether this call made it."""

    name: str
    version: int
    content: DatasetContent
    created_at: datetime
    is_new: bool = False


class DatasetStore:
    """The versions of all datasets. Versions are added and read, never changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, content: DatasetContent) -> StoredDataset:
        """Enter a version under the next number; the same content again is the version that has it already."""

        def work(session: Session) -> StoredDataset:
            dataset = session.scalar(sa.select(Dataset).where(Dataset.name == name))
            if dataset is None:
                dataset = Dataset(name=name, created_at=datetime.now(UTC))
                session.add(dataset)
                session.flush()
            same = session.scalar(_versions(name).where(DatasetVersion.content_hash == content.content_hash))
            if same is not None:
                return _stored(same)
            newest = sa.select(sa.func.max(DatasetVersion.number)).where(DatasetVersion.dataset_id == dataset.id)
            version = DatasetVersion(
                dataset=dataset,
                number=(session.scalar(newest) or 0) + 1,
                content_hash=content.content_hash,
                format=content.format,
                column_map=dict(content.column_map),
                origin=content.origin,
                train_rows=content.rows["train"],
                validation_rows=content.rows["validation"],
                test_rows=content.rows["test"],
                seed=content.seed,
                created_at=datetime.now(UTC),
            )
            session.add(version)
            session.flush()
            return _stored(version, is_new=True)

        return self._database.write(work)

    def all(self) -> list[StoredDataset]:
        """Return every version, by name and number."""
        query = _versions().order_by(Dataset.name, DatasetVersion.number)
        return self._database.read(lambda session: [_stored(version) for version in session.scalars(query)])

    def get(self, name: str, version: int | None = None) -> StoredDataset:
        """Return a version, the newest for None.

        Raises:
            NotFound: there is no such dataset, or no such version of it.
        """
        found = self._database.read(
            lambda session: [_stored(one) for one in session.scalars(_versions(name).order_by(DatasetVersion.number))]
        )
        if not found:
            raise NotFound(f"There is no dataset {name}. See ratchet data list, or add it with ratchet data add.")
        if version is None:
            return found[-1]
        return numbered(found, version, f"Dataset {name}")


def _versions(name: str | None = None) -> sa.Select[DatasetVersion]:
    query = sa.select(DatasetVersion).join(DatasetVersion.dataset).options(joinedload(DatasetVersion.dataset))
    return query if name is None else query.where(Dataset.name == name)


def _stored(version: DatasetVersion, *, is_new: bool = False) -> StoredDataset:
    rows = {"train": version.train_rows, "validation": version.validation_rows, "test": version.test_rows}
    content = DatasetContent(
        version.content_hash, version.format, dict(version.column_map), version.origin, rows, version.seed
    )
    return StoredDataset(version.dataset.name, version.number, content, version.created_at, is_new)
