"""Drawings of evaluations, comparisons and loops: what is drawn where, at every size, and as a file."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from ratchet.service.reports.evaluation_plots import (
    RoundBar,
    band_rows,
    difference_rows,
    draw_bands,
    draw_differences,
    draw_rounds,
    draw_scores,
    round_bars,
    score_rows,
    write_comparison_chart,
    write_loop_chart,
)
from ratchet.service.reports.pages import FILE, PAGE, png, svg

from ...evaluation_samples import HOSTILE, loop_view, questions, score, side_by_side


def boxes(drawn):
    """Return (text, box in pixels) of all that is written in a figure."""
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    axes = drawn.axes[0]
    texts = [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels()]
    return [(one.get_text(), one.get_window_extent(canvas.get_renderer())) for one in texts if one.get_text()]


def bars(number, score=0.9):
    made = [RoundBar("start", 0.3, is_start=True)]
    made += [RoundBar(str(place), score, is_best=place == 1) for place in range(1, number + 1)]
    return made


@pytest.mark.parametrize("number", [0, 1, 2, 5, 8, 12, 20, 30])
@pytest.mark.parametrize("value", [0.0, 0.6, 0.97, 1.0])
def test_nothing_written_in_a_loops_chart_overlaps_or_is_cut(number, value):
    drawn = draw_rounds(bars(number, value), 0.95, FILE)
    found = boxes(drawn)
    assert len([text for text, _ in found if text.endswith("%")]) >= number + 1 + 5
    whole = drawn.bbox
    for place, (text, box) in enumerate(found):
        assert whole.x0 <= box.x0, text
        assert box.x1 <= whole.x1, text
        assert box.y1 <= whole.y1, text
        for other, its in found[place + 1 :]:
            # A grid's numbers may stand close to one another; a point is the rounding of their boxes.
            across, up = min(box.x1, its.x1) - max(box.x0, its.x0), min(box.y1, its.y1) - max(box.y0, its.y0)
            assert across <= 1 or up <= 1, (text, other)


def test_a_loops_bars_are_as_high_as_its_scores_and_the_unscored_are_hatched():
    drawn = draw_rounds(round_bars(loop_view((35.0, 60.0, None, 90.0))), 0.95, FILE)
    axes = drawn.axes[0]
    heights = [(bar.get_height(), bar.get_hatch()) for bar in axes.patches]
    assert heights == [(0.35, None), (0.6, None), (1.0, "////"), (0.9, None)]
    written = [text.get_text() for text in axes.texts]
    assert written == ["35.0%", "60.0%", "no score", "90.0%", "BEST", "target\n95.0%"]
    assert [line.get_ydata()[0] for line in axes.lines] == [0.95]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["start", "1", "2", "3"]
    best = next(text for text in axes.texts if text.get_text() == "BEST")
    assert best.xy == (3, 0.9)


def test_a_round_without_a_verdict_is_hatched_up_to_its_score_and_says_so():
    view = loop_view((35.0, 60.0))
    doubtful = view.rounds[1].model_copy(update={"withheld": "Too many failed.", "best": False})
    axes = draw_rounds(round_bars(view.model_copy(update={"rounds": [view.rounds[0], doubtful]})), None, FILE).axes[0]
    assert [(bar.get_height(), bar.get_hatch()) for bar in axes.patches] == [(0.35, None), (0.6, "////")]
    assert [text.get_text() for text in axes.texts] == ["35.0%", "no verdict", "60.0%"]


def test_rounds_under_way_are_not_drawn():
    view = loop_view((35.0, 60.0))
    going = view.rounds[1].model_copy(update={"state": "training", "percent": None})
    assert round_bars(view.model_copy(update={"rounds": [view.rounds[0], going]})) == [
        RoundBar("start", 0.35, is_start=True)
    ]


def test_without_a_target_there_is_no_line():
    drawn = draw_rounds(bars(1), None, FILE)
    assert not drawn.axes[0].lines
    assert "target" not in " ".join(text.get_text() for text in drawn.axes[0].texts)


def test_a_whisker_goes_from_low_to_high_with_its_dot_at_the_value():
    one = score("accuracy", 30, 100)
    drawn = draw_scores(score_rows([("base", one)], by_side=True), FILE, own_colours=True)
    line, dot = drawn.axes[0].lines
    assert list(line.get_xdata()) == [one.low, one.high]
    assert list(dot.get_xdata()) == [0.3]
    assert drawn.axes[0].get_xlim() == (0, 1)


def test_sides_differ_in_colour_and_marker():
    rows = score_rows([(str(place), score("accuracy", 30, 100)) for place in range(4)], by_side=True)
    dots = draw_scores(rows, FILE, own_colours=True).axes[0].lines[1::2]
    assert len({dot.get_color() for dot in dots}) == 4
    assert len({dot.get_marker() for dot in dots}) == 4


def test_a_difference_is_drawn_in_points_in_the_colour_of_its_verdict():
    whole, _ = side_by_side()
    rows = difference_rows(whole.comparisons, whole)
    assert [row.name for row in rows] == ["SFT vs base", "RL vs base", "RL vs SFT"]
    assert rows[2].value == pytest.approx(31.25)
    none, *drawn = draw_differences(rows, FILE).axes[0].lines
    assert list(none.get_xdata()) == [0, 0]
    assert {line.get_color() for line in drawn} == {FILE.good}
    same, _ = side_by_side({"start": questions(0.6), "after": questions(0.615, seed="other")})
    axes = draw_differences(difference_rows(same.comparisons, same), FILE).axes[0]
    assert axes.lines[1].get_color() == FILE.soft
    assert axes.get_xlim()[0] < 0 < axes.get_xlim()[1]


def test_a_band_has_a_row_a_side_and_its_name_once():
    whole, _ = side_by_side()
    rows = band_rows(whole.bands)
    assert [row.name for row in rows] == ["easy", "", "", "medium", "", "", "hard", "", ""]
    assert [row.side for row in rows] == [0, 1, 2] * 3
    drawn = draw_bands(rows, whole.labels, FILE)
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["base", "SFT", "RL"]


def test_charts_are_written_as_files(tmp_path):
    whole, _ = side_by_side()
    path = write_comparison_chart(whole, tmp_path / "comparison.png")
    assert imread(path).shape[1] == 1080
    one, _ = side_by_side({"a": questions(0.4, 1), "b": questions(0.4, 1)})
    smaller = write_comparison_chart(one.model_copy(update={"bands": {}}), tmp_path / "one.png")
    assert imread(smaller).shape[0] < imread(path).shape[0]
    path = write_loop_chart(round_bars(loop_view()), 0.95, HOSTILE, tmp_path / "loop.png")
    assert imread(path).std() > 0.05


def test_any_name_can_be_drawn():
    rows = score_rows(
        [(HOSTILE, score("accuracy", 1, 2)), ("$x_{1$", score("accuracy", 1, 2)), ("漢字", score("a", 1, 2))],
        by_side=True,
    )
    text = svg(draw_scores(rows, PAGE), HOSTILE[:40])
    assert "<script" not in text
    assert "&lt;/pre&gt;&lt;script&gt;" in text
    assert "漢字" in text
    assert png(draw_scores(rows, FILE)).startswith(b"\x89PNG")


def test_a_page_has_its_own_colours_in_every_drawing():
    whole, _ = side_by_side()
    drawings = [
        draw_bands(band_rows(whole.bands), whole.labels, PAGE),
        draw_differences(difference_rows(whole.comparisons, whole), PAGE),
        draw_rounds(round_bars(loop_view()), 0.95, PAGE),
    ]
    for drawn in drawings:
        text = svg(drawn, "A drawing")
        assert "#01" not in text
        assert "var(--ink)" in text
        assert "<metadata" not in text
    assert "var(--side-3)" in svg(drawings[0], "A drawing")
