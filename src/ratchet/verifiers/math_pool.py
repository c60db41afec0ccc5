"""The worker processes that compare expressions, and the pool of them.

One answer at a time goes to a worker, over a socket that is its standard input and output. The limit counts from the
moment a worker has the answer, so neither waiting nor starting uses it up.

Workers are fresh interpreters, not forks: a fork of a process with torch and its threads loaded may hang, and would
copy its memory. They exit when this process dies in any way that leaves it no time to end them.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ratchet.files import own_python
from ratchet.sandbox.worker_pool import CannotWork, Stoppable, WorkerKind, WorkerPool

log = logging.getLogger(__name__)

# Importing sympy takes 0.5 s, on a busy machine with a cold disk far longer.
_START_SECONDS = 60.0
_MAX_FINDING_BYTES = 65_536
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ratchet.verifiers.math_worker import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
_FAILED: dict[str, Any] = {"failure": "execution"}

Finding = dict[str, Any]


class MathPool:
    """Up to ``size`` workers that find out whether an answer equals its ground truth."""

    def __init__(self, *, limit_seconds: float, size: int = 2, memory_bytes: int = 2 * 1024**3) -> None:
        self._limit_seconds = limit_seconds
        kind = WorkerKind[Finding, Finding](
            start=lambda watch: _Worker(memory_bytes, watch),
            closed=_FAILED,
            is_failure=lambda finding: "failure" in finding,
            batch=1,
            name="math",
        )
        self._pool = WorkerPool(kind, size)

    def find(self, text: str, ground_truth: str, *, require_boxed: bool) -> Finding:
        """The worker's finding, or ``{"failure": ...}``: time, memory or execution."""
        request = {
            "text": text,
            "ground_truth": ground_truth,
            "require_boxed": require_boxed,
            "limit_seconds": self._limit_seconds,
        }
        return self._pool.results([request])[0]

    def close(self) -> None:
        """Kill the workers. Answers under way and later ones fail."""
        self._pool.close()


class _Worker:
    """One process and the socket to it.

    Raises:
        CannotWork: it did not load its libraries.
    """

    def __init__(self, memory_bytes: int, watch: Callable[[Stoppable], None]) -> None:
        self._is_retired = False
        self._socket, theirs = socket.socketpair()
        arguments = [json.dumps(sys.path), str(memory_bytes), str(os.getpid())]
        self._process = subprocess.Popen(
            own_python("-c", _BOOTSTRAP, *arguments),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        watch(self)
        if problem := self._problem_with_start():
            log.error("math worker did not start: %s", problem)
            self.kill()
            raise CannotWork(_FAILED)

    @property
    def is_usable(self) -> bool:
        return not self._is_retired and self._process.poll() is None

    def work(self, jobs: Sequence[Finding], report: Callable[[Finding], None]) -> None:
        """Find out about answers. A worker that is not done with one in time is not used again."""
        for request in jobs:
            finding = self._ask(request)
            self._is_retired = bool(finding.get("retire"))
            report(finding)
            if self._is_retired:
                return

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        """End the process, wait until it is gone, and close the socket."""
        self.stop()
        self._socket.close()

    def _problem_with_start(self) -> str | None:
        """Wait until the worker has loaded its libraries; what went wrong, if anything did."""
        try:
            greeting = self._receive(time.monotonic() + _START_SECONDS)
        except (OSError, ValueError) as error:
            return f"{type(error).__name__} after at most {_START_SECONDS:g} s"
        return greeting.get("error")

    def _ask(self, request: Finding) -> Finding:
        deadline = time.monotonic() + request["limit_seconds"]
        try:
            self._socket.settimeout(request["limit_seconds"])
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            return self._receive(deadline)
        except TimeoutError:
            return {"failure": "time", "retire": True}
        except (OSError, ValueError):
            return {"failure": "execution", "retire": True}

    def _receive(self, deadline: float) -> Finding:
        """The next line. Raises OSError or ValueError when the worker died, TimeoutError at the deadline."""
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
        finding: Finding = json.loads(line)
        return finding
