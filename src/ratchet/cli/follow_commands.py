"""``ratchet runs follow | log``: a run while it is running, whichever process trains it; Ctrl-C leaves it alone."""

import json
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from ratchet.cli.faults import EXIT_STATE, EXIT_TASK, tell
from ratchet.cli.interrupts import interruptible
from ratchet.cli.live import print_event, round_line
from ratchet.cli.options import json_option, run_argument
from ratchet.cli.output import console_for, emit, plain
from ratchet.run.display import shown_seconds
from ratchet.run.events import PHASE_WORDS, Event, HeldOut, Note, RoundDone, RunStarted, UnknownEvent
from ratchet.service.runs import follow as following
from ratchet.service.runs.follow import Followed, Look, now


@click.command
@run_argument
@json_option
def follow(run_or_folder: str, as_json: bool) -> int:
    """Follow a run until it ends, whichever process trains it.

    Shows its rounds, its current phase, the time left and the cost so far. Ctrl-C leaves the run alone. The exit code
    is that of the run's ending.
    """
    console = console_for(as_json, of_a_run=True)
    look: Look | None = None
    try:
        with interruptible() as pause, _Line(console) as line:
            for look in following.follow(run_or_folder, pause=pause):
                for event in look.events:
                    _tell_event(console, look.run, event)
                line.show(look.run)
    except KeyboardInterrupt:
        tell("Stopped following; the run continues. Stop it with: ratchet runs stop " + run_or_folder, err=True)
        return 0
    assert look is not None
    if as_json:
        tell(json.dumps(_fields(look.run)))
    return _close(look.run, console, spent=_cost(look.run, now()))


def _close(run: Followed, console: Console, spent: str) -> int:
    """Print how it ended; the exit code."""
    if run.ended is None:
        console.print(f"Run {run.run} is not running. Resume with: ratchet resume {run.run}")
        return EXIT_STATE
    console.print(plain(run.ended.message))
    if spent:
        console.print(f"Cost: {spent}")
    return 0 if run.has_kept_adapter else EXIT_TASK


def _tell_event(console: Console, run: Followed, event: Event | UnknownEvent) -> None:
    match event:
        case RunStarted():
            console.print(f"Run {run.run} {'resumed' if event.resumed else 'started'} at {event.at}")
        case Note() | HeldOut():
            print_event(console, event)
        case RoundDone(record=record):
            is_news = run.is_at_work and record.round == run.state.rounds_done and not console.is_terminal
            left = _left(run, now()) if is_news else ""
            line = round_line(record, run.state.rounds, run.config.limits.currency)
            console.print(line.append(f"  {left}") if left else line)


def _left(run: Followed, at: datetime) -> str:
    seconds = run.seconds_left(at)
    return "" if seconds is None else f"about {shown_seconds(seconds)} left"


def _cost(run: Followed, at: datetime) -> str:
    cost = run.cost(at)
    return "" if cost is None else f"{cost:.2f} {run.config.limits.currency}"


class _Line:
    """The moving line at the bottom of a terminal; nothing in a pipe."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[further]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, further="")

    def __enter__(self) -> "_Line":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, run: Followed) -> None:
        """Show what a run is doing."""
        doing, at = run.doing, now()
        what = "running" if doing is None else PHASE_WORDS[doing.phase]
        where = f"round {doing.round}: " if doing and doing.round else ""
        counted = f"{doing.done}/{doing.total}" if doing and doing.total > 1 else ""
        spent = _cost(run, at)
        further = [counted, _left(run, at), f"{spent} so far" if spent else ""]
        self._progress.update(
            self._task,
            description=where + what,
            completed=doing.done if doing else 0,
            total=(doing.total or None) if doing else None,
            further=escape("  ".join(filter(None, further))),
        )


def _fields(run: Followed) -> dict[str, Any]:
    at, ended, state = now(), run.ended, run.state
    return {
        "run": run.run,
        "status": ended.status if ended else "training" if run.is_at_work else "interrupted",
        "ending": ended.ending if ended else None,
        "message": ended.message if ended else None,
        "rounds": state.rounds,
        "rounds_done": state.records[-1].round if state.records else None,
        "best_round": state.best_round,
        "best_accuracy": state.best_accuracy,
        "seconds": round(run.seconds(at), 3),
        "cost": run.cost(at),
        "currency": run.config.limits.currency if run.config.limits.price_per_hour is not None else None,
    }


@click.command
@run_argument
@click.option("-n", "last", type=click.IntRange(min=1), metavar="N", help="Only the last N lines.")
@click.option("--follow", "-f", is_flag=True, help="Keep reading until the run is no longer running.")
@json_option
def log(run_or_folder: str, last: int | None, follow: bool, as_json: bool) -> None:
    """Read a run's log: numbers only, one line a round."""
    if not follow:
        lines = following.log_lines(run_or_folder, last)
        for text in [""] if as_json else lines:
            emit(as_json, {"lines": lines}, text)
        return
    try:
        with interruptible() as pause:
            for lines in following.follow_log(run_or_folder, last, pause=pause):
                for line in lines:
                    emit(as_json, {"line": line}, line)
    except KeyboardInterrupt:
        return
