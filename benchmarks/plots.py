"""The pictures of RESULTS.md, drawn from the same results as its tables."""

from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from report import Measured, Results, growing, points_measured
from rows import GrowthRow, SamplerRow, UpdateRow

_COLOURS = {"ratchet": "#0b6e4f", "trl": "#b5542b", "generate": "#b5542b", "continuous": "#4a6fa5"}
_LABELS = {"ratchet": "Ratchet", "trl": "TRL", "generate": "model.generate", "continuous": "continuous batching"}
_DPI = 80


def draw(results: Results, folder: Path) -> None:
    """Draw what there are results for; overwrite older pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawing in (("update", _update), ("sampler", _sampler), ("growth", _growth)):
        figure = drawing(results)
        if figure is not None:
            # Without a date, so that the same numbers make the same file.
            figure.savefig(folder / f"{name}.png", dpi=_DPI, metadata={"Software": None})
            plt.close(figure)


def _update(results: Results) -> Any:
    rows = results.of_kind(UpdateRow)
    if not rows:
        return None
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for answers, style in ((4, ":"), (8, "-"), (16, "--")):
        for tool in ("ratchet", "trl"):
            points = sorted(
                (row.prompt_tokens, row.useful_tokens / _median_seconds(result, tool))
                for row, result in rows.values()
                if row.answers == answers
            )
            if points:
                label = f"{_LABELS[tool]}, {answers} answers a prompt"
                axes.plot(*zip(*points, strict=True), style, color=_COLOURS[tool], marker="o", label=label)
    axes.set(xscale="log", xlabel="tokens of a prompt", ylabel="tokens a second", title="Update alone, SmolLM2-135M")
    axes.set_ylim(bottom=0)
    _ticks(axes, sorted({row.prompt_tokens for row, _ in rows.values()}))
    axes.legend(fontsize=8)
    return figure


def _sampler(results: Results) -> Any:
    rows = results.of_kind(SamplerRow)
    if not rows:
        return None
    figure, panels = plt.subplots(1, len(rows), figsize=(2.6 * len(rows) + 1, 3.6), layout="constrained", squeeze=False)
    for axes, (name, (row, result)) in zip(panels[0], rows.items(), strict=True):
        tokens = sum(row.lengths)
        rates = {tool: tokens / _median_seconds(result, tool) for tool in row.scripts}
        axes.bar(range(len(rates)), list(rates.values()), color=[_COLOURS[tool] for tool in rates])
        axes.set_title(name.removeprefix("sampler-"), fontsize=9)
        axes.set_xticks(range(len(rates)), [_LABELS[tool].replace(" ", "\n") for tool in rates], fontsize=7)
    panels[0][0].set_ylabel("tokens a second")
    return figure


def _growth(results: Results) -> Any:
    found = results.of_kind(GrowthRow)
    if not found:
        return None
    ((row, result),) = found.values()
    measured = points_measured(result)
    figure, panels = plt.subplots(1, len(row.series), figsize=(3.2 * len(row.series), 3.2), layout="constrained")
    for axes, (series, points) in zip(panels, row.series, strict=True):
        there = [point for point in points if point in measured]
        sizes = [growing(series, point) for point in there]
        axes.loglog(sizes, [measured[p]["seconds"] for p in there], "o-", color=_COLOURS["ratchet"], label="round")
        axes.loglog(
            sizes, [measured[p]["sampling"] for p in there], "s:", color=_COLOURS["continuous"], label="sampling"
        )
        axes.set(xlabel=series)
        _ticks(axes, sizes)
    panels[0].set_ylabel("seconds")
    panels[0].legend(fontsize=8)
    return figure


def _ticks(axes: Any, sizes: list[int]) -> None:
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()


def _median_seconds(result: Measured, tool: str) -> float:
    return median(float(pair[tool]["seconds"]) for pair in result["pairs"])
