"""Work on a run from its folder to its end, whichever kind of job it is; what that end is called and says."""

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ratchet.config import LimitSettings, RunConfig
from ratchet.engine.budget import TimeBudget
from ratchet.engine.prepare import Prepared, prepare
from ratchet.engine.round_parts import number_of_rounds
from ratchet.errors import DiskFull, RatchetError
from ratchet.readiness import highest_reward
from ratchet.run.diagnosis import has_no_signal
from ratchet.run.end_stalled_run import adapter_checksum, ended_for_worker, kept, reached
from ratchet.run.endings import ENDINGS, Ending, RunStatus, ending_of, status_of
from ratchet.run.events import PHASE_WORDS, Listener, RunEnded
from ratchet.run.health import examine, found_in_words
from ratchet.run.records import RoundRecord, RunResult
from ratchet.run.refusals import refuse_ended
from ratchet.run.run_folder import RunFolder
from ratchet.worker import evaluation_job, training_job, trial_job
from ratchet.worker.fixed import from_own_copy
from ratchet.worker.session import Session, signals
from ratchet.worker.uploads import uploading
from ratchet.worker.watchdog import Heartbeat, watched

log = logging.getLogger(__name__)


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
            return ended_for_worker(folder, "stopped", ENDINGS["stopped"].why)  # nothing need be loaded for that
        with (
            signals(session),
            heartbeat.beating(session),
            watched(session, config.limits.stall_minutes),
            uploading(session) as send_files,
        ):
            # A run that cannot be resumed here is refused, and stays what it was: its session starts later.
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
                _record_failure(session, error)
                raise
            except BaseException:
                if session.trackers:
                    session.trackers.let_go()
                raise
            _finish_trackers(session, status_of(ending, has_adapter=session.progress is not None))
            send_files()
            return _close(session, prepared, ending, message)


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


def _close(session: Session, prepared: Prepared, ending: Ending, message: str) -> RunResult:
    """Write the closing event and return the result."""
    folder, progress = session.folder, session.progress
    if progress is None and folder.checkpoint_path.exists():
        # Ended before it got back to where an earlier session stood: what that one kept is kept.
        return ended_for_worker(folder, ending, message or ENDINGS[ending].why, seconds=session.budget.elapsed)
    status = status_of(ending, has_adapter=progress is not None)
    if progress is None:
        message = message or _nothing_kept(session, ending)
    else:
        rounds = number_of_rounds(prepared.config, len(prepared.train))
        rule = ENDINGS[ending]
        remedy = "" if rule.fault else rule.remedy  # a fault's own message names one
        sentences = [message or rule.why, kept(progress.records, rounds), remedy]
        sentences.append(_found(progress.records, prepared.config, folder.run_id))
        message = " ".join(filter(None, sentences))
    checksum = adapter_checksum(folder) if progress else None
    result = RunResult(
        run=folder.run_id,
        folder=str(folder.path),
        status=status,
        ending=ending,
        message=message,
        **reached(progress.records if progress else ()),
        heldout_before=session.heldout_before,
        heldout_after=session.heldout_after,
        highest_reward=highest_reward(prepared.config) if prepared.config.objective == "rl" else None,
        adapter=str(folder.adapter_path) if progress else None,
        seconds=round(session.budget.elapsed, 3),
        cost=session.budget.cost,
        currency=None if session.budget.price_per_hour is None else prepared.config.limits.currency,
    )
    try:
        session.event(RunEnded.of(result, checksum, artifacts=session.artifacts_url))
        folder.log(f"ended ending={ending} rounds_done={result.rounds_done} best_round={result.best_round}")
    except DiskFull:
        log.error("the end of the run could not be written down: the disk is full")
    return result


def _found(records: Sequence[RoundRecord], config: RunConfig, run: str) -> str:
    """What the run's curves show at its end, "" where that is nothing or is said already."""
    diagnoses = examine(records, config).diagnoses
    return found_in_words([one for one in diagnoses if one.code != "dead_signal" or not has_no_signal(records)], run)


def _nothing_kept(session: Session, ending: Ending) -> str:
    phases = session.phase_seconds
    if limit := ENDINGS[ending].limit:
        longest = max(phases, key=lambda name: phases[name])
        return (
            f"The {limit.lower()} passed before the starting adapter was scored: {PHASE_WORDS[longest]} took "
            f"{phases[longest]:.0f} of {session.budget.elapsed:.0f} seconds. Raise {limit}."
        )
    return f"Stopped while {PHASE_WORDS[list(phases)[-1]]}, before the first round, so there is no adapter to keep."


def _record_failure(session: Session, error: Exception) -> None:
    """Put a failure into the journal: our own words for known faults, the traceback in the log for others.

    A session that had not started changes nothing: the run was refused and is what it was.
    """
    if not session.is_started:
        return
    known = isinstance(error, RatchetError)
    ending = ending_of(error)
    message = str(error) if known else f"Something unforeseen failed ({type(error).__name__}); see run.log."
    try:
        if not known:
            # Not the exception's text: it may quote what a model wrote.
            session.folder.log(f"error type={type(error).__name__} at {places_of(error)}")
        done = session.progress.rounds_done if session.progress else 0
        seconds = round(session.budget.elapsed, 3)
        session.event(
            RunEnded(
                status="failed",
                ending=ending,
                message=message,
                rounds_done=done,
                seconds=seconds,
                artifacts=session.artifacts_url,
            )
        )
    except DiskFull:
        log.error("the failure could not be written down: the disk is full")


def places_of(error: Exception) -> str:
    """Where an error was raised, innermost first: files, lines and functions, nothing of its text."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{Path(f.filename).name}:{f.lineno}:{f.name}" for f in reversed(frames))
