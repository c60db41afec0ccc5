"""A run's rounds as a table, for people or as CSV, JSON or Parquet, and as a learning curve, a PNG file."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.errors import Conflict, InvalidSetting
from ratchet.files import unusable_as_error, write_atomically
from ratchet.run.records import OUTCOMES, RoundRecord
from ratchet.run.round_lines import scored
from ratchet.service.runs.runs import RunSummary

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


def draw_curve(summary: RunSummary, path: Path) -> Path:
    """Draw validation accuracy, mean reward and watch metric by round, 0 to 100 %, with the kept round marked.

    The losses of sft and dpo have a scale of their own, on the right where there is an accuracy too.

    Returns:
        The path.
    """
    # Not pyplot: it would pick a window system and keep global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    records = summary.records
    figure = Figure(figsize=(7.2, 4.4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlabel="round", title=f"{Path(summary.config.model).name} on {summary.config.data.source}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if records[0].validation.accuracy is not None:
        _draw_scores(axes, summary)
        axes.set(ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if records[0].validation.loss is not None:
        _draw_losses(axes if records[0].validation.accuracy is None else axes.twinx(), records)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    content = io.BytesIO()
    FigureCanvasAgg(figure).print_png(content)  # type: ignore[no-untyped-call]
    write_atomically(path, content.getvalue())
    return path


def _draw_losses(axes: Any, records: Sequence[RoundRecord]) -> None:
    learned = {record.round: record.learned.loss for record in records if record.learned and record.learned.loss}
    axes.plot(list(learned), list(learned.values()), color="#b07000", linestyle="--", marker=".", label="training loss")
    axes.plot(
        [record.round for record in records],
        [record.validation.loss for record in records],
        color="#8a2f5e",
        marker="o",
        markersize=3,
        label=f"validation loss ({records[0].validation.prompts} rows)",
    )
    axes.set_ylabel("loss (nats)")


def _draw_scores(axes: Any, summary: RunSummary) -> None:
    records = summary.records
    rewards = {record.round: record.reward for record in records if record.reward is not None}
    if rewards:
        axes.plot(
            list(rewards),
            list(rewards.values()),
            color="#b07000",
            linestyle="--",
            marker=".",
            label="mean reward of sampled answers (training prompts)",
        )
    axes.plot(
        [r.round for r in records],
        [r.validation.accuracy for r in records],
        color="#1f5fa8",
        linewidth=2,
        marker="o",
        markersize=4,
        label=f"validation accuracy ({records[0].validation.prompts} prompts, greedy)",
    )
    watched = {record.round: record.watch for record in records if record.watch is not None}
    if watched:
        axes.plot(
            list(watched),
            list(watched.values()),
            color="#8a3ffc",
            linestyle=":",
            marker=".",
            label="watch metric of the same answers, never trained on",
        )
    best = records[records[-1].best_round]
    axes.plot(
        best.round,
        best.validation.accuracy,
        "o",
        color="#1f5fa8",
        markersize=11,
        fillstyle="none",
        label=f"kept: round {best.round}, {scored(best.validation)}",
    )
    if summary.heldout_before is not None and summary.heldout_after is not None:
        ends = [records[0].round, best.round]
        axes.plot(
            ends,
            [summary.heldout_before, summary.heldout_after],
            "D",
            color="#2e7d32",
            label=f"held-out problems ({summary.heldout_before:.1%} before, {summary.heldout_after:.1%} after)",
        )
