"""``ratchet data add | list | show | check``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ratchet.cli import EXIT_SETTING
from ratchet.cli.flags import SettingsCommand, given
from ratchet.cli.grade_commands import config_option, verifier_settings
from ratchet.cli.train_commands import json_option


def data() -> click.Command:
    """Return the group."""
    return click.Group(
        "data",
        help="Add datasets, list them, look at their rows, check them.",
        commands=[_add_command(), _list_command(), _show_command(), _check_command()],
    )


def _add_command() -> click.Command:
    return click.Command(
        "add",
        callback=_add,
        help="Read SOURCE, a file (JSONL, CSV, TSV, Parquet), a folder of train, validation and test files, or a hub "
        "id, and keep it as the next version of a dataset. Rows hold messages; or prompt and ground_truth (answer, "
        "solution); or prompt, chosen and rejected.",
        params=[
            click.Argument(["source"]),
            click.Option(["--name"], required=True, help="Name of the dataset."),
            click.Option(
                ["--map", "mapped"],
                multiple=True,
                metavar="OURS=THEIRS",
                help="What a column is called in the source, such as prompt=question. Can be repeated.",
            ),
            click.Option(
                ["--split", "splits"],
                multiple=True,
                metavar="OURS=THEIRS",
                help="What a split is called in a folder or hub dataset, such as validation=dev. Can be repeated.",
            ),
            click.Option(
                ["--set-aside", "aside"],
                multiple=True,
                type=click.Choice(["validation", "test"]),
                help="Draw a split that the source lacks from its train rows: a tenth, at most 1,000. Can be repeated.",
            ),
            click.Option(["--config"], help="Configuration of a hub dataset, or the folder's part of that name."),
            click.Option(["--revision"], help="Branch, tag or commit of a hub dataset; the newest by default."),
            click.Option(
                ["--seed"],
                type=click.IntRange(min=0, max=2**31 - 1),
                default=0,
                show_default=True,
                help="Decides which rows go to which split where the source gives none.",
            ),
            json_option(),
        ],
    )


def _list_command() -> click.Command:
    return click.Command("list", callback=_list, help="List all versions of all datasets.", params=[json_option()])


def _show_command() -> click.Command:
    return click.Command(
        "show",
        callback=_show,
        help="Show NAME or NAME@VERSION: sizes, columns, hash, how long its texts are, and its first rows.",
        params=[
            click.Argument(["reference"], metavar="NAME[@VERSION]"),
            click.Option(
                ["--rows"], type=click.IntRange(min=0, max=1000), default=3, show_default=True, help="Rows per split."
            ),
            json_option(),
        ],
    )


def _check_command() -> click.Command:
    return SettingsCommand(
        "check",
        callback=_check,
        settings=("verifier", "reward"),
        further_names={"verifier.kind": "--verifier"},
        help="Check whether NAME or NAME@VERSION can be trained on and scored with a verifier: every ground truth can "
        "be graded, and no prompt is in two splits.",
        params=[
            click.Argument(["reference"], metavar="NAME[@VERSION]"),
            config_option(),
            json_option(),
        ],
        context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    )


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Return texts like KEY=VALUE as a mapping.

    Raises:
        click.UsageError: one is not like that, or a key comes twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals or not value:
            raise click.UsageError(f"{option} is {text!r}; write it as KEY=VALUE.")
        if key in found:
            raise click.UsageError(f"{option} gives {key} twice. Leave one of them out.")
        found[key] = value
    return found


def _add(
    source: str,
    name: str,
    mapped: Sequence[str],
    splits: Sequence[str],
    as_json: bool,
    **chosen: Any,
) -> None:
    from ratchet.cli.console import console_for
    from ratchet.cli.progress import bar
    from ratchet.datasets.importing import ImportSettings
    from ratchet.datasets.tables import SPLITS, Wanted
    from ratchet.service.data import datasets

    named = pairs(splits, "--split")
    if unknown := next((ours for ours in named if ours not in SPLITS), None):
        raise click.UsageError(f"--split names {unknown}; our splits are {', '.join(SPLITS)}.")
    settings = ImportSettings(
        columns=pairs(mapped, "--map"),
        wanted=Wanted(chosen["config"], chosen["revision"], named),
        aside=tuple(chosen["aside"]),
        seed=chosen["seed"],
    )
    console = console_for(as_json)
    with bar(console) as moved:
        added = datasets.add(source, name, settings, moved)
    if as_json:
        click.echo(json.dumps(_fields(added)))
        return
    from rich.markup import escape

    kept = "Added" if added.is_new else "Already there:"
    console.print(f"{kept} [bold]{added.name}@{added.version}[/bold]  {_sizes(added.rows)}")
    for note in added.notes:
        console.print(f"[yellow]Note:[/yellow] {escape(note)}")


def _list(as_json: bool) -> None:
    from ratchet.service.data import datasets

    found = datasets.list_datasets()
    if as_json:
        click.echo(json.dumps({"datasets": [_fields(one) for one in found]}))
        return
    if not found:
        click.echo("No datasets yet. Add one with ratchet data add.")
        return
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from ratchet.cli.console import console_for

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("dataset", "format", "train", "validation", "test", "content", "created", "from"):
        table.add_column(column, no_wrap=column != "from", overflow="fold")
    for one in found:
        sizes = [f"{one.rows[split]:,}" for split in ("train", "validation", "test")]
        created = f"{one.created_at:%Y-%m-%d %H:%M}"
        cells = [f"{one.name}@{one.version}", one.format, *sizes, one.content_hash[:12], created, one.origin]
        table.add_row(*map(escape, cells))
    console_for(as_json).print(table)


def _show(reference: str, rows: int, as_json: bool) -> None:
    from ratchet.service.data import datasets

    details = datasets.show(reference, rows)
    if as_json:
        splits = {name: split.model_dump() for name, split in details.splits.items()}
        preview = {name: list(found) for name, found in details.preview.items()}
        click.echo(json.dumps({**_fields(details.summary), "splits": splits, "preview": preview}))
        return
    from ratchet.cli.console import console_for
    from ratchet.cli.run_output import print_dataset

    print_dataset(console_for(as_json), details)


def _check(reference: str, config: Path | None, as_json: bool, **parameters: Any) -> int:
    from ratchet.cli.console import console_for
    from ratchet.service.data import datasets

    checked = datasets.check(reference, verifier_settings(config, given(parameters)))
    if as_json:
        problems, warnings = list(checked.problems), list(checked.warnings)
        fields = {"name": checked.name, "version": checked.version, "verifier": checked.verifier}
        click.echo(json.dumps({**fields, "problems": problems, "warnings": warnings}))
    else:
        from rich.markup import escape

        console = console_for(as_json)
        for warning in checked.warnings:
            console.print(f"[yellow]Note:[/yellow] {escape(warning)}")
        for problem in checked.problems:
            console.print(f"[red]Problem:[/red] {escape(problem)}")
        verdict = "has problems" if checked.problems else "is fit"
        console.print(f"{checked.name}@{checked.version} {verdict} with the verifier {checked.verifier}.")
    return EXIT_SETTING if checked.problems else 0


def _sizes(rows: Any) -> str:
    return ", ".join(f"{split} {rows[split]:,}" for split in ("train", "validation", "test"))


def _fields(summary: Any) -> dict[str, Any]:
    """Return what machines are told of a version."""
    return {
        "name": summary.name,
        "version": summary.version,
        "content_hash": summary.content_hash,
        "format": summary.format,
        "column_map": dict(summary.column_map),
        "origin": summary.origin,
        "rows": dict(summary.rows),
        "seed": summary.seed,
        "created_at": summary.created_at.isoformat(timespec="seconds"),
        "notes": list(summary.notes),
        "is_new": summary.is_new,
    }
