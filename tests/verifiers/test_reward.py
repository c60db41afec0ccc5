"""The one reward formula, on numbers worked by hand. Through the grader it is tested in tests/engine/test_grading.py."""

import pytest

from ratchet.config import RewardSettings
from ratchet.errors import InvalidSetting
from ratchet.run.records import Grade
from ratchet.verifiers import Shaping, length_factor

FORMED, BARE = "<think>a</think><answer>b</answer>", "b"


def earned(grade, text, prefilled_think=False, length=1.0, **reward):
    return Shaping(RewardSettings(**{"format_bonus": "tags", **reward}), prefilled_think).earned(grade, text, length)


@pytest.mark.parametrize(
    ("grade", "text", "form", "reward"),
    [
        (Grade(1.0, "graded"), FORMED, 1.0, 1.0),
        (Grade(1.0, "graded"), BARE, 0.0, 1 / 1.1),
        (Grade(0.0, "unparseable"), FORMED, 1.0, 0.1 / 1.1),
        (Grade(0.0, "failed", failure="time"), FORMED, 0.0, 0.0),
        # what is trained on is the score where there is one: (0.75 + 0.1) / 1.1
        (Grade(1.0, "graded", score=0.75), FORMED, 1.0, 0.85 / 1.1),
        (Grade(0.0, "graded", score=0.75), BARE, 0.0, 0.75 / 1.1),
        (Grade(0.0, "unparseable", score=0.25), BARE, 0.0, 0.25 / 1.1),
        (Grade(1.0, "graded", score=0.0), BARE, 0.0, 0.0),
    ],
)
def test_the_reward_is_the_score_and_a_tenth_for_the_form_over_their_weights(grade, text, form, reward):
    assert earned(grade, text) == (form, pytest.approx(reward))


def test_without_a_bonus_the_reward_is_the_score_times_the_length_factor():
    assert earned(Grade(1.0, "graded", score=0.5), FORMED, format_bonus="off") == (0.0, 0.5)
    assert earned(Grade(1.0, "graded"), FORMED, length=0.25, format_bonus="off") == (0.0, 0.25)


def test_a_think_tag_that_the_prompt_opened_counts():
    text = FORMED.removeprefix("<think>")
    assert earned(Grade(1.0, "graded"), text, prefilled_think=True) == (1.0, 1.0)
    assert earned(Grade(1.0, "graded"), text).format == 0.0


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(InvalidSetting, match="Format pattern"):
        earned(Grade(1.0, "graded"), BARE, format_bonus="pattern", format_pattern="((")


@pytest.mark.parametrize(("tokens", "factor"), [(0, 1.0), (12, 1.0), (13, 0.75), (15, 0.25), (16, 0.0), (99, 0.0)])
def test_length_shrinks_the_score_over_the_last_tokens_before_the_limit(tokens, factor):
    assert length_factor(tokens, max_answer_tokens=16, buffer_tokens=4) == factor  # 12 tokens are free of it


def test_without_a_buffer_length_does_not_matter():
    assert length_factor(10**6, max_answer_tokens=16, buffer_tokens=None) == 1.0
