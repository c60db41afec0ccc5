"""The process in which expressions are parsed and compared: on what a policy writes, sympy may hang, swell or die.

It reads one JSON line per answer from standard input and writes one per finding, in order, nothing else. It never
decides when to give up: its pool (``math_pool``) kills it. What limits it here is memory, and its own life: it ends
at the end of its input, when the process that started it is gone, or when an answer has used more processor time than
it was given, so that it cannot be left behind. It opens no network connection and writes no file.

Death of the parent is watched by polling the parent's id, not by PR_SET_PDEATHSIG: that signal comes when the
*thread* that started the process ends, and verifiers are called from short-lived threads.
"""

import json
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

Find = Callable[[str, str, bool], dict[str, Any]]

_PARENT_CHECK_SECONDS = 0.5
# sympy and math_verify catch MemoryError and go on, which would make "no" out of "unknown". So an answer that took this
# part of the memory was out of memory, whatever came of it. Address space runs ahead of resident memory: not more than
# a quarter, or the limit on the former would come first.
_SWOLLEN_FRACTION = 0.25
_WARM_UP = (r"\boxed{(x+1)^2+\frac{\sqrt{2}}{2}}", r"x^2+2x+1+2^{-1/2}")
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


def main(memory_bytes: int, parent: int) -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the parent decides what it means
    answers, findings = _protocol()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    try:
        from ratchet.verifiers import math_equality  # here, so that a failed import is reported and not a silent death

        # The first expressions load half of sympy: that is not charged to an answer's time.
        math_equality.find(*_WARM_UP, False)
    except Exception as error:  # a broken installation or too little memory: the pool logs which
        _write(findings, {"error": f"{type(error).__name__}: {error}"})
        return
    _write(findings, {"ready": True})
    serve(math_equality.find, answers, findings, memory_bytes=memory_bytes)


def serve(find: Find, answers: Iterable[bytes], findings: BinaryIO, *, memory_bytes: int) -> None:
    """Write a finding for each answer."""
    swollen_bytes = _peak_bytes() + _SWOLLEN_FRACTION * (memory_bytes - _peak_bytes())
    for line in answers:
        finding = _guarded(find, json.loads(line))
        if _peak_bytes() > swollen_bytes:
            finding = {**(finding if finding.get("is_correct") else {"failure": "memory"}), "retire": True}
        _write(findings, finding)


def _peak_bytes() -> float:
    """The most resident memory this process has had.

    On Linux ``ru_maxrss`` would not do: it starts at what the parent held when it started this process, which may be
    a whole model, and then does not move.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(float(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES)


def _guarded(find: Find, answer: dict[str, Any]) -> dict[str, Any]:
    """The finding on one answer, whatever happens."""
    _limit_processor_seconds(answer["limit_seconds"])
    try:
        return find(answer["text"], answer["ground_truth"], answer["require_boxed"])
    except MemoryError:
        return {"failure": "memory", "retire": True}
    except Exception:  # nothing here may end the loop; the answer is counted as failed, which is visible
        return {"failure": "execution"}


def _protocol() -> tuple[BinaryIO, BinaryIO]:
    """Keep standard input and output for the protocol; whatever a library prints goes nowhere."""
    answers, findings = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    return answers, findings


def _write(findings: BinaryIO, finding: dict[str, Any]) -> None:
    try:
        findings.write(json.dumps(finding).encode() + b"\n")
    except OSError:  # nobody reads any more
        sys.exit(0)


def _limit_processor_seconds(seconds: float) -> None:
    """Let the kernel end this process if one answer computes on and on after its pool is gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(0)
