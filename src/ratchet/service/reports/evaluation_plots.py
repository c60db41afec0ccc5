"""Drawings of evaluations, comparisons and loops: scores with whiskers, differences, bands, a bar a round.

Each is drawn by one function for a page and for a file alike; ``pages.py`` says how the two differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.evaluation.comparison import Comparison, SideBySide, Verdict
from ratchet.evaluation.evaluation import Score
from ratchet.evaluation.loop import LoopView
from ratchet.files import write_atomically
from ratchet.service.reports.evaluation_words import bands_title, column_title, in_order, percent, points, sides_of
from ratchet.service.reports.pages import FILE, MARKERS, Palette, bare, figure, label, png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches. Narrow, so that what is written in a drawing can still be read on a telephone.
_WIDTH, _FILE_WIDTH = 4.3, 7.2
_ROW, _EDGES = 0.3, 0.55
_FILE_DPI = 150
# A bar's number fits beside its neighbours' from here on; where there is less room, numbers stand upright.
_BAR_INCHES, _BAR_EDGES, _MOST_BARS_WIDTH = 0.4, 1.2, 9.7
_BAR_WIDTH, _FEWEST_PLACES = 0.72, 6
_TITLE_CHARACTERS = 90


@dataclass(frozen=True)
class Whisker:
    """A row of a drawing: a dot at ``value`` with a line from ``low`` to ``high``; ``side`` gives colour and marker.

    ``text`` is written at the end of the row. ``verdict`` colours a difference.
    """

    name: str
    value: float
    low: float
    high: float
    text: str
    side: int = 0
    verdict: Verdict | None = None


@dataclass(frozen=True)
class RoundBar:
    """A bar of a loop: ``score`` in 0..1, None where a round has none; ``name`` such as "start" or "3".

    ``has_verdict``: whether its score can be relied on.
    """

    name: str
    score: float | None
    is_best: bool = False
    is_start: bool = False
    has_verdict: bool = True


def score_rows(scores: Sequence[tuple[str, Score]], *, by_side: bool) -> list[Whisker]:
    """One row per score, under these names; ``by_side``: each in a colour of its own."""
    return [
        Whisker(name, one.value, one.low, one.high, percent(one.value), number if by_side else 0)
        for number, (name, one) in enumerate(scores)
    ]


def band_rows(bands: dict[str, list[Score]]) -> list[Whisker]:
    """One row per band and side; a band's name stands at its first side."""
    return [
        Whisker("" if side else band, one.value, one.low, one.high, percent(one.value), side)
        for band, scores in bands.items()
        for side, one in enumerate(scores)
    ]


def difference_rows(comparisons: Sequence[Comparison], whole: SideBySide) -> list[Whisker]:
    """One row per comparison, in percentage points."""
    rows = []
    for comparison in comparisons:
        left, right = sides_of(comparison, whole)
        main = comparison.main
        where = (100 * main.difference, 100 * main.low, 100 * main.high)
        rows.append(Whisker(f"{right} vs {left}", *where, points(main.difference), verdict=main.verdict))
    return rows


def round_bars(view: LoopView) -> list[RoundBar]:
    """One bar for each round of a loop that is over, and for the start."""
    return [
        RoundBar(
            "start" if one.number == 0 else str(one.number),
            None if one.percent is None else one.percent / 100,
            is_best=one.best,
            is_start=one.number == 0,
            has_verdict=not one.withheld,
        )
        for one in view.rounds
        if one.state in ("scored", "unscored", "failed")
    ]


def draw_scores(rows: Sequence[Whisker], palette: Palette, *, own_colours: bool = False) -> "Figure":
    """Draw scores on a scale from 0 to 100%; ``own_colours``: each row in the colour of its side."""
    drawn, axes = figure(_WIDTH, _EDGES + _ROW * len(rows), palette)
    _scores_on(axes, rows, palette, own_colours=own_colours)
    return drawn


def draw_bands(rows: Sequence[Whisker], sides: Sequence[str], palette: Palette) -> "Figure":
    """Draw the scores of all bands, the sides of a band under one another, with a key to the sides above."""
    drawn, axes = figure(_WIDTH, _EDGES + 0.25 + 0.24 * len(rows), palette)
    _scores_on(axes, rows, palette, own_colours=True)
    _key_on(axes, sides, palette)
    return drawn


