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
from typing import Any

from ratchet.config import RunConfig
from ratchet.files import damage_as_error
from ratchet.run.endings import GOOD
from ratchet.run.journal import read_from
from ratchet.run.records import RoundRecord
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.registry import is_taken_up
from ratchet.service.runs.runs import summary

# The last rounds tell how long the next one takes: answers grow, and so does a round.
_ROUNDS_LOOKED_AT = 5
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Doing:
    """What the process that works on a run says of itself: phase, how much of it is done, the round under way."""

    phase: str
    done: int
    total: int
    round: int | None


@dataclass
class Followed:
    """What is known of a run under way."""

    run: str
    config: RunConfig
    records: list[RoundRecord] = field(default_factory=list)
    rounds: int | None = None
    ended: dict[str, Any] | None = None
    doing: Doing | None = None
    is_at_work: bool = True
    _session_started: datetime | None = None
    _last_event: datetime | None = None
    _seconds_before: float = 0.0

    @property
    def has_kept_adapter(self) -> bool:
        """Whether the run ended with an adapter, by an ending that is no fault."""
        return self.ended is not None and self.ended.get("best_round") is not None and self.ended["ending"] in GOOD

    def seconds(self, now: datetime) -> float:
        """Return for how long the run has been worked on, over all sessions."""
        if self._session_started is None:
            return self._seconds_before
        until = now if self.is_at_work and self.ended is None else (self._last_event or self._session_started)
        return self._seconds_before + max(0.0, (until - self._session_started).total_seconds())

    def seconds_left(self, now: datetime) -> float | None:
        """Estimate how long the run still takes: rounds left at the pace of the last ones, at most its time limit.

        None before a round is done.
        """
        if self.ended is not None:
            return None
        bounds = []
        done = [record.seconds.total for record in self.records if record.round]
        if self.rounds is not None and done:
            pace = median(done[-_ROUNDS_LOOKED_AT:])
            since = 0.0 if self._last_event is None else (now - self._last_event).total_seconds()
            bounds.append(max(0.0, (self.rounds - self.records[-1].round) * pace - min(since, pace)))
        if done and self.config.limits.time_hours is not None:
            bounds.append(max(0.0, self.config.limits.time_hours * 3600 - self.seconds(now)))
        return min(bounds, default=None)

    def cost(self, now: datetime) -> float | None:
        """Return what the run has cost so far; None without a price."""
        price = self.config.limits.price_per_hour
        return None if price is None else price * self.seconds(now) / 3600

    def take(self, event: dict[str, Any]) -> None:
        """Take in an event of the journal."""
        at = datetime.fromisoformat(event["at"])
        if event["event"] == "started":
            if self._session_started is not None and self._last_event is not None:
                self._seconds_before += (self._last_event - self._session_started).total_seconds()
            self._session_started, self.ended = at, None
        elif event["event"] == "planned":
            self.rounds = event["rounds"]
        elif event["event"] == "round":
            record = RoundRecord.model_validate(event["record"])
            self.records = [one for one in self.records if one.round < record.round] + [record]
        elif event["event"] == "ended":
            self.ended = event
        self._last_event = at


@dataclass(frozen=True)
class Look:
    """One look at a run: what is known of it by now, and the events that came since the last look."""

    run: Followed
    events: tuple[dict[str, Any], ...]


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
                followed.take(event)
                events.append(event)
                offset = end
        followed.doing = _doing(folder) if followed.is_at_work else None
        yield Look(followed, tuple(events))
        if not followed.is_at_work and not is_taken_up(found.run, has_ended=followed.ended is not None):
            return
        pause(_POLL_SECONDS)


def _doing(folder: RunFolder) -> Doing | None:
    """Return what the heartbeat says; None where there is none yet, or none that can be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        beat = json.loads(folder.heartbeat_path.read_bytes())
        number = beat["round"]
        return Doing(str(beat["phase"]), int(beat["done"]), int(beat["total"]), None if number is None else int(number))
    return None


def log_lines(run_or_folder: str, last: int | None) -> list[str]:
    """Return the last lines of a run's log, all of them for None; none where nothing was logged yet.

    Raises:
        NotFound: there is no such run.
    """
    lines, _ = _lines_from(RunFolder(summary(run_or_folder).folder), 0)
    return lines if last is None else lines[len(lines) - min(last, len(lines)) :]


def follow_log(
    run_or_folder: str, last: int | None, *, pause: Callable[[float], None] = time.sleep
) -> Iterator[list[str]]:
    """Yield the last lines of a run's log, then each time what was added, until nobody works on the run.

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
    """Return the whole lines after an offset, and where they end. A log that became shorter was begun anew."""
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
    """Return the present, in UTC as journals have it."""
    return datetime.now(UTC)
