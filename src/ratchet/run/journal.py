"""The journal of a run: ``events.jsonl``, what happened, one JSON object a line, append only.

The worker appends, everybody else reads from where they had got to. A torn end, left by a kill or a crash of the
machine, is no event: it waits to be finished or is cut off by the next one. Events are numbered and each line ends in a
checksum of its text, so that nothing that was changed or lost passes for what happened; lines of before the checksums
have none. Knows the file and its events, not the run folder around it.
"""

import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar

from ratchet.errors import Conflict
from ratchet.files import damage_as_error, disk_full_as_error, own_opener
from ratchet.run.events import Event, JournalEvent, UnknownEvent, parse_event
from ratchet.run.state import RunState

_TAIL_BYTES = 1 << 20
_CHECKSUM = re.compile(rb', "crc": "([0-9a-f]{8})"}\n$')
_ADVICE = "Put a copy of the file back: from a backup, or from artifact storage (ratchet runs fetch)."
_Written = TypeVar("_Written", bound=JournalEvent)


def append(path: Path, event: _Written) -> _Written:
    """Append one event and sync it; return it with its number and time. A torn last line is cut off first.

    Raises:
        DiskFull: there is no room.
        Conflict: the last event cannot be read.
    """
    with disk_full_as_error(path.parent), open(path, "a+b", opener=own_opener) as file:
        last, end = _last(path, file)
        stamp = {"seq": last + 1, "at": datetime.now(UTC).isoformat(timespec="milliseconds")}
        text = json.dumps({**stamp, "event": event.event, **event.fields()}, allow_nan=False).encode()
        file.truncate(end)
        file.write(text[:-1] + f', "crc": "{zlib.crc32(text):08x}"}}\n'.encode())
        file.flush()
        os.fsync(file.fileno())
    return event.model_copy(update=stamp)


def read_from(path: Path, offset: int = 0) -> Iterator[tuple[Event | UnknownEvent, int]]:
    """Yield each whole event after ``offset`` bytes with the offset at which the next one begins.

    Raises:
        Conflict: a line is no event or not what was written, events are missing, or the file cannot be read.
    """
    if not path.exists():
        return
    with damage_as_error(path), path.open("rb") as file:
        file.seek(offset)
        content = file.read()
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
    while len(lines) > (offset == 0) and not _is_json(lines[-1]):
        lines.pop()  # the torn end: where it holds line breaks, of which a crash may leave any
    number = None if offset else 0
    for line in lines:
        offset += len(line)
        with damage_as_error(path):
            row = json.loads(line)
            if not _is_as_written(line, row):
                place = f"after event {number}" if number else "at its first event"
                raise Conflict(f"{path} is damaged {place}: the text is not what was written. {_ADVICE}")
            event = parse_event(row)
        if number is not None and event.seq != number + 1:
            raise Conflict(f"{path} is damaged: {_lost(number, event.seq)}. {_ADVICE}")
        number = event.seq
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
    line = whole.splitlines(keepends=True)[-1]
    with damage_as_error(path), suppress(json.JSONDecodeError, UnicodeDecodeError):
        row = json.loads(line)
        if _is_as_written(line, row):
            return int(row["seq"]), start + len(whole)
    # What is damaged is said there, and a torn end is left out.
    ends = [(event.seq, end) for event, end in read_from(path)]
    return ends[-1] if ends else (0, 0)


def _lost(before: int, after: int) -> str:
    """What is wrong between two neighbouring events of these numbers."""
    if after <= before:
        return f"event {after} is there twice"
    if after == before + 2:
        return f"event {before + 1} is missing"
    return f"events {before + 1} to {after - 1} are missing"


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _is_as_written(line: bytes, row: Any) -> bool:
    """Whether a line is what its checksum is of, which is taken out of ``row``; lines without one are believed."""
    checksum = row.pop("crc", None)
    found = _CHECKSUM.search(line)
    text = line[: found.start()] + b"}" if found else line
    return checksum is None or (found is not None and int(checksum, 16) == zlib.crc32(text))
