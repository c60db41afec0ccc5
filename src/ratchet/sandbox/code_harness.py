"""What runs inside the sandbox of a code run: starts the candidate's processes and reports to the host.

Standard library only, and nothing of Ratchet: the sandbox sees just the files of this kind (``code_candidate``,
``code_proxies``, ``code_values``). The host sends an order (program, limits), waits for ``hello``, and only then sends
the tests. Up to there nothing of the candidate has run, so whatever fails is the machine's fault. This is the
first process of its namespace, so the candidate can neither kill nor stop it, and what it leaves behind ends with it.
The candidate holds no descriptor that leads to the host.

    io       a process for each case: standard input from the host, standard output to the host, which compares
    assert   the candidate's process and two spare ones are forked before the tests are read; this process then runs the
             tests on proxies (``code_proxies``) and is the only one to know how they went

A candidate's process that is out of time is killed. Two such tests are tolerated; the third ends the run.
"""

import base64
import builtins
import json
import os
import select
import signal
import sys
import time
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratchet.sandbox.code_proxies import Candidate

_FIRST_PRIVATE = 10  # descriptors below are the candidate's
_MOST_OPEN = 64
MOST_OUT_OF_TIME = 3
_MOST_DATA = 500
# How often to look whether the program has ended: while its output is open, and in the moment after that.
_LOOK_SECONDS, _NAP_SECONDS = 0.02, 0.0005


def main() -> None:
    """Serve one run."""
    if os.getpid() != 1:
        sys.exit("not in a sandbox")  # kill(-1) below is meant for a process namespace that holds nothing else
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which for the first process of a namespace means: nothing
    host = _Host()
    os.chdir("/tmp")
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # what the module site, which is not loaded, gives to every program
    order = host.receive()
    run = {"io": _run_io, "assert": _run_assert}[order["mode"]]
    run(host, order)


class _Host:
    """The two descriptors that lead to the host. Standard input, output and error are nothing from here on."""

    def __init__(self) -> None:
        self._orders, self._reports = os.dup2(0, _FIRST_PRIVATE), os.dup2(1, _FIRST_PRIVATE + 1)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        os.close(nowhere)

    def receive(self) -> Any:
        """What the host sends: eight bytes that hold the length, then JSON. Reads not a byte more."""
        return json.loads(self._read(int.from_bytes(self._read(8), "big")))

    def report(self, **finding: Any) -> None:
        """Send one line."""
        content = json.dumps(finding).encode() + b"\n"
        while content:
            content = content[os.write(self._reports, content) :]

    def _read(self, count: int) -> bytes:
        pieces = []
        while count:
            piece = os.read(self._orders, min(count, 1 << 20))
            if not piece:
                os._exit(0)  # the host is gone
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)


