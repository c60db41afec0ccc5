"""Runs that start from a command: followed here to their end, or left to the scheduler."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import click

from ratchet import service
from ratchet.cli.faults import EXIT_OURS, EXIT_TASK, exit_code, fault, tell
from ratchet.cli.inspect_commands import confirmation
from ratchet.cli.live import Live
from ratchet.cli.options import StartOptions
from ratchet.cli.output import console_for, note, plain
from ratchet.cli.run_output import print_result, summary_fields
from ratchet.config import RunConfig
from ratchet.errors import DiskFull, RatchetError
from ratchet.run.endings import ENDINGS
from ratchet.run.events import RunEnded
from ratchet.run.records import RunResult
from ratchet.service import Launch, Queued
from ratchet.service.runs.registry import Origin
from ratchet.service.runs.round_history import draw_curve
from ratchet.supervisor.scheduler import SchedulerHome

NO_SCHEDULER = "The scheduler is not running. Start it: ratchet serve"


def launch(
    settings: RunConfig,
    start: StartOptions,
    *,
    against: Sequence[Path] = (),
    trial: str | None = None,
    origin: Origin | None = None,
) -> int:
    """Start a run and follow it to its end, or, with ``--queue``, queue it; the exit code.

    Args:
        settings: Of the run.
        start: How it starts.
        against: Files of rows that the user scores on.
        trial: The trial it was planned with.
        origin: The run or draft that it is made from.
    """
    if not start.queue:
        return follow_start(settings, start, against=against, trial=trial, origin=origin)[0]
    _find_trial(trial)
    with Live(console_for(start.as_json, of_a_run=True), None) as live:
        queued = service.create_and_queue(
            settings,
            start.out,
            against=against,
            ask=confirmation(live, start),
            on_launch=_announcing(live, trial),
            on_progress=live.on_progress,
            origin=origin,
        )
    return tell_queued(queued, as_json=start.as_json)


def follow_start(
    settings: RunConfig,
    start: StartOptions,
    *,
    against: Sequence[Path] = (),
    trial: str | None = None,
    origin: Origin | None = None,
) -> tuple[int, RunResult]:
    """Start a run and follow it to its end; the exit code and the result."""
    _find_trial(trial)

    def work(live: Live) -> RunResult:
        return service.create_and_train(
            settings,
            start.out,
            listeners=[live.listener],
            against=against,
            ask=confirmation(live, start),
            on_launch=_announcing(live, trial),
            origin=origin,
        )

    return carry_out(work, settings, as_json=start.as_json)


def _find_trial(trial: str | None) -> None:
    """Refuse a trial that does not exist before anything starts."""
    if trial is not None:
        service.find_trial(trial)


def _announcing(live: Live, trial: str | None) -> Callable[[Launch], None]:
    """Make what is called as a run starts: it prints what is about to start, and what has changed since its trial."""

    def on_launch(launch: Launch) -> None:
        live.on_launch(launch)
        if warning := service.since_trial(launch.config, trial):
            note(live.console, warning)

    return on_launch


def tell_queued(queued: Queued, *, as_json: bool) -> int:
    """Print where in the queue a run is, and whether the scheduler is running; the exit code."""
    if as_json:
        tell(json.dumps({"run": queued.run, "folder": str(queued.folder), "status": "queued", "ahead": queued.ahead}))
        return 0
    place = "next" if not queued.ahead else f"after {queued.ahead} other{'s' if queued.ahead > 1 else ''}"
    tell(f"Run {queued.run} is queued, {place}.")
    tell_without_scheduler(is_running=queued.is_kept)
    return 0


def tell_without_scheduler(*, is_running: bool | None = None, sentence: str = NO_SCHEDULER) -> None:
    """Print how to start the scheduler where it is not running, which is looked up if not known."""
    if not (SchedulerHome().is_held() if is_running is None else is_running):
        tell(sentence)


def carry_out(work: Callable[[Live], RunResult], settings: RunConfig, *, as_json: bool) -> tuple[int, RunResult]:
    """Do a run's work while showing it, then print how it ended and draw its curve."""
    console = console_for(as_json, of_a_run=True)
    rounds = settings.rounds if isinstance(settings.rounds, int) and settings.rl.max_steps is None else None
    with Live(console, rounds, settings.limits.currency) as live:
        live.on_hard_end = lambda event: _tell_hard_end(event, live, as_json=as_json)
        try:
            result = work(live)
        except RatchetError as error:
            _end_with(error, live.run, as_json=as_json)
        except Exception as error:
            if live.run is None:
                raise
            _end_unforeseen(error, live.run, as_json=as_json)
    if as_json:
        tell(result.model_dump_json())  # before the curve, which may fail to be drawn
    summary = service.summary(result.folder)
    if summary.records:
        print_result(console, result, list(summary.records))
        try:
            console.print(plain(f"Learning curve in {draw_curve(summary, Path(result.folder) / 'curve.png')}"))
        except DiskFull:
            console.print("The learning curve could not be drawn: the disk is full.")
        except OSError as error:
            console.print(f"The learning curve could not be drawn: {error.strerror}.")
    else:
        console.print(plain(result.message))
    return exit_status(result), result


def _end_with(error: RatchetError, run: str | None, *, as_json: bool) -> NoReturn:
    """End the command with a fault; JSON names the run too, once there is one."""
    if not as_json or run is None:
        raise error
    tell(f"Error: {error}", err=True)
    tell(json.dumps({**summary_fields(service.summary(run)), **fault(error.code, str(error))}))
    raise click.exceptions.Exit(exit_code(error))


def _end_unforeseen(error: Exception, run: str, *, as_json: bool) -> NoReturn:
    """End the command with a fault of ours in a run; not with a traceback, which may quote what a model wrote."""
    message = f"Unexpected error ({type(error).__name__}). The run's log has the details: ratchet runs log {run}"
    tell(f"Error: {message}", err=True)
    if as_json:
        tell(json.dumps(fault("error", message)))
    raise click.exceptions.Exit(EXIT_OURS)


def _tell_hard_end(event: RunEnded, live: Live, *, as_json: bool) -> None:
    """Print how a run that hangs ended, in the moment that is left before the process ends."""
    tell(f"Error: {event.message}", err=True)
    if as_json and live.run is not None:
        tell(json.dumps({**summary_fields(service.summary(live.run)), **fault("stalled", event.message)}))
    sys.stdout.flush()


def exit_status(result: RunResult) -> int:
    """Exit code of an ending: 0 if it is a good one that packaged an adapter, else the task's."""
    good = result.adapter is not None and ENDINGS[result.ending].good
    return 0 if good else EXIT_TASK
