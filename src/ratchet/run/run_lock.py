"""The lock of a run folder: the truth about whether a process works on the run, and which one.

A lock of the system's own (flock) on ``.lock``: it ends with the processes that hold it, however they end. Whoever
starts a worker takes the lock first and hands the open file down, so that there is no moment at which the worker lives
and the folder is free. The file holds the pid and start of the process that works on the run, to be signalled.
"""

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from ratchet.run.processes import Process

_ATTEMPTS, _PAUSE_SECONDS = 4, 0.05


def take(path: Path, inherited: int | None = None) -> int | None:
    """Take the lock; return the open file that holds it until it is closed, None where another process has it.

    Args:
        path: The lock's file.
        inherited: The open file in which a parent handed the lock down.

    Raises:
        OSError: the file cannot be made, or what was handed down is another file.
    """
    descriptor = _handed_down(path, inherited) if inherited is not None else _opened(path)
    # Whoever asks whether the run is running holds the lock for an instant: that is waited for.
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    os.close(descriptor)
    return None


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _handed_down(path: Path, descriptor: int) -> int:
    if not os.path.samestat(os.fstat(descriptor), path.stat()):
        raise OSError(f"file {descriptor} is not {path}")
    os.set_inheritable(descriptor, False)
    return descriptor


def is_taken(path: Path) -> bool:
    """Whether a process holds the lock now. Writes nothing."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no process ever took it, or none of this user's could
    return False


def write_holder(descriptor: int) -> None:
    """Write this process into the lock's file as the one that works on the run; on a full disk, do without."""
    own = Process.own()
    content = json.dumps({"pid": own.pid, "process_started": own.started}).encode()
    with suppress(OSError):
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))


def holder(path: Path) -> Process | None:
    """Process that said last that it works on the run; None where none did. It may have ended since."""
    try:
        found = json.loads(path.read_bytes())
        return Process(int(found["pid"]), found["process_started"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
