"""Workers that start without importing anything: forks of a process that is kept ready for them.

That process, the *fork server* (``worker/fork_server.py``), has imported torch, transformers and PEFT. Where there is
none yet, where it is gone or cannot fork safely, a worker starts cold; nothing but its start is slower then.
"""

import ctypes
import json
import os
import select
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

from ratchet.files import own_python
from ratchet.run.run_folder import RunFolder
from ratchet.supervisor.executors import Executor, LocalExecutor, Worker, directory_of, open_log

_COMMAND = tuple(own_python("-m", "ratchet.worker.fork_server"))
# Read when a device is first used, which only workers do; every other variable may be read when a library is imported.
_READ_LATE = "CUDA_VISIBLE_DEVICES"
_START_SECONDS, _ANSWER_SECONDS = 60.0, 20.0
_SET_CHILD_SUBREAPER = 36  # prctl(2)

_Variables = frozenset[tuple[str, str]]


class WarmExecutor:
    """Starts workers as forks of a process that has the libraries, cold where that is not possible.

    Args:
        cold: What starts them cold.
    """

    def __init__(self, cold: Executor | None = None) -> None:
        self._cold = cold or LocalExecutor()
        self._servers: dict[_Variables, _ForkServer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End the fork servers; workers go on."""
        for server in self._servers.values():
            server.close()

    def prepare(self, environment: Mapping[str, str]) -> "_ForkServer":
        """Have a fork server start, or be there already, for workers that find this in their environment."""
        variables = _environment(environment)
        key = frozenset((name, value) for name, value in variables.items() if name != _READ_LATE)
        server = self._servers.get(key)
        if server is None or server.is_gone:
            if server is not None:
                server.close()
            server = self._servers[key] = _ForkServer(variables)
        return server

    def start(self, folder: RunFolder, environment: Mapping[str, str]) -> Worker:
        """Start a worker; see ``Executor``."""
        worker: Worker | None = None
        with suppress(OSError):  # a cold start says what is wrong, if it is wrong there too
            worker = self.prepare(environment).start(folder, _environment(environment))
        return worker or self._cold.start(folder, environment)


class _ForkServer:
    """A fork server with these environment variables. It starts at once, and is of use once it has imported all."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*_COMMAND, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(variables),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._is_ready: bool | None = None

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended."""
        return self._process.poll() is not None

    def _is_ready_within(self, seconds: float) -> bool:
        if self._is_ready is None and select.select([self._connection], [], [], seconds)[0]:
            self._is_ready = self._connection.recv(16) == b"ready"
        return bool(self._is_ready)

    def start(self, folder: RunFolder, variables: Mapping[str, str]) -> Worker | None:
        """Have it fork a worker; None where it cannot.

        Raises:
            Conflict, DiskFull: as an ``Executor``.
            OSError: no file can be opened, or the fork server is gone.
        """
        if not self._is_ready_within(_START_SECONDS):  # a cold worker would import all that again
            return None
        request = {
            "asker": os.getpid(),
            "folder": str(folder.path),
            "directory": str(directory_of(folder)),
            "environment": dict(variables),
        }
        opened = [folder.take_lock()]
        try:
            opened.append(open_log(folder))
            answer, theirs = os.pipe()
            opened += [theirs, answer]
            with _adopting() as is_possible:
                if not is_possible:
                    return None
                socket.send_fds(self._connection, [json.dumps(request).encode()], opened[:3])
                os.close(opened.pop(2))  # so that the answer ends when the worker does
                said = os.read(answer, 16) if select.select([answer], [], [], _ANSWER_SECONDS)[0] else b""
        finally:
            for file in opened:
                os.close(file)
        self._is_ready = bool(said)
        return _ForkedWorker(int(said)) if said else None

    def close(self) -> None:
        """End it."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


@dataclass
class _ForkedWorker:
    """A worker that a fork server has forked for this process, whose child it is."""

    pid: int
    _exit_code: int | None = field(default=None, init=False)

    def poll(self) -> int | None:
        """Its exit code; see ``Worker``."""
        if self._exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **environment, "PYTHONUNBUFFERED": "1"}


@contextmanager
def _adopting() -> Iterator[bool]:
    """Become the parent of descendants whose parent ends inside the block; yield whether the system can do that."""
    try:
        yield _adopt(True)
    finally:
        _adopt(False)


def _adopt(is_on: bool) -> bool:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return prctl is not None and prctl(_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0) == 0
