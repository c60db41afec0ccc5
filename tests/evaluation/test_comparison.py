"""Comparisons of evaluations: what is refused, verdicts and their sentences, bands, and several sides at once."""

import pytest

from ratchet.errors import Conflict, InvalidSetting
from ratchet.evaluation.comparison import Side, refuse_incomparable, side_by_side, verdict_of
from ratchet.evaluation.evaluation import Evaluation, GivenAnswer, QuestionResult, Subject
from ratchet.evaluation.groups import group_of
from ratchet.evaluation.scores import scores_of
from ratchet.stats import Paired, questions_to_detect

SETUP = {
    "System prompt": "Be brief.",
    "Few-shot examples": [],
    "Verifier": {"kind": "math", "require_boxed": True},
    "Max answer tokens": 256,
    "Sampling": "greedy",
}


def questions_of(scores, difficulties=None, failed=0):
    """One question a score; a list of scores gives several answers. The last ``failed`` ones failed."""

    def answer(score, outcome):
        return GivenAnswer(
            text="a",
            correctness=score,
            reward=score,
            format=1.0,
            outcome=outcome,
            failure="time" if outcome == "failed" else None,
            tokens=3,
            seconds=0.1,
            group=group_of("a", outcome, score),
        )

    return [
        QuestionResult(
            question=number,
            prompt=[{"role": "user", "content": "SECRET"}],
            ground_truth="SECRET",
            difficulty=difficulties[number - 1] if difficulties else None,
            answers=[
                answer(one, "failed" if number > len(scores) - failed else "graded")
                for one in (score if isinstance(score, list) else [score])
            ],
        )
        for number, score in enumerate(scores, start=1)
    ]


def evaluated(name, questions, columns=("accuracy", "format"), **changes):
    fields = dict(
        id=f"e-{name}",
        benchmark="pairs",
        benchmark_hash="b",
        questions_sha256="q",
        main_column=columns[0],
        subject=Subject(kind="base", name=name, model="m"),
        setup=SETUP,
        answers_per_question=1,
        status="completed",
        created_at="2025-01-01T00:00:00Z",
        scores=scores_of(questions, columns, seconds=1) if questions else None,
        folder="f",
    )
    return Evaluation(**{**fields, **changes})


def table(fixed, broken, both, neither):
    """Scores of two sides with the fixed questions first, then the broken ones."""
    left = [0.0] * fixed + [1.0] * (broken + both) + [0.0] * neither
    right = [1.0] * fixed + [0.0] * broken + [1.0] * both + [0.0] * neither
    return left, right


def compare(left, left_questions, right, right_questions):
    sides = [Side(one.subject.name, one, asked) for one, asked in ((left, left_questions), (right, right_questions))]
    (found,) = side_by_side(sides).comparisons
    return found


def compared(left, right, **more):
    before, after = questions_of(left, **more), questions_of(right, **more)
    return compare(evaluated("Base", before), before, evaluated("Run 7", after), after)


def test_a_gain_that_is_more_than_chance_is_better():
    found = compared(*table(fixed=60, broken=19, both=221, neither=200))
    main = found.main
    assert main.verdict == "better"
    assert main.sentence == (
        "Run 7 is better than Base by 8.2 points (95 % interval 4.8 to 11.8): it fixed 60 questions and broke 19."
    )
    assert (main.fixed, main.broken) == (list(range(1, 61)), list(range(61, 80)))
    assert (main.left.value, main.right.value) == pytest.approx((240 / 500, 281 / 500))
    assert main.test == "mcnemar"
    assert main.to_decide is None
    assert found.questions == 500


def test_a_loss_that_is_more_than_chance_is_worse():
    main = compared(*table(fixed=1, broken=20, both=40, neither=39)).main
    assert main.verdict == "worse"
    assert main.sentence.startswith("Run 7 is worse than Base by 19.0 points (95 % interval -2")
    assert main.sentence.endswith("it fixed 1 question and broke 20.")


