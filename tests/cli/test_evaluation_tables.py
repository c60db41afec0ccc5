"""Evaluations on a terminal and in a pipe: every number is there, nothing is cut, no text of a model acts."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ratchet.cli.evaluation_tables import (
    print_comparison,
    print_evaluation,
    print_leaderboard,
    print_question_table,
    print_side_by_side,
)
from ratchet.evaluation.comparison import BandDifference
from ratchet.evaluation.evaluation import BandScore, Cost

from ..evaluation_samples import (
    HOSTILE,
    answer,
    comparison,
    difference,
    evaluation,
    question,
    questions,
    score,
    scores,
    side_by_side,
)


def printed(function, *values, width=1000, **options):
    console = Console(width=width, highlight=False, emoji=False, soft_wrap=True, **options)
    with console.capture() as captured:
        function(console, *values)
    return captured.get()


def plain(*values, **options):
    return " ".join(printed(*values, **options).split())


def two_sides(**changes):
    left, right = questions(0.6), questions(0.615, seed="other")
    bands = [BandDifference(
        band="easy", questions=108, left=score("accuracy", 50, 108), right=score("accuracy", 60, 108),
        difference=10 / 108, low=-0.01, high=0.2,
    )]  # fmt: skip
    fields = {"bands": bands, "notes": ["Bands are of the left side."], **changes}
    return comparison(evaluation("start", left), evaluation("RL", right), left, right, ("start", "RL"), **fields)


def test_an_evaluation_is_shown_with_every_number():
    text = plain(print_evaluation, evaluation("SFT", questions(0.61)))
    for part in (
        "SFT adapter of run 20261130-101500-ab12 on math_pairs_heldout",
        "Evaluation e-sft, 2026-11-30 10:15 UTC; 512 questions, one greedy answer per question",
        "accuracy 61.3% 57.0% to 65.4% answers that are right", "easy 108 80.6% 72.1% to 86.9%", "right 314 61.3% full credit",
        "unparseable 25 4.9%", "27 tokens an answer on average, 1.5 s until an answer was finished (median), 83 s in total",
    ):  # fmt: skip
        assert part in text, part
    assert "No verdict" not in text
    assert "Cost" not in text


def test_an_evaluation_without_verdict_says_so_last():
    results = [question(1), question(2, answer("", "failed"))]
    found = scores(
        results, bands=False, withheld="Half of it failed.", could_be=(0.5, 1.0), failures={"time": 1}, warnings=["Look."],
        cost=Cost(prompt_tokens=1, answer_tokens=1, amount=1.5, currency="EUR"), mean_tokens=None,
    )  # fmt: skip
    text = plain(print_evaluation, evaluation("x", results, scores=found))
    assert text.endswith("No verdict is given on this evaluation. Half of it failed.")
    for part in ("Note: Look.", "would be 50.0% if all of them were wrong", "Failed to grade: time 1", "Cost 1.50 EUR"):
        assert part in text, part
    assert "band" not in text


def test_an_evaluation_that_goes_on_is_two_lines():
    text = printed(print_evaluation, evaluation("x", [question()], scores=None, status="training"))
    assert len(text.splitlines()) == 2


def test_a_comparison_ends_with_its_verdict():
    made = two_sides()
    text = plain(print_comparison, made)
    assert text.endswith(made.main.sentence)
    main = made.main
    for part in (
        f"accuracy {main.left.value:.1%} {main.right.value:.1%} {100 * main.difference:+.1f}", "within the noise",
        f"{len(main.fixed)} {len(main.broken)}", "easy 108 46.3% 55.6% +9.3 -1.0 to +20.0", "Note: Bands are of the left side.",
        "in percentage points",
    ):  # fmt: skip
        assert part in text, part


def test_sides_are_one_table_and_the_verdicts_are_last():
    whole, _ = side_by_side()
    text = plain(print_side_by_side, whole)
    for part in (
        "base, SFT, RL on math_pairs_heldout", "base 35.2% (31.1 to 39.4) 33.2%", "RL 92.6% (90.0 to 94.5)",
        "easy 108 46.3% (37.2 to 55.7) 80.6% (72.1 to 86.9) 99.1%", "RL against SFT 61.3% 92.6% +31.2 +27.2 to +35.3 160 0 better",
    ):  # fmt: skip
        assert part in text, part
    said = [whole.comparisons[place].main.sentence for place in (2, 1, 0)]
    assert text.endswith(" ".join(said))


def test_a_difference_of_nothing_has_no_sign():
    one = questions(0.5, 20)
    made = comparison(evaluation("a", one), evaluation("b", one), one, one, main=difference(one, one))
    share = f"{sum(made.correctness for made in one) / 20:.1%}"
    assert f"{share} {share} 0.0 0.0 to 0.0 0 0 within the noise" in plain(print_comparison, made)


def test_the_best_is_first_and_of_equal_ones_the_earlier():
    best = evaluation("best", questions(0.9), created_at="2026-11-30T12:00:00+00:00")
    late = evaluation("amy", questions(0.5), created_at="2026-11-30T11:00:00+00:00")
    early = evaluation("zoe", questions(0.5), created_at="2026-11-30T10:00:00+00:00")
    open_one = evaluation("open", scores=None, status="training")
    held = scores(questions(0.2), withheld="Too many failed.")
    weak = evaluation("weak", scores=held)
    text = printed(print_leaderboard, "math_pairs_heldout", [late, weak, open_one, early, best])
    places = re.findall(r"^ (\d) +(\w+) adapter", text, flags=re.MULTILINE)
    assert places == [("1", "best"), ("2", "zoe"), ("3", "amy"), ("4", "weak")]
    assert "2026-11-30 12:00" in text
    assert text.count("no verdict") == 1
    assert "e-open" not in text
    assert "No evaluation of it has scores yet." in plain(print_leaderboard, "x", [open_one])


def test_a_leaderboard_says_which_were_asked_in_another_way_and_in_what_they_differ():
    best = evaluation("best", questions(0.9))
    alike = evaluation("alike", questions(0.7))
    other = evaluation(
        "other", questions(0.5), setup={**best.setup, "system_prompt": "Think.", "max_answer_tokens": 99}
    )
    third = evaluation("third", questions(0.3), setup={**best.setup, "format": "tags"})
    text = printed(print_leaderboard, "math_pairs_heldout", [best, alike, other, third])
    rows = re.findall(r"^ \d +(\w+) adapter.* 1 +([A-Z]) ", text, flags=re.MULTILINE)
    assert rows == [("best", "A"), ("alike", "A"), ("other", "B"), ("third", "C")]
    said = plain(print_leaderboard, "math_pairs_heldout", [best, alike, other, third])
    assert "Set-up B differs from A, so their scores do not compare: system_prompt, max_answer_tokens." in said
    assert "Set-up C differs from A, so their scores do not compare: format." in said
    assert "set-up" not in plain(print_leaderboard, "math_pairs_heldout", [best, alike])


@pytest.mark.parametrize("width", [80, 100, 140])
def test_tables_fit_a_terminal_and_cut_no_number(width):
    whole, results = side_by_side()
    for function, *values in (
        (print_evaluation, whole.evaluations[1]),
        (print_comparison, two_sides()),
        (print_side_by_side, whole),
        (print_leaderboard, "math_pairs_heldout", whole.evaluations),
        (print_question_table, results[1][:20], False),
    ):
        text = printed(function, *values, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert set(re.findall(r"\d+\.\d%", printed(function, *values))) == set(re.findall(r"\d+\.\d%", text))
        assert text.count("(") == text.count(")")


def test_questions_are_rows_or_whole_texts():
    several = question(2, answer("long " * 30), answer("7", "wrong", tokens=None))
    text = plain(print_question_table, [question(1), several], False)
    assert "1 (3 + 4) * (2 + 6) 56 56 right 24 1.5 s 2 (3 + 4) * (2 + 6) 56 long long" in text
    assert "... right 24 1.5 s 7 wrong ? 1.5 s" in text
    assert "2 questions; --full shows texts whole." in text
    whole = plain(print_question_table, [question(1), several], True)
    assert (
        "Question 2 difficulty easy user (3 + 4) * (2 + 6) expected 56 answer right, 24 tokens, 1.5 s " + "long " * 30
        in whole
    )
    assert "answer wrong, 1.5 s 7" in whole


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=120))
def test_no_text_acts_on_a_terminal(text):
    check(text)


def test_no_markup_of_an_answer_becomes_the_terminals_own():
    check(HOSTILE)


def check(text):
    one = question(
        1,
        answer(text, "wrong", failure=text),
        prompt=[{"role": text, "content": text}],
        ground_truth=text,
        difficulty=text,
    )
    found = scores([one], bands=False, warnings=[text], withheld=text, failures={text: 1}, columns=[score(text, 1, 2)])
    found = found.model_copy(update={"bands": [BandScore(band=text, score=score(text, 1, 2))]})
    made = evaluation("x", [one], name=text, benchmark=text, main_column=text, scores=found)
    main = difference([one], [one], sentence=text, column=text)
    both = comparison(made, made, [one], [one], main=main, notes=[text])
    whole, _ = side_by_side({"a": [one], "b": [one]})
    update = {
        "labels": [text, text], "columns": {text: [score(text, 1, 2)] * 2}, "bands": {text: [score(text, 1, 2)] * 2},
        "notes": [text], "comparisons": [both], "evaluations": [made, made.model_copy(update={"id": "other"})],
    }  # fmt: skip
    for function, *values in (
        (print_evaluation, made),
        (print_comparison, both),
        (print_side_by_side, whole.model_copy(update=update)),
        (print_leaderboard, text, [made]),
        (print_question_table, [one], False),
        (print_question_table, [one], True),
    ):
        for width in (80, 1000):
            shown = printed(function, *values, width=width, force_terminal=True, color_system="standard")
            assert not re.search("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f\u202a-\u202e\ud800-\udfff]", shown)
            assert "\x1b" not in re.sub(r"\x1b\[(0|1|2|31|32|33|1;31)m", "", shown)
