"""The watch metric in the engine: graded beside the reward, never learned from, and its failures never end anything."""

import threading

import pytest
import torch

from ratchet.config import RewardSettings
from ratchet.engine.grading import Grader, grade_while_sampling, watch_failure_counts, watch_mean
from ratchet.engine.sampler import Sampled
from ratchet.errors import SandboxUnavailable
from ratchet.run.records import Completion, Grade, Group, Rollout
from ratchet.run.round_lines import rollout_row

from .scripted import Rounds, WordVerifier, completion, prompt


class Opposite:
    """Finds right what the verifier finds wrong, and the other way round."""

    def __init__(self):
        self.asked = []

    def grade(self, text, prompt):
        self.asked.append(text)
        return Grade({"wrong": 1.0, "half": 0.25}.get(text, 0.0), "graded")

    def close(self):
        pass


class Raising:
    def __init__(self, error):
        self.error = error

    def grade(self, text, prompt):
        raise self.error


def grader_of(watch, threads=1):
    return Grader(WordVerifier([]), RewardSettings(format_bonus="off"), 16, False, threads=threads, watch=watch)


def stream_of(*words):
    yield from (Sampled(0, answer, completion(word)) for answer, word in enumerate(words))


def rollouts_of(watch, *words):
    (group,) = grade_while_sampling(grader_of(watch), [prompt(1)], stream_of(*words), answers=len(words))
    return group


def test_both_grade_the_same_answers_and_neither_changes_the_other():
    group = rollouts_of(Opposite(), "right", "wrong", "half", "?")
    assert [rollout.reward for rollout in group] == [1.0, 0.0, 0.5, 0.0]
    assert [rollout.watch.correctness for rollout in group] == [0.0, 1.0, 0.25, 0.0]
    assert watch_mean(group) == 1.25 / 4


def test_without_one_nothing_is_known_of_it():
    group = rollouts_of(None, "right", "wrong")
    assert [rollout.watch for rollout in group] == [None, None]
    assert watch_mean(group) is None
    assert "watch" not in rollout_row(Group(prompt(1), (1,), group))["answers"][0]


def test_an_answer_that_is_cut_off_counts_zero_unasked():
    watch = Opposite()
    group = rollouts_of(watch, "wrong", "...")
    assert watch_mean(group) == 0.5
    assert group[1].watch == Grade(0.0, "cut_off")
    assert watch.asked == ["wrong"]


@pytest.mark.parametrize(
    ("error", "kind"), [(SandboxUnavailable("the kernel says no"), "sandbox"), (ValueError("poison"), "execution")]
)
def test_a_fault_of_it_is_a_failed_grade_and_no_end(error, kind):
    group = rollouts_of(Raising(error), "right", "wrong", "...")
    assert [rollout.reward for rollout in group] == [1.0, 0.0, 0.0]
    assert watch_failure_counts(group) == {kind: 2}
    assert watch_mean(group) == 0.0  # what is known is the one that was cut off


def watched(*grades):
    done = Completion((1,), (0.0,), None, "b", "stop")
    return [Rollout(done, Grade(1.0, "graded"), 0.0, 1.0, watch=grade) for grade in grades]


def test_failed_ones_are_left_out_of_the_mean_and_counted_by_kind():
    failed = Grade(0.0, "failed", failure="time")
    rollouts = watched(Grade(1.0, "graded"), Grade(0.5, "graded"), Grade(0.0, "unparseable"), failed, failed)
    assert watch_mean(rollouts) == 1.5 / 3
    assert watch_failure_counts(rollouts) == {"time": 2}
    assert watch_mean(watched(failed)) is None


def test_of_a_composite_it_is_the_weighted_mean():
    assert watch_mean(watched(Grade(1.0, "graded", score=0.25), Grade(0.0, "graded", score=0.75))) == 0.5


def test_its_value_is_in_the_rollouts_file_none_where_it_failed():
    rollouts = tuple(watched(Grade(0.25, "graded"), Grade(0.0, "failed", failure="time")))
    told = [
        {key: answer[key] for key in ("watch", "watch_outcome", "watch_failure")}
        for answer in rollout_row(Group(prompt(1), (1,), rollouts))["answers"]
    ]
    assert told == [
        {"watch": 0.25, "watch_outcome": "graded", "watch_failure": None},
        {"watch": None, "watch_outcome": "failed", "watch_failure": "time"},
    ]


def test_a_slow_one_holds_up_no_reward_and_grades_while_sampling_goes_on():
    rewarded, watched_first = threading.Event(), threading.Event()

    class Waiting(WordVerifier):
        def grade(self, text, prompt):
            if text == "right":
                rewarded.set()
            return super().grade(text, prompt)

    class Slow(Opposite):
        def grade(self, text, prompt):
            if text == "wrong":
                assert rewarded.wait(10), "the reward of the second answer waited for the watch metric of the first"
            watched_first.set()
            return super().grade(text, prompt)

    def stream():
        yield Sampled(0, 0, completion("wrong"))
        yield Sampled(0, 1, completion("right"))
        assert watched_first.wait(10), "nothing was watched before the last answer was there"
        yield Sampled(0, 2, completion("half"))

    grader = Grader(
        Waiting([]), RewardSettings(format_bonus="off"), 16, False, threads=1, watch=Slow(), watch_threads=1
    )
    (group,) = grade_while_sampling(grader, [prompt(1)], stream(), answers=3)
    assert watch_mean(group) == 1.25 / 3


SCRIPT = {
    "training": [["right", "wrong"], ["half", "wrong"], ["right", "..."]],
    "validation": [["wrong"], ["right"] * 3 + ["wrong"], ["right", "wrong"], ["wrong"]],
    "rounds": 3,
}


def test_it_ranks_no_round_and_nothing_is_learned_from_it():
    plain, seen = Rounds(**SCRIPT), Rounds(**SCRIPT, watch=Opposite())
    assert plain.run() == seen.run() == "all_rounds"
    for round_number, state in plain.states.items():
        for name, tensor in state.items():
            assert torch.equal(tensor, seen.states[round_number][name])
    # The watch metric is best in round 0 and 3; what is kept is the best by validation accuracy.
    assert [record.validation.watch for record in seen.records] == [1.0, 0.25, 0.5, 1.0]
    assert [record.best_round for record in seen.records] == [0, 1, 1, 1]
    assert [record.watch for record in seen.records] == [None, 0.5, 0.625, 0.0]
    left_out = {"watch": None, "validation": None, "seconds": None}
    assert [record.model_copy(update=left_out) for record in seen.records] == [
        record.model_copy(update=left_out) for record in plain.records
    ]


def test_failing_on_everything_it_leaves_the_run_as_it_was():
    plain, failing = Rounds(**SCRIPT), Rounds(**SCRIPT, watch=Raising(RuntimeError("poison")))
    assert plain.run() == failing.run() == "all_rounds"
    assert [record.best_round for record in failing.records] == [record.best_round for record in plain.records]
    assert [record.watch for record in failing.records] == [None, None, None, 0.0]  # two cut off in round 3
    assert failing.records[1].watch_failures == {"execution": 4}
    assert failing.records[1].validation.watch_failures == {"execution": 4}
