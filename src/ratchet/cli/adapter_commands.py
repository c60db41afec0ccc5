"""``ratchet adapters list | show``."""

import json
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli.train_commands import json_option

if TYPE_CHECKING:
    from ratchet.service.adapters.adapter_catalogue import Adapter

_DIGITS = 12


def adapters() -> click.Command:
    """Return the group."""
    return click.Group(
        "adapters",
        help="List the adapters of finished runs, show one and check that it is whole.",
        commands=[
            click.Command(
                "list", callback=_list, help="List all adapters, newest last; trials have none.", params=[json_option()]
            ),
            click.Command(
                "show",
                callback=_show,
                help="Show the adapter of a run, and check that its files are what the run ended with.",
                params=[click.Argument(["run_or_folder"]), json_option()],
            ),
        ],
    )


def _list(as_json: bool) -> None:
    from ratchet.service.adapters.adapter_catalogue import list_adapters

    found = list_adapters()
    if as_json:
        click.echo(json.dumps({"adapters": [_fields(one) for one in found]}))
        return
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from ratchet.cli.console import console_for

    if not found:
        click.echo("No adapters yet. A run that ends after its round 0 keeps one: start with ratchet demo.")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("run", "objective", "base model", "revision", "round", "score", "sha256", "folder"):
        table.add_column(column, no_wrap=column != "folder", overflow="fold")
    for one in found:
        origin = one.origin
        cells = [one.run, origin.objective, one.model, _short(one.identity), str(origin.round), _score(one)]
        table.add_row(*map(escape, [*cells, origin.sha256[:_DIGITS], str(one.folder)]))
    console_for(as_json).print(table)


def _show(run_or_folder: str, as_json: bool) -> None:
    from ratchet.service.adapters.adapter_catalogue import show_adapter

    adapter, files = show_adapter(run_or_folder)
    if as_json:
        click.echo(json.dumps({**_fields(adapter), "layers": len(files.pairs()), "is_whole": True}))
        return
    from rich.markup import escape

    from ratchet.cli.console import console_for

    console = console_for(as_json)
    origin = adapter.origin
    rows = {
        "Adapter of run": f"{adapter.run} ({origin.objective}), which ended {adapter.ended_at}",
        "Folder": str(adapter.folder),
        "Base model": adapter.model,
        "Revision": adapter.identity,
        "Round": f"{origin.round}{' (the starting adapter)' if origin.round == 0 else ''}",
        "Score": f"{_score(adapter)} on its run's validation sample",
        "Size": f"rank {adapter.rank}, alpha {adapter.alpha}, on {len(files.pairs())} layers",
        "Checksum": f"sha256 {files.sha256}, as the run ended with",
    }
    for label, value in rows.items():
        console.print(f"[bold]{label:<15}[/bold] {escape(value)}")
    for number, one in enumerate(origin.start.line() if origin.start else ()):
        console.print(f"[bold]{'' if number else 'Starts':<15}[/bold] from {escape(one.words)}")
    console.print(f"Go on from it: ratchet train CONFIG --start-from {adapter.run}")


def _short(identity: str) -> str:
    return identity.removeprefix("sha256:")[:_DIGITS]


def _score(adapter: "Adapter") -> str:
    accuracy = adapter.origin.accuracy
    return "" if accuracy is None else f"{accuracy:.1%}"


def _fields(adapter: "Adapter") -> dict[str, Any]:
    return {
        "run": adapter.run,
        "folder": str(adapter.folder),
        "ended_at": adapter.ended_at,
        "base_model": adapter.model,
        "revision": adapter.identity,
        "rank": adapter.rank,
        "alpha": adapter.alpha,
        **adapter.origin.model_dump(mode="json", include={"objective", "round", "accuracy", "sha256", "start"}),
    }
