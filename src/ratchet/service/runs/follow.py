"""Following a run from outside: what its journal and heartbeat say, as it goes on. Changes nothing, loads no torch.

Works for any run, whoever works on it: the journal is read from where it was left, and the heartbeat says what is going
on between two events.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median

from ratchet.config import RunConfig
from ratchet.files import damage_as_error
from ratchet.run.endings import ENDINGS
from ratchet.run.events import PHASE_WORDS, Event, RunEnded, RunPhase, UnknownEvent
from ratchet.run.journal import read_from
from ratchet.run.run_folder import RunFolder
from ratchet.run.state import RunState
from ratchet.service.runs.registry import is_taken_up
from ratchet.service.runs.runs import summary

# The last rounds tell how long the next one takes: answers grow, and so does a round.
_ROUNDS_LOOKED_AT = 5
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Doing:
    """What the process that works on a run says of itself: phase, how much of it is done, the round under way."""

    phase: RunPhase
    done: int
    total: int
    round: int | None


@dataclass
class Followed:
    """What is known of a run under way."""

    run: str
    config: RunConfig
    state: RunState = field(default_factory=RunState)
    doing: Doing | None = None
    is_at_work: bool = True

    @property
    def ended(self) -> RunEnded | None:
        """The event that ended the run; None while it has not ended."""
        return self.state.ended

    @property
    def has_kept_adapter(self) -> bool:
        """Whether the run ended with an adapter, by an ending that is no fault."""
        return self.ended is not None and self.ended.best_round is not None and ENDINGS[self.ended.ending].good

    def seconds(self, now: datetime) -> float:
        """For how long processes have worked on the run."""
        return self.state.seconds_by_clock(now if self.is_at_work and self.ended is None else None)

    def seconds_left(self, now: datetime) -> float | None:
        """Estimate how long the run still takes: rounds left at the pace of the last ones, at most its time limit.

        None before a round is done.
        """
        if self.ended is not None:
            return None
        bounds = []
        done = [record.seconds.total for record in self.state.records if record.round]
        if self.state.rounds is not None and done:
            pace = median(done[-_ROUNDS_LOOKED_AT:])
            since = 0.0 if self.state.last_at is None else (now - self.state.last_at).total_seconds()
            bounds.append(max(0.0, (self.state.rounds - self.state.records[-1].round) * pace - min(since, pace)))
        if done and self.config.limits.time_hours is not None:
            bounds.append(max(0.0, self.config.limits.time_hours * 3600 - self.seconds(now)))
        return min(bounds, default=None)

    def cost(self, now: datetime) -> float | None:
        """What the run has cost so far; None without a price."""
        price = self.config.limits.price_per_hour
        return None if price is None else price * self.seconds(now) / 3600


@dataclass(frozen=True)
class Look:
    """One look at a run: what is known of it by now, and the events that came since the last look."""

    run: Followed
    events: tuple[Event | UnknownEvent, ...]


def follow(run_or_folder: str, *, pause: Callable[[float], None] = time.sleep) -> Iterator[Look]:
    """Yield a look about twice a second until the run has ended or nobody is to work on it; the first one at once.

    Raises:
        NotFound: there is no such run.
        Conflict: its files are damaged.
    """
    found = summary(run_or_folder)
    folder = RunFolder(found.folder)
    followed, offset = Followed(found.run, found.config), 0
    while True:
        # Asked before the journal is read: whoever ends writes first and lets go then.
        followed.is_at_work = folder.is_locked()
        events = []
        with damage_as_error(folder.events_path):
            for event, end in read_from(folder.events_path, offset):
                events.append(event)
                offset = end
            followed.state = RunState.fold(events, followed.state)
        followed.doing = _doing(folder) if followed.is_at_work else None
        yield Look(followed, tuple(events))
        if not followed.is_at_work and not is_taken_up(found.run, has_ended=followed.ended is not None):
            return
        pause(_POLL_SECONDS)


def _doing(folder: RunFolder) -> Doing | None:
    """What the heartbeat says; None where there is none yet, or none that can be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        beat = json.loads(folder.heartbeat_path.read_bytes())
        number = beat["round"]
        return Doing(
            _phase(beat["phase"]), int(beat["done"]), int(beat["total"]), None if number is None else int(number)
        )
    return None


def _phase(word: str) -> RunPhase:
    if word not in PHASE_WORDS:
        raise ValueError("a phase of another version of Ratchet")
    return word


def log_lines(run_or_folder: str, last: int | None) -> list[str]:
    """Last lines of a run's log, all of them for None; none where nothing was logged yet.

    Raises:
        NotFound: there is no such run.
    """
    lines, _ = _lines_from(RunFolder(summary(run_or_folder).folder), 0)
    return lines if last is None else lines[len(lines) - min(last, len(lines)) :]


def follow_log(
    run_or_folder: str, last: int | None, *, pause: Callable[[float], None] = time.sleep
) -> Iterator[list[str]]:
    """Yield the last lines of a run's log, then each time what was added, until the run is no longer running.

    Raises:
        NotFound: there is no such run.
    """
    folder = RunFolder(summary(run_or_folder).folder)
    lines, offset = _lines_from(folder, 0)
    yield lines if last is None else lines[len(lines) - min(last, len(lines)) :]
    while folder.is_locked():
        pause(_POLL_SECONDS)
        lines, offset = _lines_from(folder, offset)
        yield lines
    yield _lines_from(folder, offset)[0]


def _lines_from(folder: RunFolder, offset: int) -> tuple[list[str], int]:
    """Whole lines after an offset, and where they end. A log that became shorter was begun anew."""
    try:
        with folder.log_path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(offset if offset <= size else 0)
            start, content = file.tell(), file.read()
    except FileNotFoundError:
        return [], 0
    whole = content[: content.rfind(b"\n") + 1]
    return whole.decode("utf-8", "replace").splitlines(), start + len(whole)


def now() -> datetime:
    """Present time in UTC, as in journals."""
    return datetime.now(UTC)
