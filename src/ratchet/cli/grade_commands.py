"""``ratchet grade``: grade the answers of a JSONL file with a verifier, without a model."""

import json
import sys
from pathlib import Path
from typing import IO, Any

import click

from ratchet.cli.flags import SettingsCommand, given
from ratchet.cli.train_commands import json_option
from ratchet.config import RunConfig
from ratchet.config.config_text import build, read_file
from ratchet.datasets.rows import MOST_NAMED_ROWS
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.files import disk_full_as_error


def grade() -> click.Command:
    """Return the command."""
    return SettingsCommand(
        "grade",
        callback=_grade,
        settings=("verifier", "reward"),
        further_names={"verifier.kind": "--verifier"},
        help="Grade FILE, rows {answer, ground_truth}, and write the rows with reward, correctness, outcome and parts "
        "to stdout or --out. - reads stdin. The columns tools, schema and tests go to the verifiers that read them.",
        params=[
            click.Argument(["file"], type=click.Path(path_type=Path, allow_dash=True)),
            config_option(),
            click.Option(
                ["--prefilled-think"],
                is_flag=True,
                help="The answers' prompts end in an opened <think>, which the tags bonus then takes as given.",
            ),
            click.Option(["--out"], type=click.Path(path_type=Path), help="Where to write the rows."),
            json_option(),
        ],
        context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    )


def _grade(
    file: Path, config: Path | None, prefilled_think: bool, out: Path | None, as_json: bool, **parameters: Any
) -> None:
    settings = verifier_settings(config, given(parameters))
    rows = _read(file)
    from ratchet.service.verification.grade_rows import grade_rows

    graded, counts = grade_rows(rows, settings, prefilled_think=prefilled_think)
    text = "".join(json.dumps(row) + "\n" for row in graded)
    if out:
        _write(out, text)
    elif not as_json:
        sys.stdout.write(text)
    summary = f"{len(graded)} answers: " + ", ".join(f"{name} {count}" for name, count in counts.items())
    click.echo(summary, err=True)
    if as_json:
        click.echo(json.dumps({"rows": graded, "counts": counts}))


def config_option() -> click.Option:
    """Return the option that takes verifier and reward from a run's settings."""
    return click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        help="Settings of a run (YAML): its verifier and reward are taken; flags go before them.",
    )


def verifier_settings(config: Path | None, flags: dict[str, str]) -> RunConfig:
    """Return the settings whose verifier and reward are used; without a file the bonus is off unless asked for.

    Raises:
        UsageError: there is neither a file nor a kind of verifier.
    """
    if config is not None:
        return build(read_file(config), flags).resolved()
    if "verifier.kind" not in flags:
        raise click.UsageError("Give --verifier with a kind, such as math, or --config with the settings of a run.")
    return build({}, {"reward.format_bonus": "off", **flags}).resolved()


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
            f"{len(bad)} rows of {file} are not {{answer: text, ground_truth: text}}, nor have they tests in place of "
            f"a ground truth: row {named}. Correct them."
        )
    if not rows:
        raise IncompatibleData(f"{file} has no rows.")
    return rows


def _has_truth(row: dict[str, Any]) -> bool:
    """Tell whether a row says what is right: by a ground truth, or by tests alone."""
    truth = row.get("ground_truth")
    if truth is None:
        return row.get("tests") is not None
    return isinstance(truth, str | int | float | dict | list) and not isinstance(truth, bool)
