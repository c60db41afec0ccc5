"""Why a worker died without writing how its run ended.

The system kills a process that takes too much memory by the same signal as a person does. Its own counters tell the two
apart: of the control group the worker ran in, else of the machine. They are read when a worker starts and when it died.
"""

from dataclasses import dataclass
from pathlib import Path

from ratchet.run.endings import Ending

_KILL = 9


@dataclass(frozen=True)
class MemoryKills:
    """How many processes the system has killed because memory ran out: in this control group, and on this machine."""

    group: int = 0
    machine: int = 0

    @classmethod
    def now(cls, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> "MemoryKills":
        """Counters as they are now; 0 where the system has none."""
        group = 0
        for line in _lines(proc / "self" / "cgroup"):
            if line.startswith("0::"):  # the second version's one hierarchy, see cgroups(7)
                group = _counter(groups / line[3:].strip().lstrip("/") / "memory.events", "oom_kill")
        return cls(group, _counter(proc / "vmstat", "oom_kill"))


@dataclass(frozen=True)
class Death:
    """Why a worker ended, and what its run ends as if it is not started again."""

    cause: str
    ending: Ending


def death(exit_code: int | None, before: MemoryKills | None, after: MemoryKills) -> Death:
    """Why a worker died.

    Args:
        exit_code: Negative for the signal that ended it; None where somebody else started it.
        before: The counters when it started, None where they were not read.
        after: The counters now.
    """
    if exit_code is None:
        return Death("Its worker ended without an error message.", "error")
    if exit_code == -_KILL and before is not None:
        if after.group > before.group:
            return Death(
                "The system killed its worker: the memory limit of the scheduler's control group was reached.",
                "out_of_memory",
            )
        if after.machine > before.machine:
            return Death("The system killed its worker: the machine ran out of memory.", "out_of_memory")
    if exit_code < 0:
        name = "killed" if exit_code == -_KILL else f"ended by signal {-exit_code}"
        return Death(f"Its worker was {name}.", "error")
    return Death(f"Its worker ended with exit code {exit_code} without an error message; see worker.log.", "error")


def _counter(path: Path, name: str) -> int:
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
