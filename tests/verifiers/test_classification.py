"""Labels: the whole text, trimmed and case-folded, or nothing."""

import pytest

from ratchet.config import ClassificationVerifier
from ratchet.run.records import Prompt
from ratchet.verifiers import make_verifier

LABELS = ("positive", "Negative ", "Straße", "not sure")


def grade(text, truth="negative", **settings):
    return make_verifier(ClassificationVerifier(labels=LABELS, **settings)).grade(text, Prompt(1, (), truth))


@pytest.mark.parametrize("text", ["negative", " NEGATIVE\n", "Negative"])
def test_the_right_label_is_right_whatever_its_capitals_and_blanks(text):
    found = grade(text)
    assert (found.outcome, found.correctness, found.parts) == ("graded", 1.0, {"label_accuracy": 1.0})


@pytest.mark.parametrize("text", ["positive", "STRASSE", "Not Sure"])
def test_another_label_is_wrong(text):
    found = grade(text)
    assert (found.outcome, found.correctness, found.parts) == ("graded", 0.0, {"label_accuracy": 0.0})


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "negative.",
        "It is negative",
        "positive negative",
        "positive, negative",
        "neg",
        "not  sure",
        "**negative**",
    ],
)
def test_any_other_text_is_unparseable(text):
    found = grade(text)
    assert (found.outcome, found.correctness, found.parts) == ("unparseable", 0.0, {"label_accuracy": 0.0})


def test_case_folding_goes_beyond_lower_case():
    assert grade("strasse", truth="STRASSE").correctness == 1.0


def test_a_reference_must_be_a_label():
    verifier = make_verifier(ClassificationVerifier(labels=LABELS))
    assert verifier.check_ground_truth(Prompt(1, (), " POSITIVE ")) is None
    assert verifier.check_ground_truth(Prompt(1, (), "neutral")) == "is none of the 4 labels"


def test_the_part_to_read_comes_first():
    assert grade("hm</think> negative", read="after_reasoning").correctness == 1.0
    assert grade("negative", read="after_reasoning").outcome == "unparseable"
