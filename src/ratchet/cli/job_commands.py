"""What ``ratchet loop`` and ``ratchet experiment`` have in common: list, show, stop, and following one to its end."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from ratchet.cli import EXIT_TASK, tell
from ratchet.cli.conducting import carry_out, tell_without_keeper
from ratchet.cli.starting import NO_KEEPER
from ratchet.cli.train_commands import json_option

if TYPE_CHECKING:
    from rich.console import Console

Found = TypeVar("Found")


@dataclass(frozen=True)
class Plans(Generic[Found]):
    """Loops, or experiments, as these commands know them.

    Attributes:
        noun: What one of them is called.
        kept: What stays of one that is stopped.
        columns: Of the list, the folding ones in ``folding``; ``cells`` are those of one of them.
        every: Returns all, or those of a project, oldest first.
        is_good: Tells whether one that has ended did what it was for, or what somebody asked of it.
        line: Says how far one is.
        fields: Returns what machines are told.
        write: Writes a page and a chart to where they are asked for.
    """

    noun: str
    kept: str
    columns: Sequence[str]
    folding: Sequence[str]
    cells: Callable[[Found], Sequence[str]]
    find: Callable[[str], Found]
    every: Callable[[str | None], list[Found]]
    stop: Callable[[str], None]
    is_open: Callable[[Found], bool]
    is_good: Callable[[Found], bool]
    line: Callable[[Found], str]
    fields: Callable[[Found], dict[str, Any]]
    show: Callable[["Console", Found], None]
    write: Callable[[Found, Path | None, Path | None], None]


def argument(noun: str) -> click.Argument:
    """Return the argument that names one of them."""
    return click.Argument(["id"], metavar=noun.upper())


def shared_commands(
    noun: str, plans: Callable[[], Plans[Any]], *, show: str, chart: str, stop: str
) -> list[click.Command]:
    """Return the commands list, show and stop.

    Args:
        noun: As in ``Plans``, which nothing is loaded for before a command is called.
        plans: Returns the rest.
        show: What the command of this name does.
        chart: What the option of this name does.
        stop: What the command of this name does.
    """
    return [
        click.Command(
            "list",
            callback=lambda **given: _list(plans(), **given),
            help=f"List {noun}s, newest last.",
            params=[click.Option(["--project"], metavar="LABEL", help="Only this project's."), json_option()],
        ),
        click.Command(
            "show",
            callback=lambda **given: _show(plans(), **given),
            help=show,
            params=[
                argument(noun),
                click.Option(["--report"], type=click.Path(path_type=Path), help="Write a page to this file."),
                click.Option(["--chart"], type=click.Path(path_type=Path), help=chart),
                json_option(),
            ],
        ),
        click.Command(
            "stop",
            callback=lambda **given: _stop(plans(), **given),
            help=stop,
            params=[argument(noun), json_option()],
        ),
    ]


def followed(plans: Plans[Found], id: str, console: "Console", *, queue: bool, as_json: bool) -> int:
    """Follow one to its end, or leave it to the keeper; return the exit code."""
    from ratchet.supervisor import KeeperHome

    if queue:
        if as_json:
            tell(json.dumps(plans.fields(plans.find(id))))
        else:
            tell(f"{plans.noun.capitalize()} {id} is queued.")
            if not KeeperHome().is_held():
                tell(NO_KEEPER)
        return 0
    console.print(f"{plans.noun.capitalize()} {id}", markup=False)
    carry_out(
        id,
        console,
        _resume(plans, id),
        lambda: plans.is_open(plans.find(id)),
        lambda: plans.line(plans.find(id)),
    )
    ended = plans.find(id)
    if as_json:
        tell(json.dumps(plans.fields(ended)))
    else:
        plans.show(console, ended)
    return 0 if plans.is_good(ended) or plans.is_open(ended) else EXIT_TASK


def _resume(plans: Plans[Any], id: str) -> str:
    return f"ratchet {plans.noun} resume {id}"


def _list(plans: Plans[Any], project: str | None, as_json: bool) -> None:
    found = plans.every(project)
    if as_json:
        click.echo(json.dumps({f"{plans.noun}s": [plans.fields(one) for one in found]}))
        return
    if not found:
        none = f"No {plans.noun}s yet. Start one with ratchet {plans.noun} start."
        click.echo(none if project is None else "None.")
        return
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from ratchet.cli.console import console_for

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in plans.columns:
        table.add_column(column, no_wrap=column not in plans.folding, overflow="fold")
    for one in found:
        table.add_row(*map(escape, plans.cells(one)))
    console_for(as_json).print(table)


def _show(plans: Plans[Any], id: str, report: Path | None, chart: Path | None, as_json: bool) -> None:
    from ratchet.cli.console import console_for

    one = plans.find(id)
    console = console_for(as_json)
    if as_json:
        click.echo(json.dumps(plans.fields(one)))
    else:
        plans.show(console, one)
    plans.write(one, report, chart)
    for label, path in (("Report", report), ("Chart", chart)):
        if path is not None:
            console.print(f"{label:<8} {path}", markup=False)


def _stop(plans: Plans[Any], id: str, as_json: bool) -> None:
    plans.stop(id)
    if as_json:
        click.echo(json.dumps({plans.noun: id, "stop": "asked"}))
    else:
        click.echo(f"Asked to stop: what is at work ends in good order, and {plans.kept} is kept.")
        tell_without_keeper(_resume(plans, id))
