"""Runs one program against its tests: a sandbox of its own for each run, and a count of what passed.

What a program writes to standard output is compared here; the expected output never enters the sandbox. Assertions are
run inside, in a process apart from the program's (``code_harness``), which alone can report. Whatever the program does,
the outcome is a count of tests: one that loops, crashes, floods or forges passes nothing by it.

Each test has a limit of its own, and the whole run ten times that: what is left then counts as timed out, and so does
everything after the third test that was. Files that the program writes live in 64 MB of memory and are seen by the
later tests of the same run, never by another run.

Not protected from: a program that recognises the tests' inputs and answers by heart.
"""

import base64
import binascii
import functools
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from ratchet.errors import SandboxUnavailable
from ratchet.sandbox.code_tests import MOST_OUTPUT_BYTES, AssertTests, CodeTests, IoTests, same_output
from ratchet.sandbox.launcher import START_SECONDS, Contents, Limits, Sandbox, python_command
from ratchet.sandbox.probe import Broken, Channel, probe, sandbox_file
from ratchet.sandbox.tools import unavailable

Status = Literal["passed", "failed", "error", "timed_out"]
Ending = Literal["finished", "out_of_time", "out_of_memory", "broken"]

_STATUSES = get_args(Status)
_FOLDER = "/harness/ratchet/sandbox"  # so that its files find one another under their own names
_FILES = ("code_harness.py", "code_candidate.py", "code_proxies.py", "code_values.py")
_SCRATCH = {"/tmp": 64 << 20, "/dev/shm": 16 << 20}
_TESTS_OF_TIME = 10  # a run may take as long as so many tests
_MARGIN_SECONDS = 1.0  # after its end as the harness counts it, which starts a little later
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MOST_LINE_BYTES = 2 * MOST_OUTPUT_BYTES  # base 64 and the frame around it


@dataclass(frozen=True)
class CodeResult:
    """What became of each test, in order, and how the run ended.

    ``compiles`` is False for text that is no Python program; then every test has the status error. ``ending`` is
    ``broken`` where the harness was ended before its last report: by the kernel's out-of-memory killer, by its own
    limit on memory, or by a fault of ours. ``data`` says where all answers to assert tests were plain data
    (``AssertTests.data``), nothing unless the run finished.
    """

    statuses: tuple[Status, ...]
    compiles: bool
    ending: Ending
    data: tuple[str, ...] = ()

    def count(self, status: Status) -> int:
        """How many tests have this status."""
        return self.statuses.count(status)

    @property
    def passed_fraction(self) -> float:
        """Share of the tests that passed, 0..1."""
        return self.count("passed") / len(self.statuses)


class CodeRunner:
    """Runs programs, from any thread, at most one less at a time than there are processors (but one).

    Args:
        limit_seconds: Wall time that a test may take.
        memory_bytes: Address space of each process; all processes of a run together may hold twice as much.

    Raises:
        SandboxUnavailable: the sandbox does not work on this machine, or what it uses cannot be measured.
    """

    def __init__(self, *, limit_seconds: float = 5.0, memory_bytes: int = 512 << 20) -> None:
        probe().require()
        require_process_tree()
        self._limit_seconds = limit_seconds
        self._memory_bytes = memory_bytes
        self._slots = threading.BoundedSemaphore(max(1, len(os.sched_getaffinity(0)) - 1))

    def run(self, program: str, tests: CodeTests) -> CodeResult:
        """Run the tests in a new sandbox and end it.

        Raises:
            SandboxUnavailable: it did not start; nothing of the program has run.
        """
        total_seconds = self._limit_seconds * min(len(tests) + 1, _TESTS_OF_TIME)
        limits = Limits(address_space=self._memory_bytes, cpu_seconds=int(total_seconds) + 2)
        contents = Contents(files=_harness(), scratch=_SCRATCH)
        order = {
            "mode": "io" if isinstance(tests, IoTests) else "assert",
            "program": program,
            "limit_seconds": self._limit_seconds,
            "total_seconds": total_seconds,
            "output_bytes": MOST_OUTPUT_BYTES,
        }
        with self._slots, Sandbox(python_command(f"{_FOLDER}/{_FILES[0]}"), contents, limits) as sandbox:

            def look() -> None:
                if held_bytes(sandbox.process_id) > 2 * self._memory_bytes:
                    raise _TooMuchMemory

            channel = Channel(sandbox, most_line_bytes=_MOST_LINE_BYTES, look=look)
            channel.send(order, in_line=False)
            try:
                is_ready = channel.receive(START_SECONDS) == {"hello": True}
            except TimeoutError:
                raise SandboxUnavailable(f"A code run did not start within {START_SECONDS:g} s.") from None
            except (Broken, _TooMuchMemory):
                is_ready = False
            if not is_ready:
                raise unavailable(sandbox.complaint() or "A code run ended before it began.")
            return _result(channel, tests, time.monotonic() + total_seconds + _MARGIN_SECONDS)


