"""Exit codes, faults as machines read them, and lines that may be printed to a stream that has been closed.

Exit codes follow the owner of the fault: 0 success, 1 ours, 2 setting or data, 3 wrong state or not found, 4 metric,
machine or task; 130 after a second Ctrl-C.
"""

import os
import sys
from contextlib import suppress
from typing import IO, Any

import click

from ratchet.errors import Conflict, IncompatibleData, InvalidSetting, NotFound, NotReady, RatchetError

EXIT_OURS = 1
EXIT_SETTING = 2
EXIT_STATE = 3
EXIT_TASK = 4
EXIT_INTERRUPTED = 130
_EXIT_CODES: dict[type[RatchetError], int] = {
    InvalidSetting: EXIT_SETTING,
    IncompatibleData: EXIT_SETTING,
    NotFound: EXIT_STATE,
    Conflict: EXIT_STATE,
}


def exit_code(error: RatchetError) -> int:
    """Exit code of a fault; whatever is not in the table is the metric's, the machine's or the task's.

    Of several faults the lowest code wins: wrong settings and data come first.
    """
    if isinstance(error, NotReady):
        return min(map(exit_code, error.faults))
    return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), EXIT_TASK)


def fault(code: str, message: str) -> dict[str, dict[str, Any]]:
    """A fault as JSON output has it."""
    return {"error": {"code": code, "message": message}}


def problems(error: RatchetError) -> list[dict[str, str]]:
    """Every fault that an error stands for: code, dotted key of the setting if it is one, message."""
    faults = error.faults if isinstance(error, NotReady) else (error,)
    return [{"code": one.code, "field": getattr(one, "field", ""), "message": str(one)} for one in faults]


def tell(line: str, *, err: bool = False) -> None:
    """Print what can be seen of a line. A stream that was closed meanwhile changes neither a run nor the exit code."""
    from ratchet.run.display import visible  # not for every --help

    try:
        click.echo(visible(line), err=err)
    except OSError:
        silence(sys.stderr if err else sys.stdout)


def silence(stream: IO[str]) -> None:
    """Discard what is still written to a stream, also what Python flushes as it exits."""
    with suppress(OSError, ValueError):  # not one of the system's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
