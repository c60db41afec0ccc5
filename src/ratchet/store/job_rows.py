"""Loops and experiments in the database: what is carried out in steps. The steps are runs that name their owner.

Whoever moves one says from which status, as of runs.
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast, get_args

import sqlalchemy as sa
from sqlalchemy.orm import Session

from ratchet.errors import NotFound
from ratchet.evaluation import ExperimentStatus, LoopStatus
from ratchet.store.database import Database
from ratchet.store.schema import ExperimentRow, LoopRow

_FIELDS = (
    "id",
    "project",
    "name",
    "settings",
    "status",
    "message",
    "report",
    "created_at",
    "ended_at",
    "stop_requested_at",
)


_LETTERS = {"loop": "l", "experiment": "x"}  # that ids begin with; those of evaluations begin with e
_STATUSES: dict[str, tuple[str, ...]] = {"loop": get_args(LoopStatus), "experiment": get_args(ExperimentStatus)}


@dataclass(frozen=True)
class StoredJob:
    """A loop or an experiment. ``settings`` and ``report`` are its own records as JSON, no report before its end."""

    id: str
    project: str
    name: str
    settings: dict[str, Any]
    status: str
    message: str
    report: dict[str, Any] | None
    created_at: datetime
    ended_at: datetime | None
    stop_requested_at: datetime | None


class JobStore:
    """All loops, or all experiments.

    Args:
        database: Where they are.
        table: Which of the two.
    """

    def __init__(self, database: Database, table: type[LoopRow] | type[ExperimentRow]) -> None:
        self._database = database
        self._table = table
        self.kind = table.__tablename__

    def add(self, settings: Mapping[str, Any], *, name: str, project: str, status: str) -> StoredJob:
        """Enter a new one and return it."""
        self._check(status)
        now = datetime.now(UTC)
        job = f"{_LETTERS[self.kind]}{now:%y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        fields: dict[str, Any] = {"id": job, "project": project, "name": name, "settings": dict(settings)}
        row = self._table(**fields, status=status, message="", report=None, created_at=now)
        self._database.write(lambda session: session.add(row))
        return self.get(job)

    def get(self, id: str) -> StoredJob:
        """One by its id.

        Raises:
            NotFound: there is none of this id.
        """
        return self._database.read(lambda session: self._stored(self._get(session, id)))

    def all(self, project: str | None = None, statuses: Collection[str] | None = None) -> list[StoredJob]:
        """Those of a project and in one of these statuses, all for None; oldest first."""
        query = sa.select(self._table).order_by(self._table.created_at, self._table.id)
        if project is not None:
            query = query.where(self._table.project == project)
        if statuses is not None:
            query = query.where(self._table.status.in_(statuses))
        return self._database.read(lambda session: [self._stored(row) for row in session.scalars(query)])

    def move(self, id: str, source: Collection[str], target: str, **changes: Any) -> bool:
        """Move one from a status in ``source`` to ``target``, with other changes; return whether that was done.

        Raises:
            NotFound: there is none of this id.
        """
        self._check(target)

        def work(session: Session) -> bool:
            is_from = sa.and_(self._table.id == id, self._table.status.in_(source))
            update = sa.update(self._table).where(is_from).values(status=target, **changes)
            done = cast(sa.CursorResult[Any], session.execute(update)).rowcount
            if done == 0:
                self._get(session, id)
            return done == 1

        return self._database.write(work)

    def change(self, id: str, **changes: Any) -> None:
        """Change everything but the status.

        Raises:
            NotFound: there is none of this id.
        """

        def work(session: Session) -> None:
            self._get(session, id)
            session.execute(sa.update(self._table).where(self._table.id == id).values(**changes))

        self._database.write(work)

    def _check(self, status: str) -> None:
        if status not in _STATUSES[self.kind]:
            raise ValueError(f"the status of a {self.kind} cannot be {status!r}")

    def _get(self, session: Session, id: str) -> Any:
        found = session.get(self._table, id)
        if found is None:
            raise NotFound(f"There is no {self.kind} {id}.")
        return found

    def _stored(self, row: Any) -> StoredJob:
        return StoredJob(**{name: getattr(row, name) for name in _FIELDS})
