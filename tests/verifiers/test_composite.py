"""Several verifiers on one answer: the mean that is trained on, the part that is correctness, and the numbers below."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.config import (
    ClassificationVerifier,
    CompositePart,
    CompositeVerifier,
    CustomVerifier,
    NumericVerifier,
    PythonVerifier,
    QaVerifier,
)
from ratchet.errors import InvalidSetting
from ratchet.run.records import Grade, Prompt
from ratchet.verifiers import make_verifier, takes_function
from ratchet.verifiers.composite import Composite, Part


class Fixed:
    """A verifier that always finds the same and remembers whether it was closed."""

    def __init__(self, grade, reason=None):
        self.found, self.reason, self.is_closed = grade, reason, False

    def check_ground_truth(self, prompt):
        return self.reason

    def grade(self, text, prompt):
        return self.found

    def close(self):
        self.is_closed = True


ROW = Prompt(1, (), "7")


def composite(*grades, weights=None, kinds="abcdefgh", correctness_from=0):
    parts = [Part(k, Fixed(g), w) for k, g, w in zip(kinds, grades, weights or [1.0] * len(grades), strict=False)]
    return Composite(parts, correctness_from=correctness_from)


def graded(number, **parts):
    return Grade(number, "graded", parts)


UNPARSEABLE = Grade(0.0, "unparseable", {"x": 0.0})


@pytest.mark.parametrize(
    ("grades", "weights", "score"),
    [
        ((graded(1.0), graded(0.0)), (1.0, 3.0), 0.25),
        ((graded(0.5), graded(1.0), graded(0.0)), (2.0, 1.0, 1.0), 0.5),
        ((graded(1.0), UNPARSEABLE), (1.0, 1.0), 0.5),  # what cannot be read counts 0
        ((UNPARSEABLE, graded(1.0)), (1.0, 4.0), 0.0),  # the stated part itself: unparseable, so 0
        ((graded(1.0), Grade(1.0, "graded", score=0.5)), (1.0, 1.0), 0.75),
    ],
)
def test_the_score_is_the_weighted_mean_over_the_weights_sum(grades, weights, score):
    assert composite(*grades, weights=weights).grade("", ROW).score == pytest.approx(score)


@pytest.mark.parametrize(
    ("index", "correctness", "outcome"), [(0, 0.25, "graded"), (1, 0.0, "unparseable"), (2, 1.0, "graded")]
)
def test_correctness_and_outcome_are_those_of_the_stated_part(index, correctness, outcome):
    found = composite(graded(0.25), UNPARSEABLE, graded(1.0), correctness_from=index).grade("", ROW)
    assert (found.correctness, found.outcome) == (correctness, outcome)
    assert found.score == pytest.approx(1.25 / 3 if outcome == "graded" else 0)


def test_every_part_is_reported_by_its_kind_with_its_own_numbers_below():
    found = composite(graded(1.0, f1=0.5), UNPARSEABLE, graded(0.5, f1=0.25), kinds=["qa", "numeric", "qa"]).grade(
        "", ROW
    )
    assert found.parts == {"qa": 1.0, "qa.f1": 0.5, "numeric": 0.0, "numeric.x": 0.0, "qa_2": 0.5, "qa_2.f1": 0.25}


@pytest.mark.parametrize("index", [0, 1])
def test_one_failed_part_fails_the_answer(index):
    failed = Grade(0.0, "failed", failure="time")
    found = composite(graded(1.0), failed, correctness_from=index).grade("", ROW)
    assert found == failed


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 1e6)), min_size=2, max_size=8))
def test_the_score_lies_between_the_least_and_the_most(parts):
    numbers, weights = zip(*parts, strict=True)
    score = composite(*map(graded, numbers), weights=weights).grade("", ROW).score
    assert 0 <= score <= 1
    assert min(numbers) - 1e-12 <= score <= max(numbers) + 1e-12


def test_a_reference_must_be_gradable_by_every_part():
    fine, picky = Fixed(graded(1.0)), Fixed(graded(1.0), reason="is odd")
    whole = Composite([Part("qa", fine, 1.0), Part("qa", picky, 1.0)], correctness_from=0)
    assert whole.check_ground_truth(ROW) == "is odd (part qa_2)"
    whole.close()
    assert fine.is_closed
    assert picky.is_closed


def test_parts_are_built_from_settings_and_read_as_the_composite_does_unless_they_say_so():
    labels = ClassificationVerifier(labels=("7", "8"), read="whole")
    settings = CompositeVerifier(
        read="after_reasoning",
        parts=(CompositePart(verifier=NumericVerifier(), weight=3.0), CompositePart(verifier=labels)),
    )
    verifier = make_verifier(settings)
    assert verifier.check_ground_truth(ROW) is None
    found = verifier.grade("hm</think>7.0", ROW)
    assert (found.correctness, found.outcome, found.score) == (1.0, "graded", 0.75)
    assert found.parts["classification"] == 0.0


def test_parts_read_the_answer_tag_where_the_tags_bonus_is_on():
    settings = CompositeVerifier(
        parts=(CompositePart(verifier=NumericVerifier()), CompositePart(verifier=QaVerifier()))
    )
    text = "<think>3 + 4</think><answer>7</answer>"
    assert make_verifier(settings, prefer_answer_tag=True).grade(text, ROW).score == 1.0
    assert make_verifier(settings).grade(text, ROW).score == 0.0


def test_a_function_may_be_a_part():
    settings = CompositeVerifier(parts=(CompositePart(verifier=QaVerifier()), CompositePart(verifier=PythonVerifier())))
    assert takes_function(settings)
    found = make_verifier(settings, function=lambda answer, truth: 0.5).grade("7", ROW)
    assert (found.score, found.parts["python"]) == (0.75, 0.5)
    with pytest.raises(InvalidSetting, match="verifier=function"):
        make_verifier(settings)
    plain = CompositeVerifier(parts=(CompositePart(verifier=QaVerifier()), CompositePart(verifier=QaVerifier())))
    with pytest.raises(InvalidSetting, match="kind is composite"):
        make_verifier(plain, function=lambda answer, truth: 0.5)


def test_messages_name_the_metrics_in_it():
    metric = CustomVerifier(metric="closeness", version=2)
    with_metric = CompositeVerifier(parts=(CompositePart(verifier=QaVerifier()), CompositePart(verifier=metric)))
    assert with_metric.title == "Verifier composite (Metric closeness version 2)"
    without = CompositeVerifier(parts=(CompositePart(verifier=QaVerifier()), CompositePart(verifier=QaVerifier())))
    assert without.title == "Verifier composite"
