"""The one door for what commands print: JSON for machines, or text, tables and a progress bar for people.

No text is markup, and none acts on a terminal: whatever a name, a path or an answer holds, consoles and ``tell``
(``faults``) print what can be seen of it.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ratchet.cli.faults import silence
from ratchet.files import unusable_as_error, write_atomically
from ratchet.run.display import shortened, visible, whole

# Tables keep their own width in a pipe or a file: nothing there wraps or cuts them.
_PIPED_WIDTH = 1000


def console_for(as_json: bool, *, of_a_run: bool = False) -> Console:
    """Console for people: on stderr when stdout carries JSON. A run's falls silent where it cannot print.

    The output of other commands is all they are for, so one that cannot print fails.
    """
    stream = sys.stderr if as_json else sys.stdout
    width = None if stream.isatty() else _PIPED_WIDTH
    kind = _RunConsole if of_a_run else _VisibleConsole
    return kind(file=stream, highlight=False, markup=False, soft_wrap=True, emoji=False, width=width)


class _VisibleConsole(Console):
    """A console whose colours are its own: nothing in a text acts on the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Make segments, in which only rich's own control codes are left."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


class _RunConsole(_VisibleConsole):
    """A console that falls silent once nobody can read it: what it shows is not worth ending a run for."""

    def on_broken_pipe(self) -> None:
        """Continue in silence, where rich would end the process."""
        self.quiet = True
        silence(self.file)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print, unless there is nowhere to print to: a full disk, a terminal that was closed."""
        try:
            super().print(*args, **kwargs)
        except OSError:
            self.on_broken_pipe()


def emit(as_json: bool, fields: Any, shown: str | Table | Callable[[Console], object]) -> None:
    """Print ``fields`` as JSON, or ``shown`` for people: a text, a table, or what prints to the console it is given."""
    if as_json:
        click.echo(json.dumps(fields))
    elif isinstance(shown, str):
        click.echo(visible(shown))
    elif isinstance(shown, Table):
        console_for(as_json).print(shown)
    else:
        shown(console_for(as_json))


def table(
    *columns: str,
    rows: Iterable[Sequence[str | Text]] = (),
    left: Collection[str] | None = None,
    folding: Collection[str] = (),
    bold: int | None = None,
) -> Table:
    """Table of plain texts, narrow: nine columns fit 80 characters.

    Args:
        columns: Titles.
        rows: Cells.
        left: Titles of the columns that are aligned left, the others right; left out, all are.
        folding: Titles of the columns whose long texts break into lines.
        bold: Number of the row in bold.
    """
    made = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in columns:
        justify: Any = "left" if left is None or title in left else "right"
        made.add_column(plain(title), justify=justify, no_wrap=title not in folding, overflow="fold")
    for number, cells in enumerate(rows):
        texts = [plain(cell) if isinstance(cell, str) else cell for cell in cells]
        made.add_row(*texts, style="bold" if number == bold else None)
    return made


def plain(text: str, style: str = "") -> Text:
    """A text in one style."""
    return Text(visible(text), style=style)


def excerpt(text: str, limit: int | None, style: str = "") -> Text:
    """The first ``limit`` characters of a text of a row or a model; None: all of it."""
    return plain(text if limit is None else shortened(text, limit), style)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a sentence; its lines break between words where the console has an end."""
    console.print(plain(text, style), soft_wrap=False)


def note(console: Console, text: str, label: str = "Note:", color: str = "yellow") -> None:
    """Print a note, a warning or a problem."""
    console.print(Text.assemble((label, color), " ", plain(text)), soft_wrap=False)


def print_fields(console: Console, fields: Iterable[tuple[str, str]], width: int) -> None:
    """Print a line for each label and value, the values below each other."""
    for label, value in fields:
        console.print(Text.assemble((f"{label:<{width}} ", "bold"), plain(value)))


def write_page(page: str, path: Path) -> None:
    """Write a page of the user's own texts, readable by them alone.

    Raises:
        Conflict: it cannot be written there.
    """
    with unusable_as_error(path, "Choose another file."):
        write_atomically(path, whole(page).encode(), private=True)


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function of (what is done, how much of it, of how much) that moves a bar; in a pipe nothing is shown."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = progress.add_task("", total=None)

    def moved(what: str, done: int, total: int) -> None:
        progress.update(task, description=what, completed=done, total=total or None)

    with progress:
        yield moved
