"""``ratchet grade``: grade the answers of a JSONL file with a verifier, without a model."""

import json
import sys
from pathlib import Path
from typing import IO, Any

import click

from ratchet.cli.options import VERIFIER_FLAGS, SettingsCommand, config_option, json_option, verifier_settings
from ratchet.datasets.rows import MOST_NAMED_ROWS
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.files import disk_full_as_error
from ratchet.run.display import visible
from ratchet.service.verification.grade_rows import grade_rows


@click.command(cls=SettingsCommand, **VERIFIER_FLAGS)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@config_option
@click.option(
    "--prefilled-think",
    is_flag=True,
    help="The prompts end in an opened <think>, so the tags bonus does not look for it in the answers.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the rows to this file.")
@json_option
def grade(
    file: Path, config: Path | None, prefilled_think: bool, out: Path | None, as_json: bool, flags: dict[str, str]
) -> None:
    """Grade FILE, rows {answer, ground_truth}, and write them with reward, correctness, outcome and parts.

    They go to stdout or --out. - reads stdin. The columns tools, schema and tests go to the verifiers that read them.
    """
    settings = verifier_settings(config, flags)
    graded, counts = grade_rows(_read(file), settings, prefilled_think=prefilled_think)
    text = "".join(json.dumps(row) + "\n" for row in graded)
    if out:
        _write(out, text)
    elif not as_json:
        sys.stdout.write(text)
    summary = f"{len(graded)} answers: " + ", ".join(f"{name} {count}" for name, count in counts.items())
    click.echo(visible(summary), err=True)
    if as_json:
        click.echo(json.dumps({"rows": graded, "counts": counts}))


def _write(out: Path, text: str) -> None:
    try:
        with disk_full_as_error(out, "Free some space, or give another file with --out."):
            out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidSetting(f"--out {out} cannot be written: {error.strerror}. Choose another file.") from error


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        stream: IO[str] = sys.stdin if str(file) == "-" else file.open(encoding="utf-8-sig")
        with stream:
            lines = stream.read().split("\n")
    except OSError as error:
        raise IncompatibleData(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise IncompatibleData(f"{file} is not UTF-8 text.") from error
    rows, bad = [], []
    for number, line in enumerate((line for line in lines if line.strip()), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and isinstance(row.get("answer"), str) and _has_truth(row):
            rows.append(row)
        else:
            bad.append(str(number))
    if bad:
        named = ", ".join(bad[:MOST_NAMED_ROWS])
        raise IncompatibleData(
            f"{len(bad)} rows of {file} have neither {{answer: text, ground_truth: text}} nor tests in place of a "
            f"ground truth: row {named}. Correct them."
        )
    if not rows:
        raise IncompatibleData(f"{file} has no rows.")
    return rows


def _has_truth(row: dict[str, Any]) -> bool:
    """Whether a row has a reference: a ground truth, or tests alone."""
    truth = row.get("ground_truth")
    if truth is None:
        return row.get("tests") is not None
    return isinstance(truth, str | int | float | dict | list) and not isinstance(truth, bool)
