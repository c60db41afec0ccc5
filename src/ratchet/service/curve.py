"""A run's learning curve as a PNG file."""

import io
from pathlib import Path

from ratchet.files import write_atomically
from ratchet.service.runs import RunSummary


def draw_curve(summary: RunSummary, path: Path) -> Path:
    """Draw validation accuracy, mean reward and watch metric by round, 0 to 100 %, with the kept round marked.

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
    rewards = {record.round: record.reward for record in records if record.reward is not None}
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
        label=f"kept: round {best.round}, {best.validation.accuracy:.1%}",
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
    axes.set(xlabel="round", ylim=(0, 1.02), title=f"{Path(summary.config.model).name} on {summary.config.data.source}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    content = io.BytesIO()
    FigureCanvasAgg(figure).print_png(content)  # type: ignore[no-untyped-call]
    write_atomically(path, content.getvalue())
    return path
