"""Work on a run from its folder to its end, whichever kind of job it is."""

import time
from collections.abc import Callable
from typing import Any

from ratchet.endings import RESUMABLE, WHY
from ratchet.engine.budget import TimeBudget
from ratchet.engine.prepare import Prepared, prepare
from ratchet.errors import Conflict
from ratchet.outside import close_from_outside
from ratchet.records import RunResult
from ratchet.run_folder import RunFolder
from ratchet.worker import rl
from ratchet.worker.closing import close, record_failure
from ratchet.worker.session import Session, Watch, signals
from ratchet.worker.watchdog import watched


def run(
    folder: RunFolder,
    *,
    prepared: Prepared | None = None,
    function: Callable[..., Any] | None = None,
    watch: Watch | None = None,
    now: Callable[[], float] = time.monotonic,
) -> RunResult:
    """Work on a run until it ends; return how it ended.

    Args:
        folder: A run that was created, and perhaps worked on before.
        prepared: The checks' result, where they were just made for this run; they are repeated otherwise.
        function: The user's own verifier, for runs that have one.
        watch: Whom to tell.
        now: A clock in seconds.

    Raises:
        Conflict: the run is over, or another process works on it, or it cannot go on here to the same result.
        RatchetError: whatever failed the run before anything could be kept; it is in the journal too.
    """
    with folder.locked():
        config = folder.read_config()
        refuse_ended(folder)
        session = Session(folder, watch or Watch(), TimeBudget.of(config.limits, now))
        if folder.stop_path.exists():
            return _stopped_at_the_start(folder)
        with signals(session), watched(session, config.limits.stall_minutes):
            # A run that cannot be resumed here is refused, and stays what it was: its session starts in ``rl.py``.
            if not folder.checkpoint_path.exists():
                session.start(resumed=False)
            try:
                with session.phase("checking settings and data"):
                    prepared = prepared or prepare(config, function)
                ending, message = rl.rounds(session, prepared)
            except Exception as error:
                record_failure(session, error)
                raise
            return close(session, prepared, ending, message)


def _stopped_at_the_start(folder: RunFolder) -> RunResult:
    """End a run that was asked to stop before its worker began: nothing need be loaded for that."""
    event = close_from_outside(folder, "stopped", WHY["stopped"])
    adapter = str(folder.adapter_path) if event.get("adapter_sha256") else None
    return RunResult.model_validate({**event, "run": folder.run_id, "folder": str(folder.path), "adapter": adapter})


def refuse_ended(folder: RunFolder) -> None:
    """Refuse to work on a run that has nothing left to do.

    Raises:
        Conflict: it completed, failed for want of a signal, or used up its time.
    """
    ended = [event for event in folder.events() if event["event"] == "ended"]
    if not ended or ended[-1]["ending"] in RESUMABLE:
        return
    status = str(ended[-1]["status"]).replace("_", " ")
    raise Conflict(
        f"Run {folder.run_id} is {status} ({str(ended[-1]['ending']).replace('_', ' ')}). Only a run that was stopped "
        "or interrupted can be resumed; start a new one for more rounds or more time."
    )


def refuse_unconfirmed(folder: RunFolder) -> None:
    """Refuse to begin a run whose verifier's report nobody has confirmed: one that was not made by the service.

    Runs that have begun go on, also those from before there were reports.

    Raises:
        Conflict: there is neither a confirmation in its record nor a checkpoint.
    """
    if "report" not in folder.read_run() and not folder.checkpoint_path.exists():
        raise Conflict(
            f"Run {folder.run_id} has not begun, and nobody has confirmed the report of its verifier. Start it anew "
            f"with its settings: ratchet train {folder.config_path}"
        )
