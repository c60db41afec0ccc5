"""Inside the sandbox: loads one metric once and forks a child for each answer. Standard library only.

It is handed into the sandbox as a file and runs there under the system's Python, which may be older than the trainer's
(3.11 or newer). Nothing else of Ratchet is there. The host trusts none of what it says beyond the form of a score.

    host            asks, checks the form of every reply, ends all of this when a reply is late
    this process    trusted until it has loaded the metric; afterwards the metric's author may decide every score
    child           holds one answer, which may have been written to deceive; its result goes through a pipe of its own,
                    and the number of the answer is added here, so that it cannot speak for another answer

Each child starts from the metric as it was loaded, so no answer sees what another left behind. It can start neither
process nor thread, and finds no other descriptor than its own. What it prints is counted and thrown away. A failure is
reported by its kind, the class of the exception and the line of the metric: never by the exception's own words, which
may hold the answer, be 100 MB long, or never end.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import select
import signal
import sys
import time
from types import CodeType, ModuleType

TYPE_CHECKING = False  # loading ``typing`` would make every fork dearer
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO, NoReturn

PACKAGES = "/pkgs"
_RESULT = 3
_OUTPUT_BYTES = 65_536
_RESULT_BYTES = 4096
_DETAIL_CHARACTERS = 300
_NAME_CHARACTERS = 60
_SIGNATURE_CHARACTERS = 100
_PATTERN_CHARACTERS = 200
_PATTERN_SIGNS = frozenset("\\[(*+?|^$.")
_SOURCE_NAME = "<metric>"
_MODULE_NAME = "metric"
# Taken before any metric can put something else in their places.
_FLOAT, _INT = float, int

Finding = dict[str, object]


class Refused(Exception):
    """The metric cannot be used. Its text completes "it is refused because ..."."""


def main() -> None:
    """Serve until the input ends."""
    import ctypes

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which for the first process of a namespace means: nothing
    requests, replies = _protocol()
    set_dumpable = 4  # no other process is to look into this one, whatever else is in the way already
    ctypes.CDLL(None).prctl(set_dumpable, 0, 0, 0, 0)
    _reply(replies, {"hello": True})
    start = json.loads(requests.readline())
    if start["check"]:
        finding = in_child(lambda: check(start["source"]), start["load_seconds"])
        _reply(replies, {"checked": _as_refusal(finding, start["load_seconds"])})
    if os.path.isdir(PACKAGES):
        sys.path.append(PACKAGES)
    try:
        code = _compiled(start["source"])
        score = _loaded(code).score
    except BaseException as error:
        _reply(replies, {"loaded": False, "detail": f"loading it raised {_what_was_raised(error)}"})
        return
    _compile_patterns(code)
    # What loading may have set in the way of children; and they are not to copy what they only look at.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    gc.collect()
    gc.freeze()
    _reply(replies, {"loaded": True})
    seconds = start["answer_seconds"]
    for line in requests:
        request = json.loads(line)
        if "ping" in request:
            _reply(replies, {"pong": request["ping"]})
            continue
        answer, reference = request["answer"], request["reference"]
        finding = in_child(lambda: score(answer, reference), seconds)  # noqa: B023 - called within this turn
        _reply(replies, {"batch": request["batch"], "index": request["index"], **finding})


def _protocol() -> tuple[BinaryIO, BinaryIO]:
    """Keep standard input and output for the protocol; the metric gets /dev/null in their places."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    return requests, replies


def _reply(replies: BinaryIO, message: Finding) -> None:
    replies.write(json.dumps(message).encode() + b"\n")


def _compiled(source: str) -> CodeType:
    return compile(source, _SOURCE_NAME, "exec", dont_inherit=True)


def _loaded(code: CodeType) -> ModuleType:
    """Run the metric's module. Dataclasses and pickle look for it by its name."""
    module = ModuleType(_MODULE_NAME)
    sys.modules[_MODULE_NAME] = module
    exec(code, module.__dict__)  # the very thing this sandbox is for
    return module


def _compile_patterns(code: CodeType) -> None:
    """Fill the cache of ``re`` with what the metric will ask for, or every child would compile it again (0.5 ms each).

    Which of its texts are patterns is not known; those that are none cost a moment, or are no valid ones.
    """
    if "re" not in sys.modules:
        return
    import re
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for text in _texts(code):
            if len(text) <= _PATTERN_CHARACTERS and not _PATTERN_SIGNS.isdisjoint(text):
                try:
                    re.compile(text)
                except (re.error, OverflowError, RecursionError):
                    continue


