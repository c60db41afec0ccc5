"""The conductor of jobs: one pass over the loops and experiments that are open, each from what is there now.

A pass may be repeated, and killed, at any point. A step that cannot be started because of its settings ends its job;
what the machine lacks just now is waited for. What a loop or an experiment does next is its own matter, see ``Job``.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from ratchet.errors import Conflict, DiskFull, NotFound, RatchetError, StorageUnavailable
from ratchet.run.records import Record
from ratchet.service.jobs.experiments import Experiment
from ratchet.service.jobs.job_steps import JobSteps, NextMove, resume_stopped, stop_all, this_home
from ratchet.service.jobs.loops import Loop
from ratchet.service.runs.registry import open_store

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun
    from ratchet.store.job_rows import JobStore, StoredJob

log = logging.getLogger(__name__)

# Of the moment: another process was first, the disk or the storage has to be seen to.
_PASSING = (Conflict, DiskFull, StorageUnavailable, OSError)
# A conflict that is still the same after so long is none of the moment: a file was changed or damaged.
_CONFLICT_SECONDS = 600.0


class Job(Protocol):
    """A loop or an experiment: its row in the database and the steps that it has started.

    Attributes:
        open_statuses: Of one that has not ended; the first is that of a new one.
        resumable: Statuses from which it may be resumed.
    """

    open_statuses: ClassVar[tuple[str, ...]]
    resumable: ClassVar[tuple[str, ...]]

    @property
    def stored(self) -> "StoredJob":
        """Its row."""

    @property
    def steps(self) -> JobSteps:
        """What it has started."""

    @staticmethod
    def rows(store: "RunStore") -> "JobStore":
        """All rows of this kind of job."""

    @classmethod
    def read(cls, store: "RunStore", stored: "StoredJob") -> Self:
        """Read a job from its row and its steps.

        Raises:
            NotFound, Conflict: files of its steps are gone or damaged.
        """

    def next_move(self) -> NextMove:
        """What this job does now. Starts nothing itself."""

    def why_final(self) -> str:
        """Why a job that has ended for good cannot be resumed, and what to do instead."""

    def resumed(self, changes: Mapping[str, Any]) -> Record:
        """The job's spec with changes to its settings, as it is resumed.

        Raises:
            Conflict: the changes cannot be made any more.
        """

    def continued_steps(self) -> list[str]:
        """Steps that are resumed with the job if they were stopped."""

    def repeated_runs(self) -> "list[StoredRun]":
        """Runs that failed and are replaced by new ones when the job is resumed."""


KINDS: tuple[type[Job], ...] = (Loop, Experiment)
J = TypeVar("J", bound=Job)


def find_job(kind: type[J], id: str) -> J:
    """Find a loop or an experiment.

    Raises:
        NotFound: there is none of this id, or files of its steps are gone.
        Conflict: they are damaged.
    """
    with open_store() as store:
        return kind.read(store, kind.rows(store).get(id))


def list_jobs(kind: type[J], project: str | None = None) -> list[J]:
    """All jobs of a kind, oldest first, or those of a project; one whose files are gone is named in the log."""
    found = []
    with open_store() as store:
        for stored in kind.rows(store).all(project):
            try:
                found.append(kind.read(store, stored))
            except RatchetError as error:
                log.warning("%s %s cannot be shown: %s", kind.rows(store).kind, stored.id, error)
    return found


def stop_job(kind: type[Job], id: str) -> None:
    """Ask a job to stop: what runs stops cleanly, and nothing more is started.

    Raises:
        NotFound: there is none of this id.
        Conflict: it has ended.
    """
    with open_store() as store:
        rows = kind.rows(store)
        stored = rows.get(id)
        if stored.status not in kind.open_statuses:
            raise Conflict(f"{rows.kind.capitalize()} {id} has already ended ({stored.status.replace('_', ' ')}).")
        rows.change(id, stop_requested_at=datetime.now(UTC))


def resume_job(kind: type[Job], id: str, changes: Mapping[str, Any] | None = None) -> None:
    """Queue a job that was stopped or has failed, with ``changes`` to its settings.

    Raises:
        NotFound: there is none of this id.
        Conflict: it has not ended, has ended for good, or the changes cannot be made any more.
    """
    with open_store() as store:
        rows = kind.rows(store)
        stored = rows.get(id)
        name = f"{rows.kind.capitalize()} {id}"
        if stored.status in kind.open_statuses:
            raise Conflict(f"{name} is {stored.status}: it continues by itself while ratchet serve runs.")
        job = kind.read(store, stored)
        if stored.status not in kind.resumable:
            raise Conflict(f"{name} has ended ({stored.status.replace('_', ' ')}). {job.why_final()}")
        spec = job.resumed(changes or {})
        resume_stopped(job.steps, job.continued_steps())
        for run in kind.read(store, stored).repeated_runs():
            store.change(run.id, owner=None)  # it is nobody's step any more, so that its job starts a new one
        fresh = {"settings": spec.model_dump(mode="json"), "message": "", "ended_at": None, "stop_requested_at": None}
        rows.move(id, [stored.status], kind.open_statuses[0], report=None, **fresh)


def stop_followed(id: str) -> None:
    """Ask a loop or an experiment to stop; one that has ended is fine."""
    for kind in KINDS:
        with suppress(NotFound, Conflict):
            stop_job(kind, id)


@dataclass
class Conductor:
    """Carries out the loops and experiments of one RATCHET_HOME.

    Attributes:
        store: Where they are.
        say: Told what it does, in sentences.
        now: A clock in seconds.
    """

    store: "RunStore"
    say: Callable[[str], None]
    now: Callable[[], float] = time.monotonic
    _reported: dict[str, tuple[str, float]] = field(default_factory=dict)

    def step(self) -> None:
        """Take one pass. A fault costs one job's pass, or ends that job."""
        home = this_home()
        for kind in KINDS:
            for stored in kind.rows(self.store).all(statuses=kind.open_statuses):
                if stored.settings.get("home") == home:
                    self._conduct(kind, stored)

    def is_open(self, id: str) -> bool:
        """Whether a loop or experiment has not ended."""
        return any(
            stored.id == id for kind in KINDS for stored in kind.rows(self.store).all(statuses=kind.open_statuses)
        )

    def _conduct(self, kind: type[Job], stored: "StoredJob") -> None:
        rows = kind.rows(self.store)
        name = f"{rows.kind.capitalize()} {stored.id}"
        try:
            self._advance(kind.read(self.store, stored))
            self._reported.pop(stored.id, None)
        except _PASSING as error:
            since = self._complain(stored.id, f"{name} waits: {error}")
            if not isinstance(error, Conflict) or self.now() - since < _CONFLICT_SECONDS:
                return
            self._fail(kind, stored.id, str(error))
        except RatchetError as error:
            self._fail(kind, stored.id, str(error))
        except Exception as error:
            # Not the exception's text: it may quote what a model wrote. Waiting would be for ever.
            log.exception("%s cannot continue", name)
            self._fail(kind, stored.id, f"Internal error ({type(error).__name__}); see the scheduler's log.")
        after = rows.get(stored.id)
        if after.status != stored.status:
            self.say(f"{name}: {after.status.replace('_', ' ')}. {_first_sentence(after.message)}".rstrip())

    def _advance(self, job: Job) -> None:
        """Do what a job does next: start steps, or end it.

        Raises:
            RatchetError: a step cannot be started.
        """
        move, rows, stored = job.next_move(), job.rows(self.store), job.stored
        stop_all(move.stop)
        if move.has_ended:
            report = {} if move.report is None else {"report": move.report.model_dump(mode="json")}
            rows.move(
                stored.id, job.open_statuses, move.status, message=move.message, ended_at=datetime.now(UTC), **report
            )
            return
        if move.status != stored.status:
            rows.move(stored.id, job.open_statuses, move.status)
        for start in move.start:
            start()

    def _fail(self, kind: type[Job], id: str, message: str) -> None:
        """End a job whose next step cannot be started; what it has running is asked to stop."""
        rows = kind.rows(self.store)
        rows.move(id, kind.open_statuses, "failed", message=message, ended_at=datetime.now(UTC))
        stop_all(JobSteps.of(self.store, f"{rows.kind}/{id}").at_work)

    def _complain(self, id: str, message: str) -> float:
        """Report what a job waits for, once and again when it changes; return since when it waits."""
        said, since = self._reported.get(id, ("", 0.0))
        if said == message:
            return since
        self._reported[id] = (message, self.now())
        self.say(message)
        return self.now()


def _first_sentence(message: str) -> str:
    return re.split(r"(?<=[.]) (?=[A-Z])", message, maxsplit=1)[0]