def test_within_the_noise_says_how_many_questions_would_decide():
    main = compared(*table(fixed=12, broken=8, both=90, neither=90)).main
    assert main.verdict == "within_noise"
    assert main.to_decide == questions_to_detect(4 / 200, 20 / 200) == 2043
    assert main.sentence == (
        "Run 7 is 2.0 points above Base, which is within the noise (95 % interval -2.6 to 6.8): it fixed 12 questions and "
        "broke 8. A difference this large would need about 2,000 questions."
    )


def test_a_loss_within_the_noise_is_below():
    assert " is 2.0 points below Base, which is within the noise" in compared(*table(8, 12, 90, 90)).main.sentence


def test_no_difference_is_no_question_of_numbers():
    main = compared(*table(5, 5, 20, 20)).main
    assert (main.verdict, main.to_decide) == ("within_noise", None)
    assert main.sentence.startswith("Run 7 and Base score the same (95 % interval -")
    assert main.sentence.endswith("it fixed 5 questions and broke 5.")


def test_partial_credit_counts_what_went_up_and_down():
    left = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]] * 20
    right = [[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]] * 10 + [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]] * 10
    main = compared(left, right).main
    assert (main.test, main.verdict) == ("bootstrap", "better")
    assert "it scored higher on 20 questions and lower on 10." in main.sentence
    assert main.difference == pytest.approx((20 * 0.5 - 10 * 0.25) / 40)


def test_partial_credit_is_decided_by_test_and_interval_alike():
    # Six of eight went up, so the test finds a gain (p = 2 / 64). Tango's interval in steps of 3/4 would hold 0. The
    # test turns at 1/12: of all subsets 4 of 256 hold none that went up, and 4 more both that stayed and one that went
    # up by 1/4, with a mean of 1/12; twice 8 of 256 are above 0.05.
    left = [0.25, 0.25, 0.25, 0.25, 0.5, 0.25, 0.25, 0.25]
    main = compared(left, [1.0, 0.5, 0.5, 0.5, 0.75, 0.25, 0.25, 1.0]).main
    assert main.p_value == pytest.approx(2 / 64)
    assert main.low == pytest.approx(0.25 / 3)
    assert main.verdict == "better"


@pytest.mark.parametrize(
    ("difference", "p_value", "withheld", "verdict"),
    [
        (0.1, 0.049, False, "better"),
        (-0.1, 0.049, False, "worse"),
        (0.1, 0.05, False, "within_noise"),
        (0.1, 0.049, True, "withheld"),
        (0.1, 0.05, True, "withheld"),
    ],
)
def test_one_rule_says_better_and_worse(difference, p_value, withheld, verdict):
    paired = Paired(difference, difference - 0.05, difference + 0.05, p_value, "bootstrap", (), ())
    assert verdict_of(paired, withheld=withheld) == verdict


def test_partial_credit_takes_fewer_questions_to_decide_for_smaller_steps():
    # Mean difference 8 / 160 / 4, mean squared difference 36 / 160 / 16: as if the sides differed on 1.4 % of questions.
    left = [0.5] * 160
    right = [0.75] * 22 + [0.25] * 14 + [0.5] * 124
    main = compared(left, right).main
    assert main.verdict == "within_noise"
    assert main.to_decide == questions_to_detect(1 / 80, 36 / 160 / 16)


@pytest.mark.parametrize("side", [0, 1])
def test_a_verdict_is_withheld_where_either_side_failed_too_often(side):
    scores = table(60, 5, 20, 15)
    both = [questions_of(one, failed=15 if side == place else 0) for place, one in enumerate(scores)]
    found = compare(evaluated("Base", both[0]), both[0], evaluated("Run 7", both[1]), both[1])
    assert found.main.verdict == "withheld"
    assert found.main.to_decide is None
    assert found.main.sentence.startswith(
        f"No verdict on Run 7 against Base. {('Base', 'Run 7')[side]}: The verifier failed on 15 of 100"
    )


def test_a_few_failures_are_noted_with_their_range():
    scores = table(10, 5, 20, 15)
    before, after = questions_of(scores[0]), questions_of(scores[1], failed=2)
    notes = compare(evaluated("Base", before), before, evaluated("Run 7", after), after).notes
    assert (
        "The verifier failed on 2 answers of Run 7, counted as 0; its accuracy is between 60.0% and 64.0%" in notes[0]
    )


