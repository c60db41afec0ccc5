"""Keeper of the worker processes that compare expressions: starts them when needed, kills them at the limit.

One answer at a time goes to a worker, over a socket that is its standard input and output. Any number of threads may
ask at once; each waits for a free worker. The limit counts from the moment a worker has the answer, so neither
waiting nor starting uses it up. A worker that is killed or dies is replaced when the next answer needs it.

Workers are fresh interpreters, not forks: a fork of a process with torch and its threads loaded may hang, and would
copy its memory. ``close``, the end of the interpreter, and garbage collection kill them; they end by themselves when
this process dies in any other way. A pool that finds itself in a forked child starts its own workers.
"""

import json
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

log = logging.getLogger(__name__)

# Importing sympy takes 0.5 s, on a busy machine with a cold disk far longer.
_START_SECONDS = 60.0
_MAX_FINDING_BYTES = 65_536
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ratchet.verifiers.math_worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class MathPool:
    """Up to ``size`` workers that find out whether an answer equals its ground truth."""

    def __init__(self, *, limit_seconds: float, size: int = 2, memory_bytes: int = 2 * 1024**3) -> None:
        self._limit_seconds = limit_seconds
        self._size = size
        self._memory_bytes = memory_bytes
        self._open()

    def find(self, text: str, ground_truth: str, *, require_boxed: bool) -> dict[str, Any]:
        """Return the worker's finding, or ``{"failure": ...}``: time, memory or execution."""
        if self._process_id != os.getpid():
            self._open()
        request = {
            "text": text,
            "ground_truth": ground_truth,
            "require_boxed": require_boxed,
            "limit_seconds": self._limit_seconds,
        }
        worker = self._free.get()  # the race: two threads and one worker
        try:
            worker = self._alive(worker)
            return {"failure": "execution"} if worker is None else worker.ask(request, self._limit_seconds)
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """Kill the workers. Answers under way and later ones fail."""
        if self._process_id == os.getpid():
            self._workers.close()

    def _open(self) -> None:
        self._process_id = os.getpid()
        self._workers = _Workers()
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()  # last in, first out: few workers stay warm
        for _ in range(self._size):
            self._free.put(None)
        weakref.finalize(self, self._workers.close)

    def _alive(self, worker: "_Worker | None") -> "_Worker | None":
        """Return a worker that can be asked, starting one if need be; None if that fails."""
        if worker is not None:
            if worker.is_idle:
                return worker
            worker.kill()
        started = self._workers.start(self._memory_bytes)
        if started is not None and (problem := started.wait_until_ready()):
            log.error("math worker did not start: %s", problem)
            started.kill()
            return None
        return started


class _Workers:
    """The processes that have been started, so that all of them can be killed, also at the end of the interpreter."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._running: list[_Worker] = []
        self._lock = threading.Lock()  # the race: close while another thread starts a worker
        self._is_closed = False

    def start(self, memory_bytes: int) -> "_Worker | None":
        """Start a worker, or return None after ``close``."""
        with self._lock:
            if self._is_closed:
                return None
            worker = _Worker(memory_bytes)
            self._running = [*(other for other in self._running if other.is_running), worker]
            return worker

    def close(self) -> None:
        """Kill all of them, except from a forked child: they are its parent's."""
        if self._process_id != os.getpid():
            return
        with self._lock:
            self._is_closed = True
            for worker in self._running:
                worker.end()
            self._running = []


class _Worker:
    """One process and the socket to it. Used by one thread at a time; only ``end`` may come from another.

    It counts as idle from a complete finding to the next question. Whatever interrupts a question, Ctrl-C included,
    leaves it not idle, and so never asked again: the next answer must not get this one's finding.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._has_answered = False
        self._socket, theirs = socket.socketpair()
        arguments = [json.dumps(sys.path), str(memory_bytes), str(os.getpid())]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOTSTRAP, *arguments],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
        )
        theirs.close()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def is_idle(self) -> bool:
        return self._has_answered and self.is_running

    def wait_until_ready(self) -> str | None:
        """Wait until the worker has loaded its libraries; return what went wrong, if anything did."""
        try:
            greeting = self._receive(time.monotonic() + _START_SECONDS)
        except (OSError, ValueError) as error:
            return f"{type(error).__name__} after at most {_START_SECONDS:g} s"
        return greeting.get("error")

    def ask(self, request: dict[str, Any], limit_seconds: float) -> dict[str, Any]:
        """Return the finding on one answer. A worker that does not give one in time is killed."""
        self._has_answered = False
        try:
            deadline = time.monotonic() + limit_seconds
            self._socket.settimeout(limit_seconds)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            finding = self._receive(deadline)
        except TimeoutError:
            finding = {"failure": "time", "retire": True}
        except (OSError, ValueError):
            finding = {"failure": "execution", "retire": True}
        if finding.get("retire"):
            self.kill()
        self._has_answered = not finding.get("retire")
        return finding

    def kill(self) -> None:
        """End the process, wait until it is gone, and close the socket. Does nothing the second time."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def end(self) -> None:
        """End the process. A thread that is waiting for its finding sees that, and does the rest."""
        if self.is_idle:
            self.kill()
        else:
            self._process.kill()
            self._process.wait()

    def _receive(self, deadline: float) -> dict[str, Any]:
        """Return the next line. Raises OSError or ValueError when the worker died, TimeoutError at the deadline."""
        line = b""
        while not line.endswith(b"\n"):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining)
            piece = self._socket.recv(_MAX_FINDING_BYTES)
            if not piece:
                raise ConnectionError("the worker is gone")
            line += piece
        finding: dict[str, Any] = json.loads(line)
        return finding
