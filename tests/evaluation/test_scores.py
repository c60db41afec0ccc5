"""What an evaluation is said to have found: columns, pass@k, bands, counts, what is withheld, and refusals."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.evaluation.bands import bands_by_difficulty
from ratchet.evaluation.evaluation import ANSWER_GROUPS, Cost, GivenAnswer, QuestionResult
from ratchet.evaluation.groups import group_of, is_refusal
from ratchet.evaluation.scores import scores_of
from ratchet.run.records import OUTCOMES
from ratchet.stats import wilson


def answer(correctness=0.0, outcome="graded", text="an answer", tokens=10, seconds=1.0, failure=None, **more):
    return GivenAnswer(
        text=text,
        correctness=correctness,
        reward=correctness,
        format=more.get("format", 0.0),
        parts=more.get("parts", {}),
        outcome=outcome,
        failure=failure,
        tokens=tokens,
        seconds=seconds,
        group=group_of(text, outcome, correctness),
    )


def asked(*questions, difficulties=None):
    return [
        QuestionResult(
            question=number,
            prompt=[{"role": "user", "content": "?"}],
            ground_truth="!",
            difficulty=difficulties[number - 1] if difficulties else None,
            answers=list(answers),
        )
        for number, answers in enumerate(questions, start=1)
    ]


def right_and_wrong(right, wrong):
    return asked(*[[answer(1.0)]] * right, *[[answer(0.0)]] * wrong)


def test_one_right_or_wrong_answer_a_question_gets_wilsons_interval():
    scores = scores_of(right_and_wrong(30, 70), ["accuracy"], seconds=5.0)
    main = scores.columns[0]
    assert (main.name, main.value, main.method, main.of) == ("accuracy", 0.3, "wilson", 100)
    assert (main.low, main.high) == (wilson(30, 100).low, wilson(30, 100).high)
    assert (scores.questions, scores.answers, scores.seconds) == (100, 100, 5.0)
    assert scores.pass_at == scores.bands == scores.warnings == []
    assert scores.withheld == ""
    assert scores.could_be is None


def test_columns_are_means_over_a_questions_answers():
    questions = asked(
        [answer(1.0, format=1.0, parts={"accuracy_strict": 1.0}), answer(0.0, format=1.0)],
        [answer(0.5, text="  "), answer(0.0, outcome="cut_off")],
    )
    scores = scores_of(questions, ["accuracy_strict", "accuracy", "format", "answered", "unheard_of"], seconds=1)
    values = {score.name: score.value for score in scores.columns}
    # A part that an answer lacks is 0. Of four answers one is empty and one was cut off: two are answered.
    assert values == {"accuracy_strict": 0.25, "accuracy": 0.375, "format": 0.5, "answered": 0.5, "unheard_of": 0.0}
    assert scores.columns[0].name == "accuracy_strict"


def test_several_answers_a_question_get_the_bootstrap_and_pass_at_k():
    dice = random.Random(0)
    questions = asked(*[[answer(float(dice.random() < 0.4)) for _ in range(6)] for _ in range(50)])
    scores = scores_of(questions, ["accuracy"], seconds=1)
    assert scores.columns[0].method == "bootstrap"
    assert [score.name for score in scores.pass_at] == ["pass@1", "pass@2", "pass@4", "pass@6"]
    values = [score.value for score in scores.pass_at]
    assert values[0] == pytest.approx(scores.columns[0].value)
    assert values == sorted(values)
    assert values[-1] == sum(question.correctness > 0 for question in questions) / 50


def test_pass_at_k_by_hand_counts_wholly_right_answers_alone():
    # One of two right: pass@1 1/2, pass@2 1. Half right is not right.
    scores = scores_of(asked([answer(1.0), answer(0.0)], [answer(0.5), answer(0.5)]), ["accuracy"], seconds=1)
    assert [score.value for score in scores.pass_at] == [0.25, 0.5]


def test_all_right_in_several_answers_is_no_certainty():
    scores = scores_of(asked(*[[answer(1.0)] * 4] * 30), ["accuracy"], seconds=1)
    assert scores.columns[0].value == 1
    assert scores.columns[0].low < 0.9


def test_answers_are_counted_by_outcome_group_and_kind_of_failure():
    questions = asked(
        [answer(1.0)],
        [answer(0.4)],
        [answer(0.0)],
        [answer(0.0, text="I'm sorry, but I can't help with that.")],
        [answer(outcome="unparseable")],
        [answer(outcome="unparseable", text="I cannot answer this question.")],
        [answer(outcome="cut_off", text="I cannot answer this question.")],
        [answer(outcome="failed", failure="time")],
        [answer(outcome="failed", failure="time")],
        [answer(outcome="failed")],
    )
    scores = scores_of(questions, ["accuracy"], seconds=1)
    assert tuple(scores.groups) == ANSWER_GROUPS
    assert scores.groups == dict(right=1, partly=1, wrong=1, wrong_format=1, cut_off=1, refusal=2, failed=3)
    assert tuple(scores.outcomes) == OUTCOMES
    assert scores.outcomes == dict(graded=4, unparseable=2, cut_off=1, failed=3)
    assert scores.failures == {"time": 2, "failed": 1}
    assert scores.failed_share == pytest.approx(3 / 9)  # the verifier never saw the one that was cut off


def test_more_than_a_tenth_failed_withholds_the_verdict_and_a_tenth_does_not():
    a_tenth = scores_of(
        [*right_and_wrong(5, 4), *asked([answer(outcome="failed", failure="time")])], ["accuracy"], seconds=1
    )
    assert a_tenth.withheld == ""
    assert a_tenth.could_be == pytest.approx((0.5, 0.6))
    more = scores_of(
        [*right_and_wrong(40, 45), *asked(*[[answer(outcome="failed", failure="time")]] * 15)], ["accuracy"], seconds=1
    )
    assert more.could_be == pytest.approx((0.4, 0.55))
    assert more.withheld == (
        "The verifier failed on 15 of 100 answers that it was given (time 15), more than 10%, so no verdict is given. "
        "accuracy is between 40.0% and 55.0%. Fix the verifier, then evaluate again."
    )


def test_failures_of_the_endpoint_are_told_from_the_verifiers():
    lost, broken = answer(outcome="failed", text="", failure="endpoint time"), answer(outcome="failed", failure="time")
    endpoint = scores_of([*right_and_wrong(8, 0), *asked([lost], [lost])], ["accuracy"], seconds=1)
    assert endpoint.failures == {"endpoint time": 2}
    assert endpoint.failed_share == 0.0  # no verifier had them
    assert endpoint.withheld == (
        "The endpoint failed on 2 of 10 answers that were not cut off (endpoint time 2), more than 10%, so no verdict "
        "is given. accuracy is between 80.0% and 100.0%. Find the cause, then evaluate again."
    )
    cut_off = [answer(outcome="cut_off")]
    both = scores_of([*right_and_wrong(7, 0), *asked([lost], [broken], [broken], cut_off)], ["accuracy"], seconds=1)
    assert both.failed_share == pytest.approx(2 / 9)
    assert both.withheld.startswith(
        "The endpoint failed on 1 and the verifier on 2 of 10 answers that were not cut off (endpoint time 1, time 2), "
        "more than 10%, so no verdict is given."
    )
    assert both.withheld.endswith("Find the cause at the endpoint and fix the verifier, then evaluate again.")


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (Cost(prompt_tokens=8, answer_tokens=8, amount=0.5, currency="EUR"), "mean length and cost are those of the"),
        (Cost(prompt_tokens=8, answer_tokens=8, amount=None, currency="EUR"), "the mean length is that of the others."),
        (None, "the mean length is that of the others, and what they cost is not known"),
    ],
)
def test_answers_that_nobody_counted_the_tokens_of_are_told(cost, words):
    questions = asked([answer(1.0)], [answer(tokens=None)], [answer(1.0)])
    [warning] = scores_of(questions, ["accuracy"], seconds=1, cost=cost).warnings
    assert warning.startswith("1 of 3 answers came without a token count: ")
    assert words in warning
    assert scores_of(asked([answer(1.0, tokens=None)]), ["accuracy"], seconds=1).warnings == []


def test_a_failure_does_not_move_whether_something_was_answered():
    scores = scores_of(asked([answer(outcome="failed")], [answer(1.0)]), ["answered", "accuracy"], seconds=1)
    assert scores.could_be is None
    assert scores.columns[0].value == 1
    assert "is between" not in scores.withheld


def test_cut_off_answers_alone_are_no_failures():
    scores = scores_of(asked([answer(outcome="cut_off")]), ["accuracy"], seconds=1)
    assert (scores.failed_share, scores.withheld) == (0.0, "")


def test_warnings_start_above_their_shares():
    def warned(outcome, count):
        return scores_of(
            [*right_and_wrong(100 - count, 0), *asked(*[[answer(outcome=outcome)]] * count)], ["accuracy"], seconds=1
        ).warnings

    assert warned("unparseable", 3) == []
    assert warned("unparseable", 4)[0].startswith("4 of 100 answers are unparseable")
    assert warned("cut_off", 10) == []
    assert warned("cut_off", 11)[0].startswith("11 of 100 answers were cut off")


def test_tokens_latency_and_cost():
    cost = Cost(prompt_tokens=5, answer_tokens=6, amount=0.1, currency="EUR")
    questions = asked(
        [answer(tokens=10, seconds=1.0)], [answer(tokens=None, seconds=9.0)], [answer(tokens=20, seconds=2.0)]
    )
    scores = scores_of(questions, ["accuracy"], seconds=1, cost=cost)
    assert (scores.mean_tokens, scores.median_seconds, scores.cost) == (15.0, 2.0, cost)
    assert scores_of(asked([answer(tokens=None)]), ["accuracy"], seconds=1).mean_tokens is None


def test_bands_hold_the_main_column():
    questions = asked([answer(1.0)], [answer(1.0)], [answer(0.0)], difficulties=["hard", "easy", "hard"])
    bands = scores_of(questions, ["accuracy"], seconds=1).bands
    assert [(band.band, band.score.value, band.score.of) for band in bands] == [("easy", 1.0, 1), ("hard", 0.5, 2)]


@pytest.mark.parametrize(
    ("questions", "columns"), [([], ["accuracy"]), (right_and_wrong(1, 0), []), (asked([]), ["accuracy"])]
)
def test_what_cannot_be_scored_is_refused(questions, columns):
    with pytest.raises(ValueError, match="questions that all have answers"):
        scores_of(questions, columns, seconds=1)


@pytest.mark.parametrize(
    ("difficulties", "names"),
    [
        ([3.0, 1.0, 2.0, 1.0], ["1", "2", "3"]),
        ([0.5, None, 0.25], ["0.25", "0.5", "no difficulty given"]),
        (["Hard", "Easy", "Medium", "Easy"], ["Easy", "Medium", "Hard"]),
        (["Level 10", "Level 2", "level 1"], ["level 1", "Level 2", "Level 10"]),
        (["geometry", "Algebra", "algebra 2"], ["Algebra", "algebra 2", "geometry"]),
        (["10", "9", "9"], ["9", "10"]),
        (["", "easy", "hard"], ["easy", "hard", "no difficulty given"]),
        # More digits than Python makes a number of; zeros in front, and digits of other scripts.
        (["z", "9" * 5000, "1" + "0" * 5000, "8" * 5000], ["8" * 5000, "9" * 5000, "1" + "0" * 5000, "z"]),
        (["level 010", "level 9", "level 0"], ["level 0", "level 9", "level 010"]),
        (["level \u0661\u0660", "level 9"], ["level 9", "level \u0661\u0660"]),
        ([float("nan"), 1.0, 2.0], ["1", "2", "no difficulty given"]),
        (list(range(1, 10)), ["easy (1 to 3)", "middle (4 to 6)", "hard (7 to 9)"]),
        # Eight of fourteen are equal and stay together, which leaves the middle one.
        ([1.5] * 8 + [2, 3, 4, 5, 6, 7], ["easy (1.5)", "middle (2)", "hard (3 to 7)"]),
        ([1.0, 1.0], []),
        ([None, None], []),
        ([], []),
    ],
)
def test_questions_are_sorted_into_bands(difficulties, names):
    assert [band.name for band in bands_by_difficulty(difficulties)] == names


@given(st.lists(st.one_of(st.none(), st.floats(), st.text(max_size=5), st.sampled_from(["easy", "hard", "1", "2"]))))
def test_bands_hold_each_question_once(difficulties):
    places = [place for band in bands_by_difficulty(difficulties) for place in band.places]
    assert not places or sorted(places) == list(range(len(difficulties)))


@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=7, unique=True))
def test_thirds_of_different_numbers_are_about_equal_and_in_order(numbers):
    bands = bands_by_difficulty(numbers)
    sizes = [len(band.places) for band in bands]
    assert len(bands) == 3
    assert max(sizes) - min(sizes) <= 1
    for easier, harder in pairwise(bands):
        assert max(numbers[place] for place in easier.places) < min(numbers[place] for place in harder.places)


REFUSALS = [
    "I'm sorry, but I can't help with that.",
    "I\u2019m sorry, but I can\u2019t assist with that request.",
    "I cannot answer this question.",
    "As an AI language model, I cannot provide an answer to this.",
    "I am unable to answer that question because it lacks context.",
    "Sorry, I can't do that.",
    "I won't answer this.",
    "I must decline to answer.",
    "I respectfully decline to answer.",
    "Unfortunately, I cannot provide a solution to this problem.",
    "I apologize, but I am not able to solve this problem without more information.",
    "I don't know.",
    "I do not know the answer.",
    "<think>3 + 4, so the answer is 7</think>I can't help with that.",
    "<think>Let me see.</think><answer>I cannot answer this question</answer>",
    "**I'm sorry**, but I cannot comply with this request.",
    "I refuse to answer.",
    "I'm not able to help you with this.",
    "I'm sorry. I can't provide that information.",
    "That is a question about chemistry. I cannot assist with that.",
    "I am not comfortable answering this question.",
    "I cannot fulfill this request.",
    "I'm unable to assist.",
    "Answer: I cannot answer this.",
]
ATTEMPTS = [
    "",
    "7",
    "I cannot divide by zero, so x = 3.",
    "We cannot have a negative length, which leaves 4.",
    "I can't help but notice that 3 and 4 make 7.",
    "I cannot solve this by factoring, so I use the quadratic formula.",
    "I cannot answer part (b) directly, so let me compute part (a).",
    "I can't do this in my head, let me write it down: 12",
    "I can't answer the question until I know the speed, which is 3.",
    "I cannot simplify it further. 3/4",
    "I can't complete the square here. It is 3.",
    "I can't solve it. Well, x is 4.",
    "We cannot do this since a is not divisible by b. The remainder is 3.",
    "We cannot continue the pattern since 9 is odd.",
    "I cannot give the details of the proof here. 42 is the result",
    "I will help with that. The sum is 9.",
    "I'm not sure, 12",
    "I don't know how many apples there are at first, so I call it x.",
    "We do not know the value of x yet, so call it y.",
    "The question cannot be answered with the given information.",
    "He said: I cannot help you. What did he mean by it?",
    "\\boxed{3} I'm sorry, I can't help you further.",
    "I'm sorry, I cannot help with the first part, but the answer is 12.",
    "<think>I cannot answer this question.</think>12",
    "<answer>12</answer> I cannot answer this question.",
    "I can provide an answer: 12",
    "She will not help him with his work. That leaves 3 hours.",
]


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refusal_is_found(text):
    assert is_refusal(text)
    assert group_of(text, "graded", 0.0) == group_of(text, "unparseable", 0.0) == "refusal"


@pytest.mark.parametrize("text", ATTEMPTS)
def test_an_attempt_is_no_refusal(text):
    assert not is_refusal(text)
    assert group_of(text, "graded", 0.0) == "wrong"
    assert group_of(text, "unparseable", 0.0) == "wrong_format"


def test_what_was_graded_cut_off_or_failed_is_that_whatever_it_says():
    assert group_of(REFUSALS[0], "graded", 1.0) == "right"
    assert group_of(REFUSALS[0], "graded", 0.3) == "partly"
    assert group_of(REFUSALS[0], "cut_off", 0.0) == "cut_off"
    assert group_of(REFUSALS[0], "failed", 0.0) == "failed"


@given(st.text())
def test_any_text_can_be_grouped(text):
    assert group_of(text, "unparseable", 0.0) in ("refusal", "wrong_format")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "part",
    [
        "i am sorry ",
        "sorry,",
        "as an ai ",
        "i apologize for the ",
        "<answer>",
        "</think>",
        "<think>",
        "I cannot ",
        ". ",
    ],
)
def test_no_long_text_is_slow(part):
    assert not is_refusal(part * 50_000)  # the test's timeout is what a runaway pattern would meet
