"""The journal of a run: ``events.jsonl``, what happened, one JSON object a line, append only.

The worker appends, everybody else reads from where they had got to. A torn last line, left by a kill, is not an event:
it waits to be finished or is cut off by the next one. Knows the file and its events, not the run folder around it.
"""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TypeVar

from ratchet.files import damage_as_error, disk_full_as_error
from ratchet.run.events import Event, JournalEvent, UnknownEvent, parse_event
from ratchet.run.state import RunState

_TAIL_BYTES = 1 << 20
_Written = TypeVar("_Written", bound=JournalEvent)


def append(path: Path, event: _Written) -> _Written:
    """Append one event and sync it; return it with its number and time. A torn last line is cut off first.

    Raises:
        DiskFull: there is no room.
        Conflict: the last event cannot be read.
    """
    with disk_full_as_error(path.parent), path.open("a+b") as file:
        last, end = _last(path, file)
        stamp = {"seq": last + 1, "at": datetime.now(UTC).isoformat(timespec="milliseconds")}
        line = json.dumps({**stamp, "event": event.event, **event.fields()}, allow_nan=False).encode() + b"\n"
        file.truncate(end)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return event.model_copy(update=stamp)


def read_from(path: Path, offset: int = 0) -> Iterator[tuple[Event | UnknownEvent, int]]:
    """Yield each whole event after ``offset`` bytes with the offset at which the next one begins.

    Raises:
        Conflict: a line is no event, or the file cannot be read.
    """
    if not path.exists():
        return
    with damage_as_error(path), path.open("rb") as file:
        file.seek(offset)
        content = file.read()
    for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
        offset += len(line)
        with damage_as_error(path):
            event = parse_event(json.loads(line))
        yield event, offset


def read_state(path: Path) -> RunState:
    """State of the run whose journal this is.

    Raises:
        Conflict: the journal is damaged.
    """
    with damage_as_error(path):
        return RunState.fold(event for event, _ in read_from(path))


def _last(path: Path, file: IO[bytes]) -> tuple[int, int]:
    """Number of the last whole event, 0 where there is none, and the offset at which it ends."""
    size = file.seek(0, os.SEEK_END)
    start, tail = size, b""
    # Read backwards until a whole line is in what was read: one before the last line's own newline.
    while start and tail.count(b"\n") < 2:
        start = max(0, start - _TAIL_BYTES)
        file.seek(start)
        tail = file.read(size - start)
    whole = tail[: tail.rfind(b"\n") + 1]
    if not whole:
        return 0, 0
    with damage_as_error(path):
        return int(json.loads(whole.splitlines()[-1])["seq"]), start + len(whole)
