"""Where people's output goes, on a terminal and in a pipe. Loads no torch, unlike what follows a run."""

import sys
from typing import Any

from rich.console import Console

from ratchet.cli import silence

# Tables keep their own width in a pipe or a file: nothing there wraps or cuts them.
_PIPED_WIDTH = 1000


def console_for(as_json: bool, *, of_a_run: bool = False) -> Console:
    """Return where people's output goes: stderr when stdout carries JSON. A run's falls silent where it cannot print.

    Of other commands the output is all there is, so that one which cannot print fails.
    """
    stream = sys.stderr if as_json else sys.stdout
    width = None if stream.isatty() else _PIPED_WIDTH
    kind = _RunConsole if of_a_run else Console
    return kind(file=stream, highlight=False, soft_wrap=True, emoji=False, width=width)


class _RunConsole(Console):
    """A console that falls silent once nobody can read it any more: what it shows is not worth a run's end."""

    def on_broken_pipe(self) -> None:
        """Go on in silence, where rich would end the process."""
        self.quiet = True
        silence(self.file)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print, unless there is nowhere to print to: a full disk, a terminal that was closed."""
        try:
            super().print(*args, **kwargs)
        except OSError:
            self.on_broken_pipe()
