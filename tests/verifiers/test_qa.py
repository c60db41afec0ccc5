"""SQuAD's two numbers: worked by hand, and against another implementation of the evaluation script."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.config import QaVerifier
from ratchet.run.records import Prompt
from ratchet.verifiers import make_verifier
from ratchet.verifiers.qa import normalized, token_f1


def grade(text, truth, **settings_):
    return make_verifier(QaVerifier(**settings_)).grade(text, Prompt(1, (), truth))


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The  Eiffel-Tower!", "eiffeltower"),
        ("a man, an owl and the sea", "man owl and sea"),
        ("Theatre another banana", "theatre another banana"),  # articles only as whole words
        ("U.S.A.", "usa"),
        ("the-end", "theend"),  # punctuation goes before articles
        ("Ünter\u00a0Den\tLinden\n", "ünter den linden"),
        ("«oui»", "«oui»"),  # only ASCII punctuation is removed
        ("The A an.", ""),
    ],
)
def test_text_is_normalised_as_the_evaluation_script_does(text, plain):
    assert normalized(text) == plain


@pytest.mark.parametrize(
    ("text", "truth", "exact", "f1"),
    [
        ("The Denver Broncos.", "denver broncos", 1.0, 1.0),
        # 2 words in common, 3 and 2 words: precision 2/3, recall 1, F1 = 2 * 2/3 / (5/3) = 0.8
        ("Denver Broncos won", "Denver Broncos", 0.0, 0.8),
        # a word counts as often as it occurs on both sides: 1 in common of 2 and 1
        ("Paris Paris", "Paris", 0.0, 2 / 3),
        ("Rome", "Paris", 0.0, 0.0),
        ("", "Paris", 0.0, 0.0),
        ("the", "Paris", 0.0, 0.0),
    ],
)
def test_exact_match_and_f1_worked_by_hand(text, truth, exact, f1):
    parts = {"normalized_exact_match": exact, "token_f1": pytest.approx(f1)}
    for metric in parts:
        found = grade(text, truth, metric=metric)
        assert (found.outcome, found.correctness, found.parts) == ("graded", parts[metric], parts)


def test_exact_match_is_what_is_trained_on_unless_told_otherwise():
    assert grade("Denver Broncos won", "Denver Broncos").correctness == 0.0


def test_a_reference_of_nothing_but_articles_and_punctuation_is_refused():
    verifier = make_verifier(QaVerifier())
    for truth in ("", " ", "The", "a.", "?!"):
        assert "is empty" in verifier.check_ground_truth(Prompt(1, (), truth))
    assert verifier.check_ground_truth(Prompt(1, (), "42")) is None


def test_an_answer_without_the_part_that_is_read_is_unparseable():
    found = grade("Paris", "Paris", read="after_reasoning")
    assert (found.outcome, found.correctness) == ("unparseable", 0.0)
    assert grade("Rome?</think>Paris", "Paris", read="after_reasoning").correctness == 1.0


WORDS = st.lists(
    st.sampled_from(["the", "The", "a", "an", "cat", "Cat!", "cat's", "dog", "U.S.", "-", "théâtre", "x1", "\u00a0"]),
    max_size=8,
).map(" ".join)


@settings(deadline=None, max_examples=300)
@given(WORDS | st.text(max_size=30), WORDS | st.text(max_size=30))
def test_both_numbers_agree_with_torchmetrics(text, truth):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a third party's, at import
        from torchmetrics.functional.text.squad import _compute_exact_match_score, _compute_f1_score
    answer, expected = normalized(text).split(), normalized(truth).split()
    assert float(normalized(text) == normalized(truth)) == float(_compute_exact_match_score(text, truth))
    if answer and expected:  # two texts without a word agree there, as in SQuAD 2; such a reference is refused here
        assert token_f1(answer, expected) == pytest.approx(float(_compute_f1_score(text, truth)), abs=1e-6)