class _Clock:
    """How long a test may take: its own limit, or what is left of the run."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.limit: float = order["limit_seconds"]
        self.end = time.monotonic() + order["total_seconds"]
        self.out_of_time = 0

    def seconds(self) -> float:
        """The seconds that the next test has; 0 when there are none left."""
        left = self.end - time.monotonic()
        return 0 if self.out_of_time >= MOST_OUT_OF_TIME or left <= 0 else min(self.limit, left)


# Input/output tests.


def _run_io(host: _Host, order: dict[str, Any]) -> None:
    host.report(hello=True)
    inputs = [text.encode("utf-8", "surrogatepass") for text in host.receive()]
    try:
        code = compile(order["program"], "main.py", "exec", dont_inherit=True)
    except Exception:  # also MemoryError, RecursionError and ValueError: what a text does that is no program
        host.report(compiles=False)
        return
    host.report(compiles=True)
    clock = _Clock(order)
    for given in inputs:
        seconds = clock.seconds()
        status, output = "timed_out", b""
        if seconds:
            case = _Case(code, given)
            status = case.converse(time.monotonic() + seconds, order["output_bytes"])
            output = bytes(case.output) if status == "ran" else b""
        clock.out_of_time += status == "timed_out"
        host.report(status=status, output=base64.b64encode(output).decode())


class _Case:
    """The process of one case. Feeds it, and reads what it writes."""

    def __init__(self, code: types.CodeType, given: bytes) -> None:
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        self._process_id = os.fork()
        if self._process_id == 0:
            os.dup2(read_in, 0)
            os.dup2(write_out, 1)
            os.closerange(3, _MOST_OPEN)
            _become(code)
        os.close(read_in)
        os.close(write_out)
        self.output = bytearray()
        self._exit_code: int | None = None
        self._given = memoryview(given)
        self._inputs, self._outputs = [write_in], [read_out]  # empty once closed
        os.set_blocking(write_in, False)
        os.set_blocking(read_out, False)

    def converse(self, deadline: float, output_bytes: int) -> str:
        """Go on until the process has ended and all that it wrote is read; then end whatever it left behind.

        Return ``ran``, ``error`` or ``timed_out``.
        """
        status = None
        while status is None:
            left = deadline - time.monotonic()
            if left <= 0:
                status = "timed_out"
                break
            wait = min(left, _LOOK_SECONDS) if self._outputs else _NAP_SECONDS
            readable, writable, _ = select.select(self._outputs, self._inputs, [], wait)
            if writable:
                self._feed()
            if readable:
                self._read()
                if len(self.output) > output_bytes:
                    status = "error"
            elif self._exit_code is not None:  # nothing more to read, even if a process left behind holds the pipe
                status = "ran" if self._exit_code == 0 else "error"
            self._look()
        for descriptor in (*self._inputs, *self._outputs):
            os.close(descriptor)
        _end_all()
        return status

    def _feed(self) -> None:
        try:
            self._given = self._given[os.write(self._inputs[0], self._given[: 1 << 16]) :]
        except OSError:  # it has closed its input
            self._given = self._given[:0]
        if not self._given:
            os.close(self._inputs.pop())

    def _read(self) -> None:
        piece = os.read(self._outputs[0], 1 << 16)
        self.output += piece
        if not piece:
            os.close(self._outputs.pop())

    def _look(self) -> None:
        """See whether the process has ended; the exit code is negative for a signal."""
        if self._exit_code is None:
            ended, status = os.waitpid(self._process_id, os.WNOHANG)
            self._exit_code = os.waitstatus_to_exitcode(status) if ended else None


def _become(code: types.CodeType) -> None:
    """Run the program as the script of this process, which then ends as the interpreter ends any script."""
    os.setsid()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["main.py"]
    exec(code, module.__dict__)
    sys.exit(0)


def _end_all() -> None:
    """Kill every other process in the sandbox. They cannot fork meanwhile, and orphans are children of this one."""
    with suppress(ProcessLookupError):  # there is none
        os.kill(-1, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


# Assert tests.


class _OutOfTime(BaseException):
    """Raised by the timer, out of whatever the test is doing."""


def _run_assert(host: _Host, order: dict[str, Any]) -> None:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from ratchet.sandbox import code_candidate, code_proxies

    del sys.path[0]
    waiting = [
        code_proxies.Candidate(*_fork_candidate(code_candidate.serve, order["program"]))
        for _ in range(MOST_OUT_OF_TIME)
    ]
    del order["program"]
    host.report(hello=True)
    _Tests(host, order, waiting, host.receive()).run()


def _fork_candidate(serve: "Callable[..., None]", program: str) -> tuple[int, int, int]:
    read_requests, write_requests = os.pipe()
    read_replies, write_replies = os.pipe()
    process_id = os.fork()
    if process_id == 0:
        os.dup2(read_requests, 3)
        os.dup2(write_replies, 4)
        os.closerange(5, _MOST_OPEN)
        os.setsid()
        with open(3, encoding="ascii") as requests:
            serve(program, requests, 4)
        os._exit(0)
    os.close(read_requests)
    os.close(write_replies)
    return process_id, write_requests, read_replies


class _Tests:
    """Runs the statements in order, in one namespace, and reports each one that is a test.

    ``tests``: ``statements`` are [source, is a test] pairs; ``names`` are those that the program may define; ``data``
    says where its answers must be plain data. The last report says where they were.
    """

    def __init__(self, host: _Host, order: dict[str, Any], waiting: "list[Candidate]", tests: dict[str, Any]) -> None:
        self._host, self._clock, self._waiting = host, _Clock(order), waiting
        from ratchet.sandbox.code_proxies import AnswersSeen

        self._statements, self._wanted = tests["statements"], tests["names"]
        self._answers = AnswersSeen(tests["data"])
        self._candidate: Candidate | None = None
        self._shown: dict[str, Any] = {}
        # The name that scripts have: what stands below ``if __name__ == "__main__"`` is to run.
        self._namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": dict(vars(builtins))}
        self._is_timed = False
        signal.signal(signal.SIGALRM, self._ring)

    def run(self) -> None:
        """Load the program, say whether it compiles, and go through the statements."""
        load = self._start()
        self._host.report(compiles=load != "no program")
        if load == "no program":
            return
        for source, is_test in self._statements:
            status = self._one(source)
            if is_test:
                self._host.report(status=status)
        self._host.report(data=self._answers.always_data[:_MOST_DATA])

    def _one(self, source: str) -> str:
        if self._candidate is None and self._clock.seconds():
            self._start()
        if not self._clock.seconds():
            return "timed_out"
        if self._candidate is None:
            return "error"
        code = compile(source, "tests", "exec", dont_inherit=True)
        status = self._timed(lambda: exec(code, self._namespace))
        self._clock.out_of_time += status == "timed_out"
        return {"ran": "passed", "no program": "error"}.get(status, status)

    def _start(self) -> str:
        """Take the next waiting process, if there is one, and load the program into it; tell how that went."""
        if not self._waiting:
            return "error"
        self._candidate = self._waiting.pop(0)
        self._candidate.answers = self._answers
        status = self._timed(self._candidate.load)
        if status == "timed_out":
            self._clock.out_of_time = MOST_OUT_OF_TIME  # it would be again
        if self._candidate is not None:
            self._timed(self._show_names)
        return status

    def _show_names(self) -> None:
        """Put what the program defines into the namespace, where the tests have not put something else."""
        assert self._candidate is not None
        for name, value in self._candidate.names(self._wanted).items():
            if name not in self._namespace or self._namespace[name] is self._shown.get(name, self):
                self._namespace[name] = self._shown[name] = value

    def _timed(self, action: "Callable[[], None]") -> str:
        """Do it within the time of one test; return ``ran``, ``failed``, ``error``, ``timed_out`` or ``no program``.

        The candidate's process is ended when it is out of time or does not answer as it should.
        """
        from ratchet.sandbox.code_proxies import CandidateGone

        seconds = self._clock.seconds()
        try:
            if not seconds:
                raise _OutOfTime
            try:
                self._is_timed = True
                # Again and again, should the test catch it.
                signal.setitimer(signal.ITIMER_REAL, seconds, 0.05)
                action()
            finally:
                self._is_timed = False
        except _OutOfTime:
            status = "timed_out"
        except CandidateGone:
            status = "gone"
        except AssertionError:
            status = "failed"
        except SyntaxError:
            status = "no program"
        except BaseException:  # also SystemExit: the tests do not end this process, nor does the program through them
            status = "error"
        else:
            status = "ran"
        self._is_timed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        if status in ("timed_out", "gone"):
            self._end_candidate()
        return "error" if status == "gone" else status

    def _end_candidate(self) -> None:
        if self._candidate is None:
            return
        os.kill(self._candidate.process_id, signal.SIGKILL)
        os.waitpid(self._candidate.process_id, 0)
        self._candidate.close()
        self._candidate = None

    def _ring(self, number: int, frame: types.FrameType | None) -> None:
        if self._is_timed:
            raise _OutOfTime


if __name__ == "__main__":
    main()
