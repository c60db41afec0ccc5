"""Runs and their rounds in the database. What a run's journal says gets here through ``ingest``; files are not here.

Whoever moves a run says from which status: of two that move it at once, one succeeds. A run whose
row cannot be read (settings of another version of Ratchet) is named in the log and left out of lists.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast, get_args

import sqlalchemy as sa
from sqlalchemy.orm import Session

from ratchet.config import RunConfig
from ratchet.errors import Conflict, NotFound
from ratchet.run.endings import Ending, RunStatus
from ratchet.run.records import RoundRecord, RunKind, RunRelation
from ratchet.run.run_folder import new_run_id
from ratchet.store.adapter_rows import AdapterStore, NewAdapter, enter
from ratchet.store.database import Database
from ratchet.store.evaluation_rows import EvaluationStore, enter_scores, evaluation_row
from ratchet.store.job_rows import JobStore
from ratchet.store.schema import ExperimentRow, LoopRow, RoundRow, RunRow

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredRun:
    """One run as the database has it.

    ``folder`` is None for a draft. ``rounds`` is the number planned, None until the worker has said it;
    ``rounds_done`` is None before round 0 is scored. Accuracies are shares of 0..1 on the validation sample.
    ``seconds`` are active ones. ``confirmation`` says who has read the verifier's report. ``is_kept``: whether the
    scheduler runs it; otherwise a command runs it inline. ``process_started`` tells the worker from another process
    that got its ``pid`` later. ``journal_offset`` is the byte of the journal up to which it was ingested. ``owner``
    names the step of a loop or experiment that it is, None for one of its own: no step exists twice.
    """

    id: str
    project: str
    kind: RunKind
    status: RunStatus
    config: RunConfig
    folder: Path | None
    created_at: datetime
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    ending: Ending | None = None
    message: str = ""
    rounds: int | None = None
    rounds_done: int | None = None
    best_round: int | None = None
    start_accuracy: float | None = None
    best_accuracy: float | None = None
    start_loss: float | None = None
    best_loss: float | None = None
    seconds: float = 0.0
    adapter_sha256: str | None = None
    source_run: str | None = None
    source_relation: RunRelation | None = None
    confirmation: dict[str, Any] | None = None
    is_kept: bool = True
    host: str = ""
    slot: str = ""
    pid: int | None = None
    process_started: float | None = None
    attempts: int = 0
    journal_offset: int = 0
    stop_requested_at: datetime | None = None
    artifacts_url: str = ""
    owner: str | None = None


_FIELDS = frozenset(field.name for field in fields(StoredRun))
# The columns whose words come from a fixed list. It is checked here and not in the database, so that a new word needs
# no migration.
_WORDS: dict[str, tuple[str, ...]] = {
    "kind": get_args(RunKind),
    "status": get_args(RunStatus),
    "ending": get_args(Ending),
    "source_relation": get_args(RunRelation),
}
_CHANGEABLE = _FIELDS - {"id", "status"}


class RunStore:
    """All runs, drafts too, and the adapters that they end with. Times have a zone; they come back in UTC."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.adapters = AdapterStore(database)
        self.evaluations = EvaluationStore(database)
        self.loops = JobStore(database, LoopRow)
        self.experiments = JobStore(database, ExperimentRow)

    def add(
        self,
        config: RunConfig,
        *,
        id: str | None = None,
        status: RunStatus = "draft",
        draft: str | None = None,
        evaluation: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> StoredRun:
        """Enter a run and return it.

        Args:
            config: Its settings. They name the project, unless ``given`` does.
            id: A new one by default.
            status: "draft" by default; every other one needs ``folder``.
            draft: The draft that it comes from, which goes.
            evaluation: What it evaluates, for one of the kind evaluation.
            given: Further fields of ``StoredRun``.

        Raises:
            Conflict: there is a run of this id, or one in this folder; or the draft is gone.
            NotFound: there is no run ``source_run``.
        """
        _check_names(given, _CHANGEABLE - {"config"})
        now = datetime.now(UTC)
        defaults = {"kind": "full", "folder": None, "created_at": now, "project": config.project}
        run = StoredRun(id=id or new_run_id(now), status=status, config=config, **{**defaults, **given})

        def work(session: Session) -> None:
            if session.get(RunRow, run.id) is not None:
                raise Conflict(f"Run {run.id} is in the database already.")
            if run.owner is not None and session.scalar(sa.select(RunRow.id).where(RunRow.owner == run.owner)):
                raise Conflict(f"The step {run.owner} has been started already.")
            if run.folder is not None and session.scalar(_in_folder(run.folder)) is not None:
                raise Conflict(f"The database has another run in {run.folder}.")
            if run.source_run is not None:
                _get(session, run.source_run)
            if draft is not None and not _removed(session, draft):
                raise Conflict(f"Draft {draft} was launched or dropped meanwhile.")
            session.add(RunRow(**_columns(_values(run))))
            if evaluation is not None:
                session.flush()
                session.add(evaluation_row(run.id, evaluation))

        self._database.write(work)
        return self.get(run.id)

    def get(self, id: str) -> StoredRun:
        """A run.

        Raises:
            NotFound: there is none of this id.
            Conflict: its row is of another version of Ratchet.
        """
        return self._database.read(lambda session: _stored(_get(session, id)))

    def of_folder(self, path: Path) -> StoredRun | None:
        """The run whose folder this is, None where there is none."""

        def work(session: Session) -> StoredRun | None:
            found = session.scalar(_in_folder(path))
            return None if found is None else _stored(found)

        return self._database.read(work)

    def all(self, project: str | None = None, statuses: Collection[RunStatus] | None = None) -> list[StoredRun]:
        """The runs of a project and in one of these statuses, all for None; oldest first."""
        query = sa.select(RunRow).order_by(RunRow.created_at, RunRow.id)
        if project is not None:
            query = query.where(RunRow.project == project)
        if statuses is not None:
            query = query.where(RunRow.status.in_(statuses))
        return self._read_all(query)

    def folders(self) -> set[Path]:
        """The folders of all runs, also of those whose settings cannot be read."""
        query = sa.select(RunRow.folder).where(RunRow.folder.is_not(None))
        return self._database.read(lambda session: {Path(str(folder)) for folder in session.scalars(query)})

    def owned_by(self, owner: str) -> list[StoredRun]:
        """The runs that a loop or experiment has started, oldest first; ``owner`` is how its steps begin."""
        query = sa.select(RunRow).where(RunRow.owner.startswith(f"{owner}/", autoescape=True))
        return self._read_all(query.order_by(RunRow.created_at, RunRow.id))

    def move(self, id: str, source: Collection[RunStatus], target: RunStatus, **changes: Any) -> bool:
        """Move a run from a status in ``source`` to ``target``, with other changes; return whether that was done.

        False: it was in another status, and nothing was changed.

        Raises:
            NotFound: there is no such run.
        """
        _check_names(changes, _CHANGEABLE)

        def work(session: Session) -> bool:
            is_from = sa.and_(RunRow.id == id, RunRow.status.in_(source))
            return _updated(session, id, is_from, {"status": target, **changes})

        return self._database.write(work)

    def change(self, id: str, **changes: Any) -> None:
        """Change everything but the status of a run.

        Raises:
            NotFound: there is no such run.
        """
        _check_names(changes, _CHANGEABLE)
        self._database.write(lambda session: _updated(session, id, RunRow.id == id, changes))

    def remove_draft(self, id: str) -> bool:
        """Remove a draft; return whether it was one, and still there."""
        return self._database.write(lambda session: _removed(session, id))

    def claim(self, host: str, slot: str, fits: Callable[[StoredRun], bool]) -> StoredRun | None:
        """Take the oldest queued run that ``fits``, move it to starting in this slot, and return it.

        Of several that claim at once each gets another run. None: nothing that fits is waiting.
        """
        query = sa.select(RunRow).where(RunRow.status == "queued", RunRow.is_kept).order_by(RunRow.queued_at, RunRow.id)
        for run in self._read_all(query):
            taken = {"host": host, "slot": slot, "pid": None, "process_started": None}
            if fits(run) and self.move(run.id, ["queued"], "starting", **taken):
                return self.get(run.id)
        return None

    def ingest(
        self,
        id: str,
        offset_before: int,
        offset_after: int,
        records: Sequence[RoundRecord],
        target: RunStatus | None = None,
        adapter: NewAdapter | None = None,
        scores: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> bool:
        """Enter a piece of the journal, all of it or nothing; return whether that was done.

        A round that is there already is replaced: a resumed run writes its last record again.

        Args:
            id: The run.
            offset_before: Where in the journal the piece begins.
            offset_after: Where it ends.
            records: The rounds in it.
            target: The status that the run has after it; None: as it was.
            adapter: What the run has ended with in it.
            scores: What an evaluation has found in it.
            changes: Other fields that changed.

        Returns:
            False: somebody else has ingested this piece, or part of it, and nothing was changed.

        Raises:
            NotFound: there is no such run.
        """
        _check_names(changes, _CHANGEABLE - {"journal_offset"})

        def work(session: Session) -> bool:
            moved = {} if target is None else {"status": target}
            is_first = sa.and_(RunRow.id == id, RunRow.journal_offset == offset_before)
            if not _updated(session, id, is_first, {**changes, **moved, "journal_offset": offset_after}):
                return False
            for record in records:
                session.merge(RoundRow(run_id=id, number=record.round, record=record.model_dump(mode="json")))
            if adapter is not None:
                enter(session, id, adapter)
            if scores is not None:
                enter_scores(session, id, scores)
            return True

        return self._database.write(work)

    def records(self, id: str) -> list[RoundRecord]:
        """Records of a run's rounds, from round 0 on.

        Raises:
            NotFound: there is no such run.
        """

        def work(session: Session) -> list[dict[str, Any]]:
            _get(session, id)
            query = sa.select(RoundRow.record).where(RoundRow.run_id == id).order_by(RoundRow.number)
            return list(session.scalars(query))

        return [RoundRecord.model_validate(record) for record in self._database.read(work)]

    def _read_all(self, query: sa.Select[RunRow]) -> list[StoredRun]:
        return self._database.read(lambda session: _readable(session.scalars(query).all()))


def _check_names(given: Mapping[str, Any], known: Collection[str]) -> None:
    if unknown := given.keys() - set(known):
        raise TypeError(f"not to be set here, or no field of a run: {', '.join(sorted(unknown))}")


def _updated(session: Session, id: str, where: sa.ColumnElement[bool], changes: Mapping[str, Any]) -> bool:
    """Update a run where it is as ``where`` says, in one statement; return whether it was.

    Raises:
        NotFound: there is no such run.
    """
    done = cast(sa.CursorResult[Any], session.execute(sa.update(RunRow).where(where).values(**_columns(changes))))
    if done.rowcount == 0:
        _get(session, id)
    return done.rowcount == 1


def _get(session: Session, id: str) -> RunRow:
    found = session.get(RunRow, id)
    if found is None:
        raise NotFound(f"There is no run {id} in the database.")
    return found


def _in_folder(path: Path) -> sa.Select[RunRow]:
    return sa.select(RunRow).where(RunRow.folder == str(path))


def _values(run: StoredRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in _FIELDS}


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a run as their columns hold them.

    Raises:
        ValueError: one holds a word that is not of its list.
    """
    columns = dict(values)
    for name in _WORDS.keys() & columns.keys():
        if columns[name] is not None and columns[name] not in _WORDS[name]:
            raise ValueError(f"a run's {name} cannot be {columns[name]!r}")
    if "config" in columns:
        columns["config"] = columns["config"].model_dump(mode="json")
    if columns.get("folder") is not None:
        columns["folder"] = str(columns["folder"])
    return columns


def _stored(row: RunRow) -> StoredRun:
    values = {name: getattr(row, name) for name in _FIELDS}
    try:
        # Through text: the settings are strict, and take a list for a tuple only where they know that it was JSON.
        values["config"] = RunConfig.model_validate_json(json.dumps(values["config"]))
    except ValueError as error:
        raise Conflict(f"Run {row.id} has settings of another version of Ratchet; they cannot be read here.") from error
    values["folder"] = None if values["folder"] is None else Path(values["folder"])
    return StoredRun(**values)


def _readable(rows: Sequence[RunRow]) -> list[StoredRun]:
    found = []
    for row in rows:
        try:
            found.append(_stored(row))
        except Conflict as error:
            log.warning("%s", error)
    return found


def _removed(session: Session, draft: str) -> bool:
    """Remove a draft; return whether it was one, and still there."""
    is_draft = sa.and_(RunRow.id == draft, RunRow.status == "draft")
    return cast(sa.CursorResult[Any], session.execute(sa.delete(RunRow).where(is_draft))).rowcount == 1
