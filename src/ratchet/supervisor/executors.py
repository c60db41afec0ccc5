"""How a worker process is started on this machine, how it ended, and why it died without saying so.

A worker is a process in a session of its own: signals to the scheduler's terminal do not reach it, and it outlives the
scheduler. It inherits the run folder's lock, so that the folder shows that it lives from the first moment on.

The system kills a process that takes too much memory by the same signal as a person does. Its own counters tell the two
apart: of the control group the worker ran in, else of the machine. They are read when a worker starts and when it died.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ratchet.errors import Conflict
from ratchet.files import disk_full_as_error, own_python
from ratchet.run.endings import Ending
from ratchet.run.log_files import rotate
from ratchet.run.processes import Process
from ratchet.run.run_folder import RunFolder

WORKER_COMMAND = tuple(own_python("-m", "ratchet.worker"))
_KILL = 9


class Worker(Protocol):
    """A worker process that this process has started."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code once it has ended, negative for the signal that ended it; None before."""
        ...


class Executor(Protocol):
    """What starts workers."""

    def start(self, folder: RunFolder, environment: Mapping[str, str]) -> Worker:
        """Start a worker on the run in a folder, with this in its environment.

        Raises:
            Conflict: another process works on the run, or no process can be started.
            DiskFull: there is no room.
        """
        ...


class LocalExecutor:
    """Starts workers as processes of this machine.

    Args:
        command: What a worker is started by; the folder and the number of the lock's open file are added.
    """

    def __init__(self, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._command = tuple(command)

    def start(self, folder: RunFolder, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """Start a worker; see ``Executor``."""
        lock = folder.take_lock()
        try:
            output = open_log(folder)
            try:
                return subprocess.Popen(
                    [*self._command, str(folder.path), str(lock)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=directory_of(folder),
                    env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                    pass_fds=[lock],
                    start_new_session=True,
                )
            finally:
                os.close(output)
        except OSError as error:
            raise Conflict(f"No worker can be started for {folder.path}: {error.strerror or error}.") from error
        finally:
            os.close(lock)  # the worker has it open too


def open_log(folder: RunFolder) -> int:
    """Open the file, for appending, that takes what a worker prints."""
    rotate(folder.worker_log_path)
    with disk_full_as_error(folder.path):
        return os.open(folder.worker_log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def directory_of(folder: RunFolder) -> Path:
    """Where the run was made: relative paths in its settings start there. Its folder where that is gone."""
    place = Path(folder.read_run().get("directory", ""))
    return place if place.is_absolute() and place.is_dir() else folder.path


def ended(worker: Worker) -> int | None:
    """End what is left of a worker's group once it has ended, and return its exit code; None before.

    The group goes first: until the worker is waited for, no other process can have its number.
    """
    try:
        found = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return worker.poll()  # it was waited for already
    if found is None:
        return None
    Process.of(worker.pid).signal_group(signal.SIGKILL)
    return worker.poll()


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
