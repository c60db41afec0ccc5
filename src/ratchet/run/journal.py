"""The journal of a run: ``events.jsonl``, what happened, one JSON object a line, append only.

The worker appends, everybody else reads from where they had got to. A torn last line, left by a kill, is not an event:
it waits to be finished or is cut off by the next one. Knows the file alone, not the run folder around it.
"""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from ratchet.files import damage_as_error, disk_full_as_error

# What an event of each kind must hold for those who read it.
_EVENT_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "round": {"record": dict},
    "ended": {"status": str, "ending": str, "message": str},
    "heldout": {"when": str, "accuracy": (int, float)},
    "note": {"text": str},
    "planned": {"rounds": int},
    "refused": {"message": str},
    "scored": {"scores": dict},
    "answered": {"done": int, "of": int, "seconds": (int, float)},
}
_TAIL_BYTES = 1 << 20


def append(path: Path, kind: str, **fields: Any) -> dict[str, Any]:
    """Append one event and sync it; return it with its number. A torn last line is cut off first.

    Raises:
        DiskFull: there is no room.
        Conflict: the last event cannot be read.
    """
    with disk_full_as_error(path.parent), path.open("a+b") as file:
        last, end = _last(path, file)
        event = {
            "seq": last + 1,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": kind,
            **fields,
        }
        line = json.dumps(event, allow_nan=False).encode() + b"\n"
        file.truncate(end)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return event


def read_from(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
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
        yield _event(path, line), offset


def _event(path: Path, line: bytes) -> dict[str, Any]:
    """Return the event of a line, if it holds what those who read it need."""
    with damage_as_error(path):
        event: dict[str, Any] = json.loads(line)
        fields = {"event": str, **_EVENT_FIELDS.get(event["event"], {})}
        if not all(isinstance(event[name], kind) for name, kind in fields.items()):
            raise ValueError("no event")
        if event["event"] == "round" and not isinstance(event["record"]["round"], int):
            raise ValueError("no round")
    return event


def _last(path: Path, file: IO[bytes]) -> tuple[int, int]:
    """Return the number of the last whole event, 0 where there is none, and the offset at which it ends."""
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
