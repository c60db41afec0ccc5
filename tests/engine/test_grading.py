"""Grading: the reward worked out by hand, outcomes counted apart, and order kept while sampling goes on."""

import threading
import time

import pytest

from ratchet.config import RewardSettings
from ratchet.engine.grading import (
    Grader,
    failure_counts,
    grade_while_sampling,
    outcome_counts,
    part_means,
    refuse_failing_verifier,
)
from ratchet.engine.sampler import Sampled
from ratchet.errors import Interrupted, VerifierFailing
from ratchet.run.records import Completion, Grade, Group, Rollout

from .scripted import WordVerifier, completion, prompt


class Fixed:
    """A verifier that always finds the same."""

    def __init__(self, grade):
        self.found = grade

    def grade(self, text, prompt):
        return self.found


def grader_of(grade, max_answer_tokens=16, prefilled_think=False, **reward):
    settings = RewardSettings(**{"format_bonus": "tags", **reward})
    return Grader(Fixed(grade), settings, max_answer_tokens, prefilled_think)


def written(text, tokens=3, finish="stop"):
    return Completion(tuple(range(tokens)), (0.0,) * tokens, (0.0,) * tokens, text, finish)


FORMATTED, BARE = "<think>a</think><answer>b</answer>", "b"
REWARDS = {
    # (correctness + weight * format) / (1 + weight), weight 0.1
    "right in the form": (Grade(1.0, "graded"), FORMATTED, 1.0, 1.0),
    "right without the form": (Grade(1.0, "graded"), BARE, 0.0, 1 / 1.1),
    "wrong in the form": (Grade(0.0, "graded"), FORMATTED, 1.0, 0.1 / 1.1),
    "wrong without the form": (Grade(0.0, "graded"), BARE, 0.0, 0.0),
    "partly right in the form": (Grade(0.5, "graded"), FORMATTED, 1.0, 0.6 / 1.1),
    "unparseable in the form": (Grade(0.0, "unparseable"), FORMATTED, 1.0, 0.1 / 1.1),
    "failed in the form": (Grade(0.0, "failed", failure="time"), FORMATTED, 0.0, 0.0),
}


@pytest.mark.parametrize("case", REWARDS)
def test_the_reward_is_correctness_and_a_tenth_for_the_form_over_their_weights(case):
    grade, text, earned, reward = REWARDS[case]
    rollout = grader_of(grade).grade(written(text), prompt(1))
    assert (rollout.format, rollout.grade) == (earned, grade)
    assert rollout.reward == pytest.approx(reward, abs=1e-12)


def test_without_a_bonus_the_reward_is_correctness():
    rollout = grader_of(Grade(0.5, "graded"), format_bonus="off").grade(written(FORMATTED), prompt(1))
    assert (rollout.format, rollout.reward) == (0.0, 0.5)


def test_a_heavier_bonus_weighs_as_it_says():
    settings = {"format_weight": 1.0, "format_reason": "just for a test"}
    rollout = grader_of(Grade(0.0, "graded"), **settings).grade(written(FORMATTED), prompt(1))
    assert rollout.reward == 0.5  # (0 + 1 * 1) / (1 + 1)


def test_a_cut_off_answer_earns_nothing_and_the_verifier_is_not_asked():
    calls = []
    grader = Grader(WordVerifier(calls), RewardSettings(format_bonus="tags"), 16, prefilled_think=False)
    rollout = grader.grade(written(FORMATTED, finish="length"), prompt(1))
    assert (rollout.reward, rollout.format, rollout.grade.outcome) == (0.0, 0.0, "cut_off")
    assert calls == []


@pytest.mark.parametrize(("tokens", "factor"), [(11, 1.0), (12, 1.0), (13, 0.75), (14, 0.5), (15, 0.25), (16, 0.0)])
def test_over_the_overlong_buffer_correctness_shrinks_in_a_straight_line(tokens, factor):
    # Longest answer 16, buffer 4: full up to 12 tokens, then a quarter less with each.
    grader = grader_of(Grade(1.0, "graded"), format_bonus="off", overlong_buffer_tokens=4)
    rollout = grader.grade(written("b", tokens), prompt(1))
    assert rollout.reward == pytest.approx(factor)
    assert rollout.grade.correctness == 1.0  # accuracy is correctness alone


def test_a_buffer_longer_than_the_longest_answer_keeps_the_reward_in_its_range():
    grader = grader_of(Grade(1.0, "graded"), format_bonus="off", overlong_buffer_tokens=1000)
    rewards = [grader.grade(written("b", tokens), prompt(1)).reward for tokens in (1, 8, 16)]
    assert all(0 <= reward <= 1 for reward in rewards)
    assert rewards == sorted(rewards, reverse=True)


def test_overlong_buffer_and_bonus_go_together():
    # correctness 0.5 of the buffer, bonus 1: (0.5 + 0.1) / 1.1
    grader = grader_of(Grade(1.0, "graded"), overlong_buffer_tokens=4)
    assert grader.grade(written(FORMATTED, 14), prompt(1)).reward == pytest.approx(0.6 / 1.1)


