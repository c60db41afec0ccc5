"""``ratchet runs watch | log``: a run as it goes on, whoever works on it. Ctrl-C ends the watching alone."""

import json
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli import EXIT_STATE, EXIT_TASK, tell
from ratchet.cli.interrupts import interruptible
from ratchet.cli.train_commands import json_option
from ratchet.run.display import shown_seconds

if TYPE_CHECKING:
    from ratchet.service.runs.follow import Followed, Look


def watch() -> click.Command:
    """Return ``runs watch``."""
    return click.Command(
        "watch",
        callback=_watch,
        help="Follow a run until it ends, whoever works on it: its rounds, what it is at, the time left, the cost so "
        "far. Ctrl-C leaves the run alone. The exit code is that of the run's ending.",
        params=[click.Argument(["run_or_folder"]), json_option()],
    )


def log() -> click.Command:
    """Return ``runs log``."""
    return click.Command(
        "log",
        callback=_log,
        help="Read a run's log: numbers only, one line a round.",
        params=[
            click.Argument(["run_or_folder"]),
            click.Option(["-n", "last"], type=click.IntRange(min=1), metavar="N", help="The last N lines alone."),
            click.Option(["--follow", "-f"], is_flag=True, help="Go on until nobody works on the run any more."),
            json_option(),
        ],
    )


def _watch(run_or_folder: str, as_json: bool) -> int:
    from ratchet.cli.console import console_for
    from ratchet.service.runs.follow import follow, now

    console = console_for(as_json, of_a_run=True)
    look: Look | None = None
    try:
        with interruptible() as pause, _Line(console) as line:
            for look in follow(run_or_folder, pause=pause):
                for event in look.events:
                    _tell_event(console, look.run, event)
                line.show(look.run)
    except KeyboardInterrupt:
        tell("No longer watching; the run goes on. Stop it with: ratchet runs stop " + run_or_folder, err=True)
        return 0
    assert look is not None
    if as_json:
        tell(json.dumps(_fields(look.run)))
    return _close(look.run, console, spent=_cost(look.run, now()))


def _close(run: "Followed", console: Any, spent: str) -> int:
    """Say how it ended; return the exit code."""
    from rich.markup import escape

    if run.ended is None:
        console.print(f"Nobody works on run {run.run} now. Go on with it: ratchet resume {run.run}")
        return EXIT_STATE
    console.print(escape(str(run.ended["message"])))
    if spent:
        console.print(f"Cost: {spent}")
    return 0 if run.has_kept_adapter else EXIT_TASK


def _tell_event(console: Any, run: "Followed", event: dict[str, Any]) -> None:
    from rich.markup import escape

    from ratchet.cli.live import round_line
    from ratchet.run.records import RoundRecord
    from ratchet.service.runs.follow import now

    if event["event"] == "started":
        console.print(f"Run {run.run} {'went on' if event.get('resumed') else 'started'} at {event['at']}")
    elif event["event"] == "note":
        console.print(f"[yellow]Note:[/yellow] {escape(event['text'])}")
    elif event["event"] == "heldout":
        when = "before training" if event["when"] == "before" else "with the kept adapter"
        console.print(f"Held-out problems, {when}: {event['accuracy']:.1%} right")
    elif event["event"] == "round":
        record = RoundRecord.model_validate(event["record"])
        is_news = run.is_at_work and record.round == run.records[-1].round and not console.is_terminal
        left = _left(run, now()) if is_news else ""
        console.print(round_line(record, run.rounds, run.config.limits.currency) + (f"  {left}" if left else ""))


def _left(run: "Followed", at: Any) -> str:
    seconds = run.seconds_left(at)
    return "" if seconds is None else f"about {shown_seconds(seconds)} left"


def _cost(run: "Followed", at: Any) -> str:
    cost = run.cost(at)
    return "" if cost is None else f"{cost:.2f} {run.config.limits.currency}"


class _Line:
    """The moving line at the bottom of a terminal; nothing in a pipe."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

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

    def show(self, run: "Followed") -> None:
        """Show what a run is at."""
        from rich.markup import escape

        from ratchet.cli.live import PHASES
        from ratchet.service.runs.follow import now

        doing, at = run.doing, now()
        what = "at work" if doing is None else PHASES.get(doing.phase, doing.phase)
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


def _fields(run: "Followed") -> dict[str, Any]:
    from ratchet.service.runs.follow import now

    at, ended = now(), run.ended or {}
    return {
        "run": run.run,
        "status": ended.get("status", "training" if run.is_at_work else "interrupted"),
        "ending": ended.get("ending"),
        "message": ended.get("message"),
        "rounds": run.rounds,
        "rounds_done": run.records[-1].round if run.records else None,
        "best_round": run.records[-1].best_round if run.records else None,
        "best_accuracy": run.records[-1].best_accuracy if run.records else None,
        "seconds": round(run.seconds(at), 3),
        "cost": run.cost(at),
        "currency": run.config.limits.currency if run.config.limits.price_per_hour is not None else None,
    }


def _log(run_or_folder: str, last: int | None, follow: bool, as_json: bool) -> None:
    from ratchet.service.runs import follow as following

    if follow:
        try:
            with interruptible() as pause:
                for lines in following.follow_log(run_or_folder, last, pause=pause):
                    _tell_lines(lines, as_json)
        except KeyboardInterrupt:
            return
        return
    _tell_lines(following.log_lines(run_or_folder, last), as_json, whole=True)


def _tell_lines(lines: list[str], as_json: bool, *, whole: bool = False) -> None:
    """Print lines; for machines one object for all of them, or, while it is followed, one for each."""
    if as_json and whole:
        click.echo(json.dumps({"lines": lines}))
        return
    for line in lines:
        click.echo(json.dumps({"line": line}) if as_json else line)
