"""Queueing runs for the scheduler, and stopping a run, whoever works on it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ratchet.config import RunConfig
from ratchet.errors import Conflict, InvalidSetting
from ratchet.run.end_stalled_run import close_stalled_run
from ratchet.run.endings import AT_WORK, ENDS
from ratchet.run.records import RunKind
from ratchet.run.refusals import refuse_ended, refuse_other_kind, refuse_unconfirmed
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.registry import find_stored, find_with_row, mark_kept, open_store
from ratchet.supervisor.ingest import ingest
from ratchet.supervisor.scheduler import SchedulerHome
from ratchet.verifiers import takes_function

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun


@dataclass(frozen=True)
class Queued:
    """A queued run. ``ahead`` counts those before it; ``is_kept``: a scheduler is running."""

    run: str
    folder: Path
    ahead: int
    is_kept: bool


# What a request to stop did: a queued run is cancelled, a running one stops cleanly.
Stopping = Literal["cancelled", "asked"]


def queue_again(run_or_folder: str, kind: RunKind = "full") -> Queued:
    """Queue a run of this kind that was killed or stopped, to be resumed.

    Raises:
        NotFound: there is no such run.
        Conflict: it is over, waits already, or is being worked on.
    """
    with open_store() as store:
        folder, run = find_stored(store, run_or_folder)
        refuse_function(run.config)
        refuse_with_scheduler(run)
        with _taken_up(folder, kind, is_kept=True):
            fresh = {"is_kept": True, "queued_at": datetime.now(UTC), "host": "", "slot": "", "attempts": 0}
            nothing = ("pid", "process_started", "ended_at", "ending", "stop_requested_at")
            changes = {**fresh, **dict.fromkeys(nothing), "message": ""}
            if not store.move(run.id, [*ENDS, *AT_WORK], "queued", **changes):
                raise Conflict(f"Run {run.id} is queued already.")
        return waiting(store, store.get(run.id))


def take_inline(run_or_folder: str, kind: RunKind = "full") -> RunFolder:
    """Take a run of this kind to resume it in this process; enter that the scheduler does not run it.

    Raises:
        NotFound: there is no such run.
        Conflict: the scheduler runs it, or it is over.
    """
    with open_store() as store:
        folder, run = find_with_row(store, run_or_folder)
        if run is not None:
            refuse_with_scheduler(run)
        with _taken_up(folder, kind, is_kept=False):
            if run is not None:
                store.change(run.id, is_kept=False, stop_requested_at=None)
    return folder


@contextmanager
def _taken_up(folder: RunFolder, kind: RunKind, *, is_kept: bool) -> Iterator[None]:
    """Make a run ready to be resumed, by the scheduler or by this process, and hold its lock for the block.

    Raises:
        Conflict: it is of another kind, a trial, over, not confirmed, or being worked on.
    """
    refuse_other_kind(folder, kind)
    refuse_ended(folder)
    refuse_unconfirmed(folder)
    with folder.locked():
        folder.stop_path.unlink(missing_ok=True)
        mark_kept(folder, is_kept)
        yield


def stop(run_or_folder: str) -> Stopping:
    """Stop a run cleanly with its best adapter, or take a queued one out of the queue.

    No process is signalled from here: a worker looks for the request once a second, and the scheduler kills one that
    does not.

    Raises:
        NotFound: there is no such run.
        Conflict: it is not running, or it has ended.
    """
    with open_store() as store:
        folder, run = find_stored(store, run_or_folder)
        if run.status == "queued" and _cancelled(store, run, folder):
            return "cancelled"
        run = store.get(run.id)
        if run.status in ENDS:
            raise Conflict(f"Run {run.id} has ended already ({run.status.replace('_', ' ')}).")
        if not run.is_kept and not folder.is_locked():
            command = "ratchet eval resume" if run.kind == "evaluation" else "ratchet resume"
            raise Conflict(f"Run {run.id} is not running: it was interrupted. Resume it with: {command} {run.id}")
        folder.ask_to_stop("user")
        store.change(run.id, stop_requested_at=datetime.now(UTC))
    return "asked"


def refuse_with_scheduler(run: "StoredRun") -> None:
    """Refuse to touch a run that is queued or that the scheduler runs.

    Raises:
        Conflict: it has.
    """
    if run.is_kept and run.status in ("queued", *AT_WORK):
        state = "is queued" if run.status == "queued" else "is being run by the scheduler"
        raise Conflict(f"Run {run.id} {state}. Stop it first: ratchet runs stop {run.id}")


def _cancelled(store: "RunStore", run: "StoredRun", folder: RunFolder) -> bool:
    """Take a run out of the queue; tell whether it was still there."""
    with suppress(Conflict), folder.locked():
        if not store.move(run.id, ["queued"], "cancelled", ended_at=datetime.now(UTC), ending="stopped"):
            return False
        event = close_stalled_run(folder, "stopped", "Stopped as asked, before it had begun.")
        # One that was to go on is again what it was.
        store.move(run.id, ["cancelled"], event.status, ending=event.ending, message=event.message)
        ingest(store, store.get(run.id), folder)
        return True
    return False


def waiting(store: "RunStore", run: "StoredRun") -> Queued:
    """Place of a queued run."""
    if run.folder is None or run.queued_at is None:
        raise ValueError(f"run {run.id} is not queued")
    others = [one for one in store.all(statuses=["queued"]) if one.is_kept and one.queued_at is not None]
    ahead = sum((one.queued_at, one.id) < (run.queued_at, run.id) for one in others if one.queued_at)
    return Queued(run.id, run.folder, ahead, SchedulerHome().is_held())


def refuse_function(config: RunConfig) -> None:
    """Refuse to queue a run whose verifier is a function of this process.

    Raises:
        InvalidSetting: it is.
    """
    if config.verifier is not None and takes_function(config.verifier):
        raise InvalidSetting(
            "The verifier is a Python function of this process, which the scheduler's workers do not have. Run it "
            "inline, or store the function as a metric: ratchet metric add.",
            "verifier.kind",
        )