def test_each_shared_column_is_compared_and_the_main_one_first():
    before, after = questions_of([0.0, 1.0]), questions_of([1.0, 1.0])
    left = evaluated("Base", before, columns=("accuracy", "format", "answered"))
    right = evaluated("Run 7", after, columns=("accuracy", "answered"))
    found = compare(left, before, right, after)
    assert [column.column for column in found.columns] == ["accuracy", "answered"]
    assert found.main == found.columns[0]
    assert found.columns[1].sentence.startswith("By answered, Run 7 and Base score the same")


def test_questions_may_come_in_any_order():
    left, right = table(9, 1, 20, 20)
    before, after = questions_of(left), questions_of(right)
    found = compare(evaluated("Base", before), before[::-1], evaluated("Run 7", after), after)
    assert found.main.fixed == list(range(1, 10))
    assert found.main == compared(left, right).main


def test_bands_by_difficulty():
    left, right = [0.0, 0.0, 1.0, 1.0] * 10, [1.0, 0.0, 1.0, 0.0] * 10
    found = compared(left, right, difficulties=["hard", "hard", "easy", "easy"] * 10)
    assert found.bands_from == "difficulty"
    assert found.notes == []
    bands = {band.band: band for band in found.bands}
    assert list(bands) == ["easy", "hard"]
    assert (bands["easy"].left.value, bands["easy"].right.value, bands["easy"].questions) == (1.0, 0.5, 20)
    assert bands["hard"].difference == 0.5
    assert 0.2 < bands["hard"].low < bands["hard"].high < 0.8


def test_bands_by_the_left_side_say_what_they_cannot_tell():
    found = compared([1.0, [0.0, 1.0], 0.0, 0.0], [1.0, [1.0, 1.0], 1.0, 0.0])
    assert found.bands_from == "left"
    assert [(band.band, band.questions) for band in found.bands] == [
        ("always right before", 1),
        ("sometimes right before", 1),
        ("never right before", 2),
    ]
    assert 'an equally good model would score lower in "always right before"' in found.notes[0]


def test_bands_of_one_kind_are_left_out():
    found = compared([0.0, 0.0], [1.0, 0.0])
    assert found.bands == found.notes == []


def test_a_main_column_other_than_accuracy_decides_bands_and_verdict():
    before, after = questions_of([0.0, 1.0]), questions_of([1.0, 1.0])
    columns = ("format", "accuracy")
    found = compare(evaluated("Base", before, columns), before, evaluated("Run 7", after, columns), after)
    assert found.main.column == "format"
    assert found.main.difference == 0
    assert found.bands == []  # the form is right everywhere


def test_side_by_side_compares_with_the_first_and_the_one_before():
    base, sft, rl = table(30, 2, 20, 48)[0], table(30, 2, 20, 48)[1], [1.0] * 60 + [0.0] * 40
    sides = [
        Side(label, evaluated(label, qs := questions_of(one)), qs)
        for label, one in zip(("base", "SFT", "RL"), (base, sft, rl), strict=True)
    ]
    found = side_by_side(sides)
    assert found.labels == ["base", "SFT", "RL"]
    assert [(one.left.id, one.right.id) for one in found.comparisons] == [
        ("e-base", "e-SFT"),
        ("e-base", "e-RL"),
        ("e-SFT", "e-RL"),
    ]
    assert [score.value for score in found.columns["accuracy"]] == pytest.approx([0.22, 0.5, 0.6])
    assert list(found.columns) == ["accuracy", "format"]
    assert {band: [round(score.value, 2) for score in scores] for band, scores in found.bands.items()} == {
        "always right before": [1.0, 0.91, 1.0],
        "never right before": [0.0, 0.38, 0.49],
    }
    assert found.notes[-1].startswith(
        "With 3 comparisons the chance of a false positive is higher (Holm-corrected: SFT against base p = "
    )
    assert len(found.notes) == len(set(found.notes))


def test_two_side_by_side_are_one_comparison_under_their_labels():
    left, right = (questions_of(one) for one in table(9, 1, 20, 20))
    found = side_by_side([Side("start", evaluated("Base", left), left), Side("after", evaluated("Base", right), right)])
    assert len(found.comparisons) == 1
    assert found.comparisons[0].main.sentence.startswith("after is better than start by 16.0 points")


