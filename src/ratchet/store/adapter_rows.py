"""Adapters in the database: what weights there are, of which base model, and where. The weights are files."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from ratchet.store.database import Database
from ratchet.store.schema import AdapterRow


@dataclass(frozen=True)
class StoredAdapter:
    """The adapter that a run kept.

    ``revision`` is the commit of the base model, or the content hash of a local one. ``sha256`` is of the weights file.
    ``url`` is where the run's files are in the storage of artifacts, empty where they are in their folder alone.
    """

    run: str
    base_model: str
    revision: str
    sha256: str
    folder: Path | None
    url: str
    created_at: datetime


class NewAdapter(NamedTuple):
    """An adapter that a run has ended with; fields as of ``StoredAdapter``."""

    base_model: str
    revision: str
    sha256: str
    folder: Path | None
    url: str = ""


def enter(session: Session, run: str, new: NewAdapter) -> AdapterRow:
    """Enter the adapter that a run ended with, in place of the one that it ended with before it was resumed."""
    adapter = session.scalar(sa.select(AdapterRow).where(AdapterRow.run_id == run))
    if adapter is None:
        adapter = AdapterRow(run_id=run)
        session.add(adapter)
    if adapter.sha256 != new.sha256:
        adapter.created_at = datetime.now(UTC)
    adapter.base_model, adapter.revision, adapter.sha256 = new.base_model, new.revision, new.sha256
    adapter.folder, adapter.url = None if new.folder is None else str(new.folder), new.url
    session.flush()
    return adapter


class AdapterStore:
    """The adapters of all runs, one a run."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[StoredAdapter]:
        """Every adapter, oldest first."""
        query = sa.select(AdapterRow).order_by(AdapterRow.created_at, AdapterRow.run_id)
        return self._database.read(lambda session: [_stored(one) for one in session.scalars(query)])


def _stored(row: AdapterRow) -> StoredAdapter:
    folder = None if row.folder is None else Path(row.folder)
    return StoredAdapter(str(row.run_id), row.base_model, row.revision, row.sha256, folder, row.url, row.created_at)
