"""Which process is which: a pid together with when its process began, since the system gives pids out again.

Used to tell a worker from a stranger that got its pid, before anything is signalled. Reads /proc; where the system has
none, no process is known by more than its pid, and none is ever signalled.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Fields of /proc/PID/stat, counted from the one after the name (proc_pid_stat(5): state is field 3, starttime 22).
_STATE, _START_TICKS = 0, 19


@dataclass(frozen=True)
class Process:
    """One process of this machine. ``started`` is in seconds since the machine booted, None where it is not known."""

    pid: int
    started: float | None

    @classmethod
    def own(cls) -> "Process":
        """This process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Process that has this pid now."""
        fields = _fields(pid)
        return cls(pid, int(fields[_START_TICKS]) / os.sysconf("SC_CLK_TCK") if fields else None)

    def is_alive(self) -> bool:
        """Whether this very process runs; one that ended and is not yet waited for does not."""
        fields = _fields(self.pid)
        return bool(fields) and fields[_STATE] not in "ZX" and self.started is not None and self == Process.of(self.pid)

    def signal(self, number: int) -> bool:
        """Send a signal to this very process; tell whether it was there and ours to signal."""
        return self.is_alive() and _sent(os.kill, self.pid, number)

    def signal_group(self, number: int) -> bool:
        """Send a signal to the group that this process leads, also when it is itself gone; tell whether one was there.

        A group keeps its number from being given to a process for as long as it has members, so that what is left of a
        group whose leader has gone is that leader's.
        """
        is_stranger = _fields(self.pid) and not self.is_alive() and self != Process.of(self.pid)
        return not is_stranger and _sent(os.killpg, self.pid, number)


def _sent(send: Callable[[int, int], None], pid: int, number: int) -> bool:
    with suppress(ProcessLookupError, PermissionError):
        send(pid, number)
        return True
    return False


def _fields(pid: int) -> list[str]:
    """What the system tells of a process, from its state on; nothing for one that is not there."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text[text.rfind(")") + 2 :].split()  # the name before may hold spaces and brackets