def draw_differences(rows: Sequence[Whisker], palette: Palette) -> "Figure":
    """Draw differences in percentage points, with a line where there is none."""
    drawn, axes = figure(_WIDTH, _EDGES + 0.15 + _ROW * len(rows), palette)
    _differences_on(axes, rows, palette)
    return drawn


def draw_rounds(bars: Sequence[RoundBar], target: float | None, palette: Palette) -> "Figure":
    """Draw a bar a round of a loop, the target as a line, the best with a badge.

    Rounds without a score, or without a verdict on it, are hatched and say so.

    Args:
        bars: One at least, in order.
        target: 0..1, None without one.
        palette: What colours.
    """
    places = max(_FEWEST_PLACES, len(bars))
    # Beside the bars: the scale on the left, the target's name on the right.
    wanted = _BAR_EDGES + _BAR_INCHES * places
    upright = wanted > _MOST_BARS_WIDTH
    drawn, axes = figure(min(_MOST_BARS_WIDTH, wanted), 2.9, palette)
    for place, bar in enumerate(bars):
        if bar.score is None:
            _hatched_on(axes, place, 1.0, "no score", palette)
            continue
        if bar.has_verdict:
            color = palette.soft if bar.is_start else palette.accent
            axes.bar(place, bar.score, width=_BAR_WIDTH, color=color, zorder=2)
        else:
            _hatched_on(axes, place, bar.score, "no verdict", palette)
        _number_on(axes, place, bar, palette, upright=upright)
    if target is not None:
        axes.axhline(target, color=palette.good, linewidth=1.4, linestyle=(0, (5, 3)), zorder=1.5)
        axes.annotate(
            f"target\n{percent(target)}", (1, target), (4, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", va="center", color=palette.good, fontsize=9,
        )  # fmt: skip
    # Room above 100% for a number and the badge.
    room = (places - len(bars)) / 2
    axes.set(xlim=(-0.6 - room, len(bars) - 0.4 + room), ylim=(0, 1.35 if upright else 1.22), xlabel="round")
    axes.set_xticks(range(len(bars)), [label(bar.name) for bar in bars], fontsize=9)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"], fontsize=9)
    axes.grid(axis="y", color=palette.line, linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    return drawn


def write_loop_chart(bars: Sequence[RoundBar], target: float | None, title: str, path: Path) -> Path:
    """Write the bars of a loop to a PNG file and return its path."""
    drawn = draw_rounds(bars, target, FILE)
    drawn.set_dpi(_FILE_DPI)
    drawn.suptitle(label(title, _TITLE_CHARACTERS), fontsize=11, color=FILE.ink)
    write_atomically(path, png(drawn))
    return path


def write_comparison_chart(whole: SideBySide, path: Path) -> Path:
    """Write sides, differences and, where there are any, bands to a PNG file and return its path."""
    from matplotlib.figure import Figure

    main = whole.evaluations[0].main_column
    sides = score_rows(list(zip(whole.labels, whole.columns[main], strict=True)), by_side=True)
    differences = difference_rows(in_order(whole), whole)
    bands = band_rows(whole.bands)
    heights = [_EDGES + 0.3 + _ROW * len(sides), _EDGES + 0.5 + _ROW * len(differences)]
    heights += [_EDGES + 0.6 + 0.24 * len(bands)] if bands else []
    drawn = Figure(figsize=(_FILE_WIDTH, sum(heights)), dpi=_FILE_DPI, layout="constrained")
    all_axes = drawn.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axes in all_axes:
        bare(axes, FILE)
    of = f"{column_title(main)} on {whole.evaluations[0].benchmark}"
    _scores_on(all_axes[0], sides, FILE, own_colours=True)
    _differences_on(all_axes[1], differences, FILE)
    _title_on(all_axes[0], f"{of}, with 95 % intervals")
    _title_on(all_axes[1], "difference on the same questions, with 95 % intervals")
    if bands:
        _scores_on(all_axes[2], bands, FILE, own_colours=True)
        _title_on(all_axes[2], bands_title(whole))
        _key_on(all_axes[2], whole.labels, FILE)
    write_atomically(path, png(drawn))
    return path


def _title_on(axes: Any, text: str) -> None:
    axes.set_title(label(text, _TITLE_CHARACTERS), loc="left", fontsize=11, color=FILE.ink)


def _scores_on(axes: Any, rows: Sequence[Whisker], palette: Palette, *, own_colours: bool) -> None:
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"], fontsize=9)
    _whiskers_on(axes, rows, palette, own_colours=own_colours)


def _differences_on(axes: Any, rows: Sequence[Whisker], palette: Palette) -> None:
    axes.axvline(0, color=palette.soft, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    ends = [0.0, *(row.low for row in rows), *(row.high for row in rows)]
    # Two points at least on either side of none, so that a difference of nothing is a picture of nothing.
    edge = max(2.0, 0.08 * (max(ends) - min(ends)))
    axes.set_xlim(min(ends) - edge, max(ends) + edge)
    axes.tick_params(axis="x", labelsize=9)
    axes.set_xlabel("percentage points; 0: no difference", fontsize=9)
    _whiskers_on(axes, rows, palette, own_colours=False)


def _whiskers_on(axes: Any, rows: Sequence[Whisker], palette: Palette, *, own_colours: bool) -> None:
    axes.grid(axis="x", color=palette.line, linewidth=0.6, zorder=0)
    for place, row in enumerate(rows):
        color = _color(row, palette, own_colours=own_colours)
        marker = MARKERS[row.side % len(MARKERS)] if own_colours else MARKERS[0]
        # clip_on=False: a score of 0 or 1 is on the edge, and its dot must be whole.
        axes.plot([row.low, row.high], [place, place], color=color, linewidth=2.2, clip_on=False, zorder=2)
        axes.plot([row.value], [place], marker, color=color, markersize=6.5, clip_on=False, zorder=3)
        axes.annotate(
            row.text, (1, place), (8, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
            va="center_baseline", color=palette.ink, fontsize=10,
        )  # fmt: skip
        if own_colours and place and row.name and not rows[place - 1].name:
            axes.axhline(place - 0.5, color=palette.line, linewidth=0.6, zorder=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    # A dot at the very left keeps its distance to the name.
    axes.set_yticks(range(len(rows)), [label(row.name) for row in rows], fontsize=10)
    axes.tick_params(axis="y", pad=8)


def _color(row: Whisker, palette: Palette, *, own_colours: bool) -> str:
    if own_colours:
        return palette.sides[row.side % len(palette.sides)]
    if row.verdict is None:
        return palette.accent
    return {"better": palette.good, "worse": palette.bad}.get(row.verdict, palette.soft)


def _key_on(axes: Any, sides: Sequence[str], palette: Palette) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=palette.sides[n % len(palette.sides)], marker=MARKERS[n % len(MARKERS)], linewidth=2.2)
        for n in range(len(sides))
    ]
    legend = axes.figure.legend(
        handles, [label(side) for side in sides], loc="outside upper center", ncols=min(4, len(sides)), frameon=False,
        fontsize=9,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_color(palette.ink)


def _hatched_on(axes: Any, place: int, height: float, words: str, palette: Palette) -> None:
    axes.bar(
        place, height, width=_BAR_WIDTH, facecolor="none", edgecolor=palette.line, hatch="////", linewidth=0.8,
        zorder=1,
    )  # fmt: skip
    # In the bar, or above its number where it is too low for them.
    inside = height > 0.5
    at, offset, edge = (height / 2, 0, "center") if inside else (height, 20, "bottom")
    axes.annotate(
        words, (place, at), (0, offset), textcoords="offset points", rotation=90, ha="center", va=edge,
        color=palette.ink, fontsize=8, bbox={"facecolor": palette.paper, "edgecolor": "none", "pad": 1.5}, zorder=2,
    )  # fmt: skip


def _number_on(axes: Any, place: int, bar: RoundBar, palette: Palette, *, upright: bool) -> None:
    assert bar.score is not None
    # All digits of 100.0% are wider than a bar.
    text = percent(bar.score).replace("100.0", "100")
    axes.annotate(
        text, (place, bar.score), (0, 3), textcoords="offset points", ha="center", va="bottom",
        rotation=90 if upright else 0, color=palette.ink, fontsize=8.5,
        bbox={"facecolor": palette.paper, "edgecolor": "none", "pad": 0.6}, zorder=3,
    )  # fmt: skip
    if bar.is_best:
        axes.annotate(
            "BEST", (place, bar.score), (0, 38 if upright else 19), textcoords="offset points", ha="center",
            va="bottom", color=palette.paper, fontsize=7.5, fontweight="bold",
            bbox={"facecolor": palette.good, "edgecolor": "none", "boxstyle": "round,pad=0.3"}, zorder=4,
        )  # fmt: skip
