"""A run's rounds as a table: for people, and exported as CSV, JSON or Parquet."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.errors import Conflict, InvalidSetting
from ratchet.files import unusable_as_error, write_atomically
from ratchet.run.records import OUTCOMES, RoundRecord

_SUFFIXES = (".csv", ".json", ".parquet")


def history_row(record: RoundRecord) -> dict[str, Any]:
    """A round as one flat row; None where a number does not exist, as the reward of round 0."""
    learned, seconds, validation = record.learned, record.seconds, record.validation
    has_answers = bool(record.groups)
    row: dict[str, Any] = {
        "round": record.round,
        "validation": validation.accuracy,
        "validation_reward": validation.reward,
        "validation_prompts": validation.prompts,
        "validation_loss": validation.loss,
        "validation_watch": validation.watch,
        "best_round": record.best_round,
        "best_validation": record.best_accuracy,
        "reward": record.reward,
        "accuracy": record.accuracy,
        "format": record.format,
        "watch": record.watch,
        "groups": record.groups if has_answers else None,
        "learned_from": record.informative_groups if has_answers else None,
        **{outcome: record.outcomes.get(outcome, 0) if has_answers else None for outcome in OUTCOMES},
        "metric_failures": sum(record.failures.values()) if has_answers else None,
        "answer_tokens": record.answer_tokens,
        "entropy": record.entropy,
    }
    for name in ("steps", "skipped_steps", "loss", "gradient_norm", "kl", "clip_fraction", "tokens"):
        row[name] = None if learned is None else getattr(learned, name)
    row["seconds"] = seconds.total
    for name in ("sampling", "grading", "update", "validation"):
        row[f"seconds_{name}"] = getattr(seconds, name)
    return row


def as_csv(records: Sequence[RoundRecord]) -> str:
    """The rounds as CSV with a line of names; what does not exist is empty."""
    text = io.StringIO()
    rows = [history_row(record) for record in records]
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["round"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def export_history(records: Sequence[RoundRecord], path: Path) -> None:
    """Write the rounds to a file, in the form that its name ends with.

    JSON holds all that a round reported; CSV and Parquet one row a round.

    Raises:
        InvalidSetting: the name ends with none of .csv, .json and .parquet.
        Conflict: the file cannot be written, or there are no rounds yet.
    """
    if path.suffix not in _SUFFIXES:
        raise InvalidSetting(f"--export is {path}; its name must end with {', '.join(_SUFFIXES)}.", "export")
    if not records:
        raise Conflict("No round is done yet, so there is no history to export.")
    with unusable_as_error(path, "Choose another --export."):
        write_atomically(path, _content(records, path.suffix))


def _content(records: Sequence[RoundRecord], suffix: str) -> bytes:
    if suffix == ".csv":
        return as_csv(records).encode()
    if suffix == ".json":
        return json.dumps([record.model_dump(mode="json") for record in records], indent=1).encode()
    import pyarrow as pa
    import pyarrow.parquet

    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.Table.from_pylist([history_row(record) for record in records]), sink)
    return bytes(sink.getvalue().to_pybytes())
