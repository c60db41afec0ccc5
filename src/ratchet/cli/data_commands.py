"""``ratchet data add | list | show | check``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ratchet.cli.faults import EXIT_SETTING
from ratchet.cli.options import (
    VERIFIER_FLAGS,
    SettingsCommand,
    config_option,
    json_option,
    pairs,
    verifier_settings,
)
from ratchet.cli.output import console_for, emit, excerpt, note, plain, print_fields, progress_bar, table
from ratchet.cli.run_output import ANSWER_CHARACTERS, PROMPT_CHARACTERS
from ratchet.datasets.importing import ImportSettings
from ratchet.datasets.tables import SPLITS, Wanted
from ratchet.service.data import datasets
from ratchet.service.data.datasets import DatasetDetails

_DIGITS = 12
_reference = click.argument("reference", metavar="NAME[@VERSION]")


@click.group
def data() -> None:
    """Add, list, show and check datasets."""


@data.command
@click.argument("source")
@click.option("--name", required=True, help="Name of the dataset.")
@click.option(
    "--map",
    "mapped",
    multiple=True,
    metavar="OURS=THEIRS",
    help="Name of a column in the source, such as prompt=question. Repeatable.",
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    metavar="OURS=THEIRS",
    help="Name of a split in a folder or hub dataset, such as validation=dev. Repeatable.",
)
@click.option(
    "--set-aside",
    "aside",
    multiple=True,
    type=click.Choice(["validation", "test"]),
    help="Draw a split that the source lacks from its train rows: a tenth, at most 1,000. Repeatable.",
)
@click.option("--config", help="Configuration of a hub dataset, or the folder's part of that name.")
@click.option("--revision", help="Branch, tag or commit of a hub dataset; the newest by default.")
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**31 - 1),
    default=0,
    show_default=True,
    help="Decides which rows go to which split where the source has none.",
)
@json_option
def add(
    source: str,
    name: str,
    mapped: Sequence[str],
    splits: Sequence[str],
    aside: Sequence[str],
    as_json: bool,
    **chosen: Any,
) -> None:
    """Read SOURCE and store it as the next version of a dataset.

    SOURCE is a file (JSONL, CSV, TSV, Parquet), a folder of train, validation and test files, or a hub id. Rows hold
    messages; or prompt and ground_truth (answer, solution); or prompt, chosen and rejected.
    """
    named = pairs(splits, "--split")
    if unknown := next((ours for ours in named if ours not in SPLITS), None):
        raise click.UsageError(f"--split names {unknown}; our splits are {', '.join(SPLITS)}.")
    settings = ImportSettings(
        columns=pairs(mapped, "--map"),
        wanted=Wanted(chosen["config"], chosen["revision"], named),
        aside=tuple(aside),
        seed=chosen["seed"],
    )
    with progress_bar(console_for(as_json)) as moved:
        added = datasets.add(source, name, settings, moved)

    def print_all(console: Console) -> None:
        sizes = ", ".join(f"{split} {added.rows[split]:,}" for split in SPLITS)
        verb = "Added" if added.is_new else "Already there:"
        console.print(Text.assemble(f"{verb} ", (f"{added.name}@{added.version}", "bold"), f"  {sizes}"))
        for text in added.notes:
            note(console, text)

    emit(as_json, _fields(added), print_all)


@data.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List all versions of all datasets."""
    found = datasets.list_datasets()
    rows = []
    for one in found:
        sizes = [f"{one.rows[split]:,}" for split in SPLITS]
        created = f"{one.created_at:%Y-%m-%d %H:%M}"
        rows.append([f"{one.name}@{one.version}", one.format, *sizes, one.content_hash[:_DIGITS], created, one.origin])
    columns = ("dataset", "format", *SPLITS, "content", "created", "from")
    none = "No datasets yet. Add one with ratchet data add."
    shown = table(*columns, rows=rows, folding=("from",)) if found else none
    emit(as_json, {"datasets": [_fields(one) for one in found]}, shown)


@data.command
@_reference
@click.option("--rows", type=click.IntRange(min=0, max=1000), default=3, show_default=True, help="Rows per split.")
@json_option
def show(reference: str, rows: int, as_json: bool) -> None:
    """Show NAME or NAME@VERSION: sizes, columns, hash, lengths of its texts, and its first rows."""
    details = datasets.show(reference, rows)
    splits = {name: split.model_dump() for name, split in details.splits.items()}
    preview = {name: list(found) for name, found in details.preview.items()}
    fields = {**_fields(details.summary), "splits": splits, "preview": preview}
    emit(as_json, fields, lambda console: _print_dataset(console, details))


def _print_dataset(console: Console, details: DatasetDetails) -> None:
    summary = details.summary
    console.print(Text.assemble((f"{summary.name}@{summary.version}", "bold"), f"  {summary.format}"))
    fields = [
        ("Content", summary.content_hash),
        ("Created", f"{summary.created_at:%Y-%m-%d %H:%M} UTC"),
        ("From", summary.origin),
        ("Columns", ", ".join(f"{ours} = {theirs}" for ours, theirs in summary.column_map.items())),
        ("Splits", "as given" if summary.seed is None else f"drawn by seed {summary.seed}"),
    ]
    print_fields(console, [*fields, *(("Note", text) for text in summary.notes)], 8)
    rows = []
    for split, record in details.splits.items():
        lengths = (record.prompt.median, record.prompt.longest, record.ground_truth.median, record.ground_truth.longest)
        rows.append([split, f"{record.rows:,}", *(f"{length:,}" for length in lengths)])
    columns = ("characters", "rows", "of prompts: median", "longest", "of ground truths: median", "longest")
    console.print(table(*columns, rows=rows, left=("characters",)))
    for split, found in details.preview.items():
        for row in found:
            console.print(plain(f"{split}, row {row['row']}", "bold"))
            texts = [(message["role"], message["content"], PROMPT_CHARACTERS) for message in row["prompt"]]
            for label, name in (("reference", "ground_truth"), ("rejected", "rejected")):
                texts += [(label, row[name], ANSWER_CHARACTERS)] if name in row else []
            for label, text, limit in texts:
                console.print(plain(f"  {label:<9}  ") + excerpt(text, limit))


@data.command(cls=SettingsCommand, **VERIFIER_FLAGS)
@_reference
@config_option
@json_option
def check(reference: str, config: Path | None, as_json: bool, flags: dict[str, str]) -> int:
    """Check whether NAME or NAME@VERSION can be trained on and scored with a verifier.

    Every ground truth must be gradable, and no prompt may appear in two splits.
    """
    from ratchet.service.verification.grade_rows import check_dataset  # loads verifiers and readiness checks

    checked = check_dataset(reference, verifier_settings(config, flags))

    def print_all(console: Console) -> None:
        for text in checked.warnings:
            note(console, text)
        for text in checked.problems:
            note(console, text, "Problem:", "red")
        verdict = "has problems" if checked.problems else "is fit"
        console.print(f"{checked.name}@{checked.version} {verdict} with the verifier {checked.verifier}.")

    fields = {"name": checked.name, "version": checked.version, "verifier": checked.verifier}
    fields_of_check = {**fields, "problems": list(checked.problems), "warnings": list(checked.warnings)}
    emit(as_json, fields_of_check, print_all)
    return EXIT_SETTING if checked.problems else 0


def _fields(summary: Any) -> dict[str, Any]:
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
