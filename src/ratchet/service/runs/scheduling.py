"""Handing runs to the keeper, and asking a run to stop, whoever works on it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ratchet.config import RunConfig
from ratchet.errors import Conflict, InvalidSetting
from ratchet.run.end_stalled_run import close_from_outside
from ratchet.run.records import AT_WORK, ENDS, RunKind
from ratchet.run.run_folder import RunFolder
from ratchet.run.run_state import refuse_ended, refuse_other_kind, refuse_unconfirmed
from ratchet.service.runs.registry import find_stored, find_with_row, mark_kept, open_store
from ratchet.supervisor.ingest import ingest
from ratchet.supervisor.scheduler_home import KeeperHome
from ratchet.verifiers import takes_function

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun


@dataclass(frozen=True)
class Queued:
    """A run that waits for the keeper. ``ahead`` counts those before it; ``is_kept`` tells whether a keeper runs."""

    run: str
    folder: Path
    ahead: int
    is_kept: bool


# What became of a wish to stop: it had not begun and is over, or who works on it ends it in good order.
Stopping = Literal["cancelled", "asked"]


def queue_again(run_or_folder: str, kind: RunKind = "full") -> Queued:
    """Let the keeper go on with a run of this kind that was killed or stopped.

    Raises:
        NotFound: there is no such run.
        Conflict: it is over, waits already, or is being worked on.
    """
    with open_store() as store:
        folder, run = find_stored(store, run_or_folder)
        refuse_function(run.config)
        refuse_with_keeper(run)
        with _taken_up(folder, kind, is_kept=True):
            fresh = {"is_kept": True, "queued_at": datetime.now(UTC), "host": "", "slot": "", "attempts": 0}
            nothing = ("pid", "process_started", "ended_at", "ending", "stop_requested_at")
            changes = {**fresh, **dict.fromkeys(nothing), "message": ""}
            if not store.move(run.id, [*ENDS, *AT_WORK], "queued", **changes):
                raise Conflict(f"Run {run.id} waits for the keeper already.")
        return waiting(store, store.get(run.id))


def take_inline(run_or_folder: str, kind: RunKind = "full") -> RunFolder:
    """Return a run of this kind that this process is about to go on with; enter that the keeper does not run it.

    Raises:
        NotFound: there is no such run.
        Conflict: the keeper runs it, or it is over.
    """
    with open_store() as store:
        folder, run = find_with_row(store, run_or_folder)
        if run is not None:
            refuse_with_keeper(run)
        with _taken_up(folder, kind, is_kept=False):
            if run is not None:
                store.change(run.id, is_kept=False, stop_requested_at=None)
    return folder


@contextmanager
def _taken_up(folder: RunFolder, kind: RunKind, *, is_kept: bool) -> Iterator[None]:
    """Make a run ready to be gone on with, by the keeper or by this process, and hold its lock for the block.

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
    """Ask a run to end in good order with its best adapter, or take one that waits out of the queue.

    No process is signalled from here: whoever works on the run looks for the wish once a second, and the keeper sees
    to a worker that does not.

    Raises:
        NotFound: there is no such run.
        Conflict: nobody works on it, or it has ended.
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
            raise Conflict(f"Nobody works on run {run.id}: it was cut short. Go on with it: {command} {run.id}")
        folder.ask_to_stop("user")
        store.change(run.id, stop_requested_at=datetime.now(UTC))
    return "asked"


def refuse_with_keeper(run: "StoredRun") -> None:
    """Refuse to touch a run that the keeper has.

    Raises:
        Conflict: it has.
    """
    if run.is_kept and run.status in ("queued", *AT_WORK):
        state = "waits for" if run.status == "queued" else "is being worked on by"
        raise Conflict(f"Run {run.id} {state} the keeper. Take it from there first: ratchet runs stop {run.id}")


def _cancelled(store: "RunStore", run: "StoredRun", folder: RunFolder) -> bool:
    """Take a run out of the queue; tell whether it was still there."""
    with suppress(Conflict), folder.locked():
        if not store.move(run.id, ["queued"], "cancelled", ended_at=datetime.now(UTC), ending="stopped"):
            return False
        event = close_from_outside(folder, "stopped", "Stopped as asked, before it had begun.")
        # One that was to go on is again what it was.
        store.move(run.id, ["cancelled"], event["status"], ending=event["ending"], message=event["message"])
        ingest(store, store.get(run.id), folder)
        return True
    return False


def waiting(store: "RunStore", run: "StoredRun") -> Queued:
    """Return how a run stands that waits for the keeper."""
    if run.folder is None or run.queued_at is None:
        raise ValueError(f"run {run.id} does not wait")
    others = [one for one in store.all(statuses=["queued"]) if one.is_kept and one.queued_at is not None]
    ahead = sum((one.queued_at, one.id) < (run.queued_at, run.id) for one in others if one.queued_at)
    return Queued(run.id, run.folder, ahead, KeeperHome().is_held())


def refuse_function(config: RunConfig) -> None:
    """Refuse to hand a run to the keeper whose verifier is a function of this process.

    Raises:
        InvalidSetting: it is.
    """
    if config.verifier is not None and takes_function(config.verifier):
        raise InvalidSetting(
            "The verifier is a Python function of this process, which the keeper's workers do not have. Run it inline, "
            "or keep the function as a metric: ratchet metric add.",
            "verifier.kind",
        )
