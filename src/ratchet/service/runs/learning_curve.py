"""A run's learning curve as a PNG file: accuracy and reward, of sft and dpo the losses."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.files import write_atomically
from ratchet.run.records import RoundRecord
from ratchet.run.round_lines import scored
from ratchet.service.runs.runs import RunSummary


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
