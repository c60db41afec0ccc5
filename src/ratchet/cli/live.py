"""A run while it is running: a live line on a terminal, plain lines when piped."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from ratchet.cli.output import note, print_fields
from ratchet.run.display import counted
from ratchet.run.events import (
    PHASE_WORDS,
    Answered,
    Event,
    HeldOut,
    Listener,
    Note,
    Planned,
    RoundDone,
    RunEnded,
    RunPhase,
    RunStarted,
)
from ratchet.run.records import OUTCOMES, RoundRecord
from ratchet.run.report_card import PARSE_FAILURE_WARNING
from ratchet.run.round_lines import scored

if TYPE_CHECKING:
    from ratchet.service import Launch


class Live:
    """Shows a run's events and progress on a console, as a context manager. ``run`` is its id once it has started."""

    def __init__(self, console: Console, rounds: int | None, currency: str = "") -> None:
        self.console = console
        self._rounds = rounds
        self._currency = currency
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[counted]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=None, counted="")
        self._round = 0
        self._description = ""
        self.run: str | None = None
        self.on_hard_end: Callable[[RunEnded], None] = lambda event: None

    @property
    def listener(self) -> Listener:
        """The listener to hand to the service."""
        return Listener(self._on_event, self.on_progress, self.on_hard_end)

    def __enter__(self) -> Self:
        with suppress(OSError):
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with suppress(OSError):
            self._progress.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the display inside the block, for something to be read and answered."""
        with suppress(OSError):
            self._progress.stop()
        yield
        with suppress(OSError):
            self._progress.start()

    def on_launch(self, launch: "Launch") -> None:
        """Print once what is about to start."""
        limit = (
            "no time limit"
            if launch.time_limit_hours is None
            else f"at most {counted(launch.time_limit_hours, 'hour')}"
        )
        rounds = f"{counted(self._rounds, 'round')}, " if self._rounds else ""
        fields = [("Device", launch.device), ("Limits", f"{rounds}{limit}")]
        fields += [("Cost", launch.cost)] if launch.cost is not None else []
        fields += [("Report", launch.report)]
        fields += [("Writes", f"settings, journal, answers, checkpoint and adapter to {launch.folder}")]
        print_fields(self.console, fields, 8)

    def on_progress(self, phase: RunPhase, done: int, total: int) -> None:
        """Show a phase and how much of it is done."""
        counted = f"{done} / {total} {'steps' if phase == 'training' else 'answers'}" if total > 1 else ""
        where = f"round {self._round}: " if self._round else ""
        description = where + PHASE_WORDS[phase]
        if description != self._description:
            # A task that was once complete would stay so: without spinner, and with its clock stopped.
            self._description = description
            self._progress.reset(self._task, description=description, total=total or None, counted=counted)
        self._progress.update(self._task, total=total or None, completed=done, counted=counted)

    def _on_event(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.run = event.run
            case Planned():
                self._rounds = event.rounds
            case RoundDone(record=record):
                self._round = 0 if record.round == self._rounds else record.round + 1
                self.console.print(round_line(record, self._rounds, self._currency))
            case Answered():
                self.console.print(f"{event.done:,} / {event.of:,} questions answered, {event.seconds:.1f} s")
            case Note() | HeldOut():
                print_event(self.console, event)


def print_event(console: Console, event: Note | HeldOut) -> None:
    """Print a note, or how the held-out problems were answered."""
    if isinstance(event, Note):
        note(console, event.text)
        return
    when = "before training" if event.when == "before" else "with the best adapter"
    console.print(f"Held-out problems, {when}: {event.accuracy:.1%} of {event.prompts} right")


def _losses(record: RoundRecord) -> str:
    """Losses of a round of sft or dpo; empty for rl, where the loss measures no success."""
    validation, learned = record.validation, record.learned
    if validation.loss is None:
        return ""
    text = f"  loss {validation.loss:.4f}" if validation.accuracy is not None else ""
    if validation.preferred is not None:
        text += f"  chosen preferred {validation.preferred:.0%}"
    if learned is not None:
        text += f"  {learned.steps} steps" + ("" if learned.loss is None else f" at loss {learned.loss:.4f}")
        text += f"  skipped {learned.skipped_steps}" if learned.skipped_steps else ""
    return text


def round_line(record: RoundRecord, rounds: int | None, currency: str = "") -> Text:
    """One round as a line for people."""
    cost = "" if record.cost is None else f"  {record.cost:.2f} {currency} so far"
    of = f"/{rounds}" if rounds else ""
    line = Text(f"Round {record.round:>3}{of}  validation {scored(record.validation):>6}")
    line.append(_losses(record))
    if record.validation.watch is not None:
        line.append(f"  watch {record.validation.watch:6.1%}")
    if record.reward is not None:
        line.append(f"  reward {record.reward:.3f}  signal {record.signal_fraction:4.0%}")
        if record.watch is not None:
            line.append(f"  watch {record.watch:.3f}")
        for outcome in OUTCOMES[1:]:
            if count := record.outcomes.get(outcome, 0):
                line.append(f"  {outcome.replace('_', ' ')} {count}")
            if outcome == "unparseable" and count > PARSE_FAILURE_WARNING * sum(record.outcomes.values()):
                line.append(f" (above {PARSE_FAILURE_WARNING:.0%})", "yellow")
    if failed := sum(record.watch_failures.values()) + sum(record.validation.watch_failures.values()):
        line.append(f"  watch metric failed {failed}")
    line.append(f"  {record.seconds.total:.1f} s, {record.seconds.validation:.1f} s of it validation{cost}")
    return line.append("  best so far", "green") if record.best_round == record.round else line