def test_a_template_that_opens_think_leaves_the_opening_tag_out_of_the_answer():
    text = "a</think><answer>b</answer>"
    assert grader_of(Grade(1.0, "graded"), prefilled_think=True).grade(written(text), prompt(1)).format == 1.0
    assert grader_of(Grade(1.0, "graded"), prefilled_think=False).grade(written(text), prompt(1)).format == 0.0


def test_a_pattern_of_the_users_own_earns_the_bonus():
    grader = grader_of(Grade(1.0, "graded"), format_bonus="pattern", format_pattern=r"so: \d+")
    assert grader.grade(written("so: 12"), prompt(1)).format == 1.0
    assert grader.grade(written("so: twelve"), prompt(1)).format == 0.0


def rollout_of(outcome, failure=None, **parts):
    grade = Grade(1.0 if outcome == "graded" else 0.0, outcome, parts, failure)
    return Rollout(written("b"), grade, format=0.0, reward=grade.correctness)


def test_every_outcome_is_counted_by_name():
    rollouts = [rollout_of("graded"), rollout_of("graded"), rollout_of("cut_off"), rollout_of("failed", "time")]
    assert outcome_counts(rollouts) == {"graded": 2, "unparseable": 0, "cut_off": 1, "failed": 1}


def test_failures_are_counted_by_kind():
    rollouts = [rollout_of("failed", "time"), rollout_of("failed", "time"), rollout_of("failed"), rollout_of("graded")]
    assert failure_counts(rollouts) == {"time": 2, "unknown": 1}


def test_a_part_that_an_answer_lacks_counts_as_zero():
    rollouts = [rollout_of("graded", strict=1.0), rollout_of("graded", strict=0.5), rollout_of("cut_off")]
    assert part_means(rollouts) == {"strict": 0.5}


def test_a_failing_verifier_is_named_with_counts_by_kind():
    rollouts = [rollout_of("failed", "time")] * 2 + [rollout_of("failed", "result")] + [rollout_of("graded")] * 7
    with pytest.raises(VerifierFailing) as caught:
        refuse_failing_verifier([Group(prompt(1), (1,), tuple(rollouts))], 4, "Verifier math")
    assert "Verifier math failed on 3 of 10 answers in round 4 (1 by result, 2 by time)" in str(caught.value)


def test_no_answer_to_grade_is_no_failure():
    refuse_failing_verifier([Group(prompt(1), (1,), (rollout_of("cut_off"),))], 1, "math")


def stream_of(items, log=None):
    for request, answer, word in items:
        if log is not None:
            log.append((request, answer))
        yield Sampled(request, answer, completion(word))


def words_grader(threads=2):
    return Grader(WordVerifier([]), RewardSettings(format_bonus="off"), 16, prefilled_think=False, threads=threads)


def test_answers_are_in_order_whatever_the_order_in_which_they_finish():
    finished = [(1, 1, "wrong"), (0, 1, "right"), (1, 0, "half"), (0, 0, "?")]
    groups = grade_while_sampling(words_grader(), [prompt(1), prompt(2)], stream_of(finished), answers=2)
    assert [[rollout.completion.text for rollout in group] for group in groups] == [["?", "right"], ["half", "wrong"]]


def test_an_answer_is_graded_while_others_are_still_being_sampled():
    graded = threading.Event()

    class Telling(WordVerifier):
        def grade(self, text, prompt):
            graded.set()
            return super().grade(text, prompt)

    def stream():
        yield Sampled(0, 0, completion("right"))
        assert graded.wait(10), "nothing was graded before the second answer was there"
        yield Sampled(0, 1, completion("wrong"))

    grader = Grader(Telling([]), RewardSettings(format_bonus="off"), 16, prefilled_think=False)
    [(first, second)] = grade_while_sampling(grader, [prompt(1)], stream(), answers=2)
    assert (first.reward, second.reward) == (1.0, 0.0)


def test_sampling_that_is_given_up_closes_the_stream_and_waits_for_no_further_grading():
    graded, closed = [], []

    class Slow(WordVerifier):
        def grade(self, text, prompt):
            graded.append(text)
            time.sleep(0.05)
            return super().grade(text, prompt)

    def stream():
        try:
            for answer in range(50):
                yield Sampled(0, answer, completion("right"))
            raise Interrupted("enough")
        finally:
            closed.append(True)

    grader = Grader(Slow([]), RewardSettings(format_bonus="off"), 16, prefilled_think=False, threads=1)
    with pytest.raises(Interrupted):
        grade_while_sampling(grader, [prompt(1)], stream(), answers=50)
    assert closed == [True]
    assert len(graded) < 10


def test_a_fault_in_grading_closes_the_stream():
    closed = []

    def stream():
        try:
            yield Sampled(0, 0, completion("no such word"))
        finally:
            closed.append(True)

    with pytest.raises(KeyError):
        grade_while_sampling(words_grader(), [prompt(1)], stream(), answers=1)
    assert closed == [True]
