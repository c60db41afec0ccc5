"""Work on a run from its folder to its end, whichever kind of job it is."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from ratchet.config import LimitSettings
from ratchet.engine.budget import TimeBudget
from ratchet.engine.prepare import Prepared, prepare
from ratchet.run.end_stalled_run import ended_for_worker
from ratchet.run.endings import ENDINGS, RunStatus, status_of
from ratchet.run.events import Listener
from ratchet.run.records import RunResult
from ratchet.run.refusals import refuse_ended
from ratchet.run.run_folder import RunFolder
from ratchet.worker import evaluation_job, training_job, trial_job
from ratchet.worker.closing import close, record_failure
from ratchet.worker.fixed import from_own_copy
from ratchet.worker.heartbeat import Heartbeat
from ratchet.worker.session import Session, signals
from ratchet.worker.uploads import uploading
from ratchet.worker.watchdog import watched


def run(
    folder: RunFolder,
    *,
    prepared: Prepared | None = None,
    function: Callable[..., Any] | None = None,
    listeners: Sequence[Listener] = (),
    now: Callable[[], float] = time.monotonic,
    lock: int | None = None,
) -> RunResult:
    """Work on a run until it ends; return how it ended.

    Args:
        folder: A run that was created, and perhaps worked on before.
        prepared: The checks' result, where they were just made for this run; they are repeated otherwise.
        function: The user's own verifier, for runs that have one.
        listeners: Whom to tell.
        now: A clock in seconds.
        lock: The open file in which whoever started this process handed the folder's lock down.

    Raises:
        Conflict: the run is over, or another process works on it, or it cannot go on here to the same result.
        RatchetError: whatever failed the run before anything could be kept; it is in the journal too.
    """
    with folder.locked(lock):
        config = folder.read_config()
        refuse_ended(folder)
        heartbeat = Heartbeat(folder)
        budget = TimeBudget.of(_limits(folder, config.limits), now)
        session = Session(folder, budget, [heartbeat.listener, *listeners])
        if folder.stop_path.exists():
            if prepared is not None:
                prepared.close()
            return _stopped_at_the_start(folder)
        with (
            signals(session),
            heartbeat.beating(session),
            watched(session, config.limits.stall_minutes),
            uploading(session) as send_files,
        ):
            # A run that cannot be resumed here is refused, and stays what it was: its session starts in ``rl.py``.
            if not folder.checkpoint_path.exists():
                session.start(resumed=False)
            try:
                if folder.kind == "evaluation":
                    result = evaluation_job.work(session, config)
                    send_files()
                    return result
                is_checked = prepared is not None
                with session.phase("checking"):
                    prepared = from_own_copy(prepared or prepare(config, function), folder)
                if folder.kind == "trial":
                    result = trial_job.work(session, prepared, is_checked=is_checked)
                    send_files()
                    return result
                ending, message = training_job.rounds(session, prepared)
            except Exception as error:
                _finish_trackers(session, "failed")
                send_files()
                record_failure(session, error)
                raise
            except BaseException:
                if session.trackers:
                    session.trackers.let_go()
                raise
            _finish_trackers(session, status_of(ending, has_adapter=session.progress is not None))
            send_files()
            return close(session, prepared, ending, message)


def _finish_trackers(session: Session, status: RunStatus) -> None:
    """Before the run's end is in the journal, so that whatever a tracker does wrong at the end is noted there too."""
    if session.trackers:
        session.trackers.finish(status, session.progressed)


def _limits(folder: RunFolder, limits: LimitSettings) -> LimitSettings:
    """What limits a job: a trial's time is the lower of its own limit and the run's."""
    if folder.kind != "trial":
        return limits
    own = limits.trial_minutes / 60
    hours = own if limits.time_hours is None else min(own, limits.time_hours)
    return limits.model_copy(update={"time_hours": hours})


def _stopped_at_the_start(folder: RunFolder) -> RunResult:
    """End a run that was asked to stop before its worker began: nothing need be loaded for that."""
    return ended_for_worker(folder, "stopped", ENDINGS["stopped"].why)
