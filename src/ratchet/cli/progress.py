"""A bar for work that reports how far it is: on a terminal alone, nothing in a pipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn


@contextmanager
def bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Give a function of (what is done, how much of it, of how much) that moves a bar."""
    progress = Progress(
        TextColumn("{task.description}"),
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