def _texts(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _texts(constant)


def in_child(work: Callable[[], object], seconds: float) -> Finding:
    """Run ``work`` in a child; return ``{"value": number}`` or ``{"failure": kind, "detail": text}``."""
    read_result, write_result = os.pipe()
    read_output, write_output = os.pipe()
    child = os.fork()
    if child == 0:
        _as_child(work, write_result, write_output, seconds)
    os.close(write_result)
    os.close(write_output)
    try:
        return _followed(child, read_result, read_output, seconds)
    finally:
        os.close(read_result)
        os.close(read_output)


def _as_child(work: Callable[[], object], write_result: int, write_output: int, seconds: float) -> NoReturn:
    try:
        os.dup2(write_output, 1)
        os.dup2(write_output, 2)
        os.dup2(write_result, _RESULT)
        os.closerange(_RESULT + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        # The wall clock is watched from outside; this one still counts when whoever watches was stopped.
        processor_seconds = math.ceil(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (processor_seconds, processor_seconds))
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        line = _line_of(work())
        if sys.stdout:
            sys.stdout.flush()
    except MemoryError:
        line = b"failure memory\n"  # ready-made: there may be no room to make one
    except Refused as refused:
        line = _failure("load", str(refused))
    except BaseException as error:
        line = _failure("execution", _what_was_raised(error))
    try:
        os.write(_RESULT, line)
    finally:
        os._exit(0)


def _failure(kind: str, detail: str) -> bytes:
    return f"failure {kind} {' '.join(detail[:_DETAIL_CHARACTERS].split())}\n".encode(errors="replace")


def _line_of(value: object) -> bytes:
    """The line that tells a score: a plain int or float in 0..1, or a scalar of numpy's in their places."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.floating | numpy.integer):
        value = value.item()
    if type(value) is not _FLOAT and type(value) is not _INT:
        return _failure("result", f"score returned {_class_name(value)}, not a number from 0 to 1")
    if not 0 <= value <= 1:
        is_short = type(value) is _FLOAT or -(10**9) < value < 10**9
        shown = f"{value!r}" if is_short else "a huge number"
        return _failure("result", f"score returned {shown}, not a number from 0 to 1")
    return f"value {value!r}\n".encode()


def _what_was_raised(error: BaseException) -> str:
    """The exception's class and where in the metric it came from."""
    where, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _SOURCE_NAME:
            where = f" on line {trace.tb_lineno} of the metric"
        trace = trace.tb_next
    return f"{_class_name(error)}{where}"


def _class_name(of: object) -> str:
    """The name of its class, or "an object" where that is no plain name: it may have been made of the answer."""
    name = type(of).__name__
    return name if name.isascii() and name.isidentifier() and len(name) <= _NAME_CHARACTERS else "an object"


def _followed(child: int, result: int, output: int, seconds: float) -> Finding:
    """Follow a child to its end, which comes when its result is there or its time is over; return the finding."""
    deadline = time.monotonic() + seconds
    waiting = select.poll()
    waiting.register(result, select.POLLIN)
    waiting.register(output, select.POLLIN)
    said, printed, is_over, failure = b"", 0, False, ""
    while not is_over and not failure:
        left = deadline - time.monotonic()
        ready = waiting.poll(max(0.0, left) * 1000)
        for descriptor, _ in ready:
            piece = os.read(descriptor, _OUTPUT_BYTES)
            if descriptor == result:
                said += piece
                is_over = not piece or len(said) > _RESULT_BYTES
            elif piece:
                printed += len(piece)
            else:
                waiting.unregister(output)
        if printed > _OUTPUT_BYTES:
            failure = "output"
        elif not ready and left <= 0:
            failure = "time"
    status, usage = _ended(child)
    if not failure and printed + _waiting_bytes(output) > _OUTPUT_BYTES:
        failure = "output"
    if failure:
        return {"failure": failure, "detail": ""}
    return _reported(said) or _died(status, usage, seconds, nothing_said=not said)


def _ended(child: int) -> tuple[int, resource.struct_rusage | None]:
    """End the child if it still runs, and reap it. One that closed its result has nothing more to say."""
    os.kill(child, signal.SIGKILL)
    try:
        _, status, usage = os.wait4(child, 0)
    except ChildProcessError:  # the metric had children reaped by the system
        return 0, None
    return status, usage


def _waiting_bytes(output: int) -> int:
    os.set_blocking(output, False)
    try:
        return len(os.read(output, 2 * _OUTPUT_BYTES))
    except BlockingIOError:
        return 0


def _reported(said: bytes) -> Finding | None:
    """What a child's one line says, None if it is anything but one line of the protocol."""
    if len(said) > _RESULT_BYTES or said.count(b"\n") != 1 or not said.endswith(b"\n"):
        return None
    word, _, rest = said[:-1].decode(errors="replace").partition(" ")
    if word == "failure":
        kind, _, detail = rest.partition(" ")
        return {"failure": kind, "detail": detail[:_DETAIL_CHARACTERS]}
    if word != "value":
        return None
    try:
        value = _FLOAT(rest)
    except ValueError:
        return None
    return {"value": value} if 0 <= value <= 1 else None


def _died(status: int, usage: resource.struct_rusage | None, seconds: float, *, nothing_said: bool) -> Finding:
    """The failure of a child that left no valid result."""
    if not nothing_said:
        return {"failure": "result", "detail": "something else than one score was written as the result"}
    processor_seconds = usage.ru_utime + usage.ru_stime if usage else 0.0
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in (signal.SIGKILL, signal.SIGXCPU) and processor_seconds >= math.ceil(seconds) - 0.1:
            return {"failure": "time", "detail": ""}
        if number != signal.SIGKILL:
            return {"failure": "execution", "detail": f"the process was ended by signal {number}"}
    return {"failure": "execution", "detail": "the process ended early"}


def check(source: str) -> float:
    """Load the metric as ``main`` will, and look at its function; return 1.

    Raises:
        Refused: it cannot be used; its text says why.
    """
    if os.path.isdir(PACKAGES):
        sys.path.append(PACKAGES)
    try:
        code = _compiled(source)
    except (SyntaxError, ValueError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        words = error.msg if isinstance(error, SyntaxError) else str(error)
        raise Refused(f"it does not compile: {line}{words}") from None
    try:
        module = _loaded(code)
    except MemoryError:
        raise
    except ModuleNotFoundError as error:
        raise Refused(
            f"it needs the module {str(error.name)[:_SIGNATURE_CHARACTERS]}, which is not there; put packages for "
            "metrics into the folder that RATCHET_METRIC_ENV names"
        ) from None
    except BaseException as error:
        # These are the author's own words, before any answer was seen; the child's limits hold for them too.
        words = str(error)[:_DETAIL_CHARACTERS]
        raise Refused(f"loading it raised {_what_was_raised(error)}" + (f": {words}" if words else "")) from None
    _check_function(module.__dict__.get("score"))
    return 1.0


def _check_function(score: object) -> None:
    import inspect

    if score is None:
        raise Refused("it has no function score(answer, reference)")
    if not callable(score):
        raise Refused(f"its score is {type(score).__name__}, not a function of (answer, reference)")
    call = score if inspect.isroutine(score) else type(score).__call__
    if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
        raise Refused("its score is async; make it a plain function that returns a number")
    if inspect.isgeneratorfunction(call):
        raise Refused("its score yields; make it a plain function that returns a number")
    try:
        signature = inspect.signature(score)
    except (TypeError, ValueError):
        return  # of a built-in function that does not tell: the trial on a ground truth will
    try:
        signature.bind("", "")
    except TypeError:
        shown = str(signature)[:_SIGNATURE_CHARACTERS]
        raise Refused(f"its score{shown} cannot be called with (answer, reference)") from None


def _as_refusal(finding: Finding, seconds: float) -> str | None:
    """Why the metric is refused, None if it is not."""
    if "value" in finding:
        return None
    match finding["failure"]:
        case "time":
            return f"it took longer than {seconds:g} s to load"
        case "memory":
            return "loading it took more memory than a metric may have"
        case "output":
            return f"it printed more than {_OUTPUT_BYTES // 1024} KB while loading"
        case "result":
            return "it wrote where only results go while loading"
        case "execution":
            return f"while loading it, {finding['detail']}"
        case _:
            return str(finding["detail"])


if __name__ == "__main__":
    main()
