"""How a worker process is started on this machine, and how it ended.

A worker is a process in a session of its own: signals to the scheduler's terminal do not reach it, and it outlives the
scheduler. It inherits the run folder's lock, so that the folder shows that it lives from the first moment on.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ratchet.errors import Conflict
from ratchet.files import disk_full_as_error, own_python
from ratchet.run.log_files import rotate
from ratchet.run.processes import Process
from ratchet.run.run_folder import RunFolder

WORKER_COMMAND = tuple(own_python("-m", "ratchet.worker"))


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