def test_one_side_alone_is_refused():
    questions = questions_of([1.0])
    with pytest.raises(InvalidSetting, match="two evaluations, not 1"):
        side_by_side([Side("base", evaluated("Base", questions), questions)])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"questions_sha256": "other", "benchmark": "gsm8k"}, "The questions differ (pairs and gsm8k)."),
        ({"main_column": "format"}, "Score column: accuracy on the left, format on the right."),
        ({"setup": {**SETUP, "Max answer tokens": 512}}, "Max answer tokens: 256 on the left, 512 on the right."),
        (
            {"setup": {**SETUP, "System prompt": "SECRET"}},
            "System prompt: 9 characters on the left, 6 characters on the right.",
        ),
        (
            {"setup": {**SETUP, "System prompt": "Be SECRET"}},
            "System prompt: not the same on both sides (9 characters).",
        ),
        (
            {"setup": {**SETUP, "Few-shot examples": [{"prompt": "SECRET", "answer": "SECRET"}]}},
            "Few-shot examples: none on the left, 1 of them on the right.",
        ),
        (
            {"setup": {**SETUP, "Verifier": {"kind": "math", "require_boxed": False}}},
            "Verifier, require_boxed: True on the left, False on the right.",
        ),
        (
            {"setup": {**SETUP, "Sampling": {"temperature": 1.0, "seed": 0}}},
            "Sampling: greedy on the left, set, with seed, temperature on the right.",
        ),
        ({"setup": {**SETUP, "Format": {"form": "tags"}}}, "Format: none on the left, set, with form on the right."),
    ],
)
def test_what_was_asked_otherwise_is_refused_by_name(changes, said):
    questions = questions_of([1.0, 0.0])
    with pytest.raises(Conflict) as refused:
        refuse_incomparable(evaluated("Base", questions), evaluated("Run 7", questions, **changes))
    assert said in str(refused.value)
    assert "Evaluations e-Base and e-Run 7 cannot be compared" in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_every_part_that_differs_is_named():
    questions = questions_of([1.0])
    other = evaluated("B", questions, setup={**SETUP, "Max answer tokens": 1, "Sampling": "x"}, main_column="format")
    with pytest.raises(Conflict, match=r"Score column.*Max answer tokens.*Sampling"):
        refuse_incomparable(evaluated("A", questions), other)


@pytest.mark.parametrize("order", [1, -1])
def test_an_evaluation_without_scores_is_refused(order):
    questions = questions_of([1.0])
    pair = [evaluated("Base", questions), evaluated("Run 7", [], status="running")][::order]
    with pytest.raises(Conflict, match="e-Run 7 is running and has no scores"):
        refuse_incomparable(*pair)


def test_evaluations_that_agree_are_not_refused():
    questions = questions_of([1.0])
    refuse_incomparable(evaluated("A", questions), evaluated("B", questions, benchmark="renamed", benchmark_hash="c"))


def test_an_evaluation_of_an_earlier_version_is_compared_with_a_new_one():
    questions = questions_of([1.0, 0.0])
    new = evaluated("Base", questions)
    old_names = {"Few-shot examples": "Worked examples", "Max answer tokens": "Longest answer"}
    stored = {**new.model_dump(), "setup": {old_names.get(name, name): part for name, part in SETUP.items()}}
    assert Evaluation.model_validate(stored) == new


def test_missing_questions_are_refused_by_number():
    left, right = (questions_of(one) for one in table(3, 1, 2, 2))
    with pytest.raises(Conflict, match="e-Run 7 lacks 2 questions that the other one has: 1, 8"):
        compare(evaluated("Base", left), left, evaluated("Run 7", right), right[1:-1])
    with pytest.raises(Conflict, match="e-Base scored 8 questions, but 7 have answers"):
        compare(evaluated("Base", left), left[1:], evaluated("Run 7", right), right[1:])
    with pytest.raises(Conflict, match="e-Base scored 8 questions, but 9 have answers"):
        compare(evaluated("Base", left), [left[0], *left], evaluated("Run 7", right), right)