class _TooMuchMemory(Exception):
    """The processes of a run hold more than they may together."""


@functools.cache
def _socket_bytes() -> int:
    """What may wait in a socket of which the buffers have not grown."""
    try:
        return int(Path("/proc/sys/net/core/wmem_default").read_text())
    except (OSError, ValueError):
        return 212_992


@functools.cache
def _harness() -> dict[str, bytes]:
    return {f"{_FOLDER}/{name}": sandbox_file(name) for name in _FILES}


def _result(channel: Channel, tests: CodeTests, deadline: float) -> CodeResult:
    """Send the tests and gather what becomes of them; what is not reported counts as not passed."""
    statuses: list[Status] = []
    compiles = True
    ending: Ending = "finished"
    data: tuple[str, ...] = ()
    try:
        channel.send(_as_sent(tests), in_line=False)
        compiles = channel.receive(deadline - time.monotonic()).get("compiles") is not False
        for number in range(len(tests) if compiles else 0):
            statuses.append(_status(channel.receive(deadline - time.monotonic()), tests, number))
        if compiles and isinstance(tests, AssertTests):
            data = tuple(channel.receive(deadline - time.monotonic()).get("data", ()))
    except TimeoutError:
        ending = "out_of_time"
    except _TooMuchMemory:
        ending = "out_of_memory"
    except Broken:
        ending = "broken"
    rest: Status = "timed_out" if ending == "out_of_time" else "error"
    return CodeResult((*statuses, *[rest] * (len(tests) - len(statuses))), compiles, ending, data)


def _as_sent(tests: CodeTests) -> Any:
    if isinstance(tests, IoTests):
        return tests.inputs
    return {"statements": tests.statements, "names": tests.names, "data": tests.data}


def _status(report: dict[str, Any], tests: CodeTests, number: int) -> Status:
    status = report.get("status")
    if isinstance(tests, IoTests) and status == "ran":
        try:
            written = base64.b64decode(report["output"], validate=True).decode("utf-8", "replace")
        except (KeyError, TypeError, binascii.Error):
            raise Broken("an output is no base 64") from None
        return "passed" if same_output(written, tests.outputs[number]) else "failed"
    possible = _STATUSES[2:] if isinstance(tests, IoTests) else _STATUSES
    if status not in possible:
        raise Broken("a status is none of a test")
    return cast(Status, status)


def require_process_tree() -> None:
    """Raise SandboxUnavailable where the kernel does not tell a process's children."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        raise SandboxUnavailable(
            "The memory of a sandbox cannot be measured: /proc does not list the children of a process.",
            "Use a kernel with CONFIG_PROC_CHILDREN, as distributions ship it, and mount /proc.",
        )


def held_bytes(process_id: int) -> int:
    """Resident memory of a process and its descendants with what their sockets may hold in the kernel.

    What ends meanwhile counts as nothing. An upper bound: pages that several share count once for each, and every open
    file counts as a full socket. The kernel's own limits (``Limits``) count one process at a time. Reads /proc of the
    host; no cgroup is needed. Memory that this does not see is denied (``tools``).
    """
    total, waiting = 0, [str(process_id)]
    while waiting:
        process = waiting.pop()
        with suppress(OSError):
            with open(f"/proc/{process}/statm", encoding="ascii") as file:
                total += int(file.read().split()[1]) * _PAGE_BYTES
            try:
                total += len(os.listdir(f"/proc/{process}/fd")) * _socket_bytes()
            except PermissionError:  # it hides them
                total += Limits().open_files * _socket_bytes()
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    waiting += file.read().split()
    return total
