"""``ratchet runs rounds``: the rounds of a run as a table, newest first, and as a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ratchet.cli import tell
from ratchet.cli.train_commands import json_option
from ratchet.run.records import RoundRecord


def rounds() -> click.Command:
    """Return ``runs rounds``."""
    return click.Command(
        "rounds",
        callback=_rounds,
        help="Show a run's rounds, newest first: reward (of sampled answers, not held out), validation, from how many "
        "prompts it learned, what was cut off, unparseable or failed, and where the time went.",
        params=[
            click.Argument(["run_or_folder"]),
            click.Option(["--csv", "as_csv"], is_flag=True, help="Print CSV, oldest round first."),
            click.Option(
                ["--export"],
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Write the history to FILE: .csv, .json or .parquet.",
            ),
            json_option(),
        ],
    )


def _rounds(run_or_folder: str, as_csv: bool, export: Path | None, as_json: bool) -> None:
    from ratchet import service
    from ratchet.service.runs import round_history

    summary = service.summary(run_or_folder)
    if export is not None:
        round_history.export_history(summary.records, export)
    if as_json:
        rows = [round_history.history_row(record) for record in reversed(summary.records)]
        tell(json.dumps({"run": summary.run, "status": summary.status, "rounds": rows}))
        return
    if as_csv:
        click.echo(round_history.as_csv(summary.records), nl=False)
        return
    from ratchet.cli.console import console_for

    console = console_for(as_json=False)
    if not summary.records:
        console.print(f"Run {summary.run} has no finished round yet.")
        return
    console.print(_table(summary.records))
    console.print("* kept; learns from: prompts whose answers scored differently")
    console.print("unread: answers that could not be parsed; failed: the metric failed on them")
    console.print("last column: seconds of sampling, grading after it, update and validation")
    if export is not None:
        console.print(f"Written to {export}")


def _table(records: Sequence[RoundRecord]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    with_loss = any(record.validation.loss is not None for record in records)
    # Two lines of names: everything must fit 80 characters.
    columns = ["\nround", "\nreward", "valid-\nation", "learns\nfrom", "cut\noff", "un-\nread", "fai-\nled"]
    columns += ["to-\nkens", "sec-\nonds", "sampling grading\nupdate checking"]
    if with_loss:
        columns.insert(3, "\nloss")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1), collapse_padding=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    kept = records[-1].best_round
    for record in reversed(records):
        cells = _cells(record, is_kept=record.round == kept)
        if with_loss:
            loss = record.validation.loss
            cells.insert(3, "" if loss is None else f"{loss:.3f}")
        table.add_row(*cells, style="bold" if record.round == kept else None)
    return table


def _cells(record: RoundRecord, *, is_kept: bool) -> list[str]:
    seconds, accuracy = record.seconds, record.validation.accuracy
    cells = [f"{record.round}{' *' if is_kept else ''}"]
    cells += ["" if record.reward is None else f"{record.reward:.3f}", "" if accuracy is None else f"{accuracy:.1%}"]
    if record.groups:
        cells += [
            f"{record.informative_groups}/{record.groups}",
            str(record.outcomes.get("cut_off", 0)),
            str(record.outcomes.get("unparseable", 0)),
            str(sum(record.failures.values())),
            "" if record.answer_tokens is None else f"{record.answer_tokens:.0f}",
        ]
    else:
        cells += [""] * 5
    split = (seconds.sampling, seconds.grading, seconds.update, seconds.validation)
    return [*cells, _seconds(seconds.total), " ".join(map(_seconds, split))]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"
