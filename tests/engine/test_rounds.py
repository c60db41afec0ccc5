"""The rounds, driven by a script: order of calls, what is dropped, which round is kept, and every ending."""

import pytest
import torch

from ratchet.config import LimitSettings, RewardSettings
from ratchet.engine.rounds import _signal_ending
from ratchet.errors import DiskFull, Interrupted, NoLearningSignal, NotFinite, OutOfMemory, VerifierFailing
from ratchet.run.endings import target_reached

from .scripted import Rounds

MIXED = ["right", "wrong"]


def accuracies(*shares):
    """Validation answers of four prompts, so many of them right, one list a call."""
    return [["right"] * number + ["wrong"] * (4 - number) for number in shares]


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_round_samples_grades_updates_validates_and_reports_in_this_order():
    rounds = Rounds(training=[MIXED], validation=accuracies(2, 3), rounds=1)
    assert rounds.run() == "all_rounds"
    order = [call for call in rounds.calls if isinstance(call, str)]
    assert order == ["validate", "report 0", "sample", "rest", "update", "validate", "report 1"]
    assert len([call for call in rounds.calls if call[0] == "grade"]) == 4 + 2 * 2 + 4


def test_round_zero_reports_the_starting_adapter_and_no_rollouts():
    rounds = Rounds(training=[MIXED], validation=accuracies(1), rounds=1)
    rounds.run()
    record, groups, _ = rounds.reports[0]
    assert (record.round, record.best_round, record.best_accuracy, record.validation.accuracy) == (0, 0, 0.25, 0.25)
    assert (groups, record.reward, record.learned, record.prompt_ids) == ((), None, None, [])


def test_groups_that_agree_are_dropped_and_counted():
    by_place = lambda place: MIXED if place == 0 else ["right", "right"]  # noqa: E731
    rounds = Rounds(training=[by_place], validation=accuracies(2), rounds=1, prompts_per_round=3)
    rounds.run()
    record, groups, _ = rounds.reports[1]
    assert (record.groups, record.informative_groups, len(groups)) == (3, 1, 3)
    assert record.signal_fraction == pytest.approx(1 / 3)
    assert record.learned.tokens == 2 * 3  # the answers of one group, three tokens each
    assert record.accuracy == pytest.approx(5 / 6)


def test_a_round_without_any_signal_updates_nothing_and_still_validates():
    rounds = Rounds(training=[["wrong", "wrong"]], validation=accuracies(2), rounds=1)
    assert rounds.run() == "all_rounds"
    assert "update" not in rounds.calls
    assert (rounds.records[1].learned.steps, rounds.records[1].learned.loss) == (0, None)
    assert_same_state(rounds.states[0], rounds.states[1])


def test_rewards_that_differ_by_rounding_are_no_signal():
    rounds = Rounds(training=[["right", "right"]], validation=accuracies(2), rounds=1)
    rounds.run()
    assert rounds.records[1].informative_groups == 0


def test_ties_go_to_the_earlier_round_and_only_a_higher_value_replaces_the_best():
    rounds = Rounds(training=[MIXED], validation=accuracies(2, 3, 3, 1, 4), rounds=4)
    rounds.run()
    assert [record.best_round for record in rounds.records] == [0, 1, 1, 1, 4]
    assert [record.best_accuracy for record in rounds.records] == [0.5, 0.75, 0.75, 0.75, 1.0]
    assert_same_state(rounds.reports[3][2].best_state, rounds.states[1])
    assert_same_state(rounds.last.best_state, rounds.states[4])


def test_a_run_that_never_beats_its_start_keeps_the_starting_adapter():
    rounds = Rounds(training=[MIXED], validation=accuracies(3, 2, 3), rounds=2)
    rounds.run()
    assert rounds.last.best_round == 0
    assert_same_state(rounds.last.best_state, rounds.states[0])
    assert any(not torch.equal(rounds.states[2][name], rounds.states[0][name]) for name in rounds.states[0])


def test_correctness_without_shaping_decides_and_not_the_reward():
    # "right" has the asked-for form and "half" has not: round 1 has the lower correctness and the higher reward.
    pattern = RewardSettings(format_bonus="pattern", format_pattern="right|wrong", format_weight=0.1)
    start, after = ["half"] * 4, ["right", "wrong", "wrong", "wrong"]
    rounds = Rounds(training=[MIXED], validation=[start, start, after], rounds=2, reward=pattern)
    rounds.run()
    validations = [record.validation for record in rounds.records]
    assert [validation.accuracy for validation in validations] == [0.5, 0.5, 0.25]
    assert validations[2].reward == pytest.approx((0.25 + 0.1) / 1.1)
    assert rounds.last.best_round == 0


def test_what_was_reported_before_is_not_changed_by_a_later_round_that_fails():
    rounds = Rounds(training=[MIXED], validation=accuracies(1, 2, 4), report_error={2: DiskFull("full")})
    with pytest.raises(DiskFull):
        rounds.run()
    _, _, progress = rounds.reports[1]
    assert (progress.rounds_done, progress.best_round) == (1, 1)


def test_all_rounds_done_is_an_ending():
    rounds = Rounds(training=[MIXED], validation=accuracies(2), rounds=3)
    assert rounds.run() == "all_rounds"
    assert [record.round for record in rounds.records] == [0, 1, 2, 3]


@pytest.mark.parametrize("reason", ["time_limit", "stopped"])
def test_a_reason_between_rounds_ends_before_the_next_round(reason):
    rounds = Rounds(training=[MIXED], validation=accuracies(2), rounds=5)
    rounds.stop = lambda when: reason if when == "between" and len(rounds.records) == 3 else None
    assert rounds.run() == reason
    assert rounds.calls[-1] == "report 2"


@pytest.mark.parametrize("reason", ["time_limit", "stopped"])
@pytest.mark.parametrize("phase", ["sample", "update", "validate"])
def test_a_reason_within_a_round_gives_up_that_round_alone(reason, phase):
    # One answer a micro-batch, so that the update asks again after it has begun.
    rounds = Rounds(training=[MIXED], validation=accuracies(1, 3, 4), rounds=5)
    rounds.learner.micro_batch_tokens = 8
    rounds.stop = lambda when: (
        reason if when == "within" and "report 1" in rounds.calls and last_phase(rounds.calls) == phase else None
    )
    with pytest.raises(Interrupted) as caught:
        rounds.run()
    assert caught.value.reason == reason
    assert [record.round for record in rounds.records] == [0, 1]
    assert_same_state(rounds.last.best_state, rounds.states[1])


def last_phase(calls):
    return [call for call in calls if isinstance(call, str)][-1]


def test_a_reason_before_round_zero_is_scored_leaves_nothing_reported():
    rounds = Rounds(training=[MIXED], validation=accuracies(2), stop=lambda when: "stopped")
    with pytest.raises(Interrupted):
        rounds.run()
    assert rounds.records == []


def ten_answers(broken, cut_off=0):
    """Answers to one prompt: broken ones, then cut-off ones, then right and wrong ones."""
    rest = 10 - broken
    return ["broken"] * broken + ["right", *["wrong"] * (rest - 1)] + ["..."] * cut_off


@pytest.mark.parametrize(("broken", "fails"), [(1, False), (2, True)], ids=["exactly a tenth", "above a tenth"])
def test_the_verifier_may_fail_on_a_tenth_of_the_answers(broken, fails):
    rounds = Rounds(
        training=[ten_answers(broken)], validation=accuracies(2), rounds=1, prompts_per_round=1, answers_per_prompt=10
    )
    if not fails:
        assert rounds.run() == "all_rounds"
        assert rounds.records[1].failures == {"execution": 1}
        return
    with pytest.raises(VerifierFailing) as caught:
        rounds.run()
    assert "failed on 2 of 10 answers in round 1 (2 by execution), more than 10%, which ends a run." in str(
        caught.value
    )
    assert "poison" not in str(caught.value)
    assert [record.round for record in rounds.records] == [0]


def test_cut_off_answers_do_not_dilute_the_share_of_failures():
    # 2 of 10 answers that the verifier was given, 2 of 20 sampled.
    answers = ten_answers(2, cut_off=10)
    rounds = Rounds(training=[answers], validation=accuracies(2), rounds=1, prompts_per_round=1, answers_per_prompt=20)
    with pytest.raises(VerifierFailing, match="on 2 of 10 answers"):
        rounds.run()


def test_running_out_of_memory_while_sampling_says_so():
    rounds = Rounds(training=[MIXED, OutOfMemory("full", "sampling")], validation=accuracies(2))
    with pytest.raises(OutOfMemory) as caught:
        rounds.run()
    assert caught.value.stage == "sampling"
    assert [record.round for record in rounds.records] == [0, 1]


def test_running_out_of_memory_while_updating_says_so():
    rounds = Rounds(training=[MIXED], validation=accuracies(2))

    def fail(module, args):
        raise torch.OutOfMemoryError("full")

    rounds.policy.model.register_forward_pre_hook(fail)
    with pytest.raises(OutOfMemory, match="Micro batch") as caught:
        rounds.run()
    assert caught.value.stage == "update"


def test_two_steps_in_a_row_that_are_not_finite_end_the_run_also_across_rounds():
    rounds = Rounds(training=[MIXED], validation=accuracies(2), rounds=5)
    rounds.policy.model.register_forward_hook(spoil)
    with pytest.raises(NotFinite, match="two steps in a row"):
        rounds.run()
    assert [record.round for record in rounds.records] == [0, 1]
    assert rounds.records[1].learned.skipped_steps == 1
    assert rounds.last.skipped_in_a_row == 1
    assert_same_state(rounds.states[0], rounds.states[1])


def test_a_resumed_run_remembers_that_its_last_step_was_not_finite():
    first = Rounds(training=[MIXED], validation=accuracies(2), rounds=1)
    first.policy.model.register_forward_hook(spoil)
    first.run()
    second = Rounds(training=[MIXED], validation=accuracies(2), rounds=5)
    second.policy.model.register_forward_hook(spoil)
    with pytest.raises(NotFinite):
        second.run(resumed=first.last)
    assert second.records == []


def spoil(module, args, output):
    output.logits = output.logits * float("nan")


NO_SIGNAL = {
    "all right": (
        ["right", "right"],
        "every answer was right (12 graded of 12 answers; mean score 1.00)",
        "harder prompts",
    ),
    "all wrong": (
        ["wrong", "wrong"],
        "all answers were wrong (12 graded of 12 answers; mean score 0.00)",
        "few-shot examples",
    ),
    "alike": (["half", "half"], "all answers to a prompt scored alike, 50% of them right", "Temperature"),
    "cut off": (
        ["...", "..."],
        "most answers were cut off (12 cut off of 12 answers; mean score 0.00)",
        "Raise Max answer tokens",
    ),
    "unparseable": (["?", "?"], "most answers were unparseable (12 unparseable of 12 answers", "system prompt"),
}


@pytest.mark.parametrize("cause", NO_SIGNAL)
def test_no_signal_since_the_start_fails_with_its_diagnosis_and_a_remedy(cause):
    words, diagnosis, remedy = NO_SIGNAL[cause]
    rounds = Rounds(training=[words], validation=accuracies(2), rounds=20)
    with pytest.raises(NoLearningSignal) as caught:
        rounds.run()
    assert f"no learning signal in rounds 1 to 3: {diagnosis}" in str(caught.value)
    assert remedy in str(caught.value)
    assert len(rounds.records) == 4


def test_no_signal_with_a_few_failed_answers_counts_them_apart():
    words = ["wrong"] * 18 + ["broken"] * 2
    rounds = Rounds(training=[words], validation=accuracies(2), rounds=20, prompts_per_round=1, answers_per_prompt=20)
    with pytest.raises(NoLearningSignal) as caught:
        rounds.run()
    assert "all answers were wrong (54 graded, 6 failed of 60 answers" in str(caught.value)


def test_no_signal_because_the_verifier_failed_says_so():
    # No run gets here while one failure in ten ends it, so the records are made up.
    rounds = Rounds(training=[["wrong", "wrong"]], validation=accuracies(2), rounds=1)
    rounds.run()
    outcomes = {"graded": 1, "unparseable": 1, "cut_off": 1, "failed": 4}
    records = [rounds.records[0], *(rounds.records[1].model_copy(update={"outcomes": outcomes}) for _ in range(3))]
    with pytest.raises(NoLearningSignal, match="the verifier failed on most answers"):
        _signal_ending(records, 3)


def test_a_round_with_signal_resets_nothing_but_shows_that_there_was_some():
    rounds = Rounds(training=[MIXED, ["wrong", "wrong"]], validation=accuracies(2), rounds=6)
    assert rounds.run() == "all_rounds"


def test_signal_that_dries_up_because_all_is_right_leaves_nothing_to_learn():
    rounds = Rounds(training=[MIXED, ["right", "right"]], validation=accuracies(2), rounds=20)
    assert rounds.run() == "nothing_left"
    assert rounds.records[-1].round == 4  # three rounds in a row without signal after the first


def test_the_signal_limit_is_a_setting():
    rounds = Rounds(training=[["wrong", "wrong"]], validation=accuracies(2), rounds=20, no_signal_rounds=5)
    with pytest.raises(NoLearningSignal, match="rounds 1 to 5"):
        rounds.run()


def test_fewer_rounds_than_the_signal_limit_end_as_all_rounds():
    assert Rounds(training=[["wrong", "wrong"]], validation=accuracies(2), rounds=2).run() == "all_rounds"


def test_a_run_resumed_after_its_last_round_without_signal_fails_as_it_would_have():
    rounds = Rounds(training=[["wrong", "wrong"]], validation=accuracies(2), rounds=3)
    with pytest.raises(NoLearningSignal):
        rounds.run()
    again = Rounds(training=[MIXED], validation=accuracies(2), rounds=20)
    with pytest.raises(NoLearningSignal, match="rounds 1 to 3"):
        again.run(resumed=rounds.last)
    assert again.calls == []


def test_a_resumed_run_does_only_the_rounds_that_are_left_on_the_prompts_that_are_left():
    whole = Rounds(training=[MIXED], validation=accuracies(2), rounds=4, prompts=8)
    whole.run()
    first = Rounds(training=[MIXED], validation=accuracies(2), rounds=2, prompts=8)
    first.run()
    second = Rounds(training=[MIXED], validation=accuracies(2), rounds=4, prompts=8)
    assert second.run(resumed=first.last) == "all_rounds"
    assert [record.round for record in second.records] == [3, 4]
    resumed = [record.prompt_ids for record in first.records + second.records]
    assert resumed == [record.prompt_ids for record in whole.records]


@pytest.mark.parametrize(
    ("prompts", "per_round", "epochs", "rounds"),
    [(4, 2, 1, 2), (5, 2, 1, 3), (5, 2, 3, 8), (3, 8, 2, 2)],
    ids=["even", "rounded up", "epochs run on", "fewer prompts than asked"],
)
def test_full_takes_as_many_rounds_as_the_epochs_need(prompts, per_round, epochs, rounds):
    run = Rounds(
        training=[MIXED],
        validation=accuracies(2),
        prompts=prompts,
        prompts_per_round=per_round,
        rounds="full",
        epochs=epochs,
    )
    assert run.run() == "all_rounds"
    assert run.records[-1].round == rounds
    used = [one for record in run.records for one in record.prompt_ids]
    assert all(used.count(number) >= epochs for number in range(1, prompts + 1))


def test_with_fewer_prompts_than_asked_a_round_takes_each_once():
    rounds = Rounds(training=[MIXED], validation=accuracies(2), prompts=3, prompts_per_round=8)
    rounds.run()
    assert [sorted(record.prompt_ids) for record in rounds.records[1:]] == [[1, 2, 3], [1, 2, 3]]


def test_a_round_never_has_a_prompt_twice_also_where_it_crosses_the_end_of_the_order():
    rounds = Rounds(training=[MIXED], validation=accuracies(2), prompts=5, prompts_per_round=3, rounds=10)
    rounds.run()
    assert all(len(set(record.prompt_ids)) == 3 for record in rounds.records[1:])


def refill(training, prompts=12, **rl):
    rounds = Rounds(training=training, validation=accuracies(2), prompts=prompts, dynamic_sampling="refill", **rl)
    rounds.run()
    return rounds


def test_dynamic_sampling_draws_only_as_many_as_lack_a_signal():
    by_place = lambda place: MIXED if place == 0 else ["wrong", "wrong"]  # noqa: E731
    rounds = refill([by_place, [*MIXED]], rounds=1, prompts_per_round=3)
    drawn = [len(requests) for requests in rounds.sampler.requests if requests[0].answers == 2]
    assert drawn == [3, 2]
    assert (rounds.records[1].groups, rounds.records[1].informative_groups) == (5, 3)


def test_dynamic_sampling_draws_three_times_at_most_and_never_a_prompt_twice():
    rounds = refill([["wrong", "wrong"]], rounds=1)
    assert rounds.calls.count("sample") == 3
    ids = rounds.records[1].prompt_ids
    assert len(ids) == len(set(ids)) == 6


def test_dynamic_sampling_does_not_draw_again_when_all_groups_carry_a_signal():
    assert refill([MIXED], rounds=1).calls.count("sample") == 1


def test_dynamic_sampling_ends_when_the_prompts_do():
    rounds = refill([["wrong", "wrong"]], prompts=3, rounds=1, prompts_per_round=2)
    assert sorted(rounds.records[1].prompt_ids) == [1, 2, 3]


def test_each_answer_is_seeded_by_seed_round_and_prompt():
    rounds = Rounds(training=[MIXED], validation=accuracies(2), prompts=2)
    rounds.run()
    keys = [request.random_key for call in rounds.sampler.requests for request in call if request.answers == 2]
    assert sorted(keys) == [(0, 1, 1), (0, 1, 2), (0, 2, 1), (0, 2, 2)]


def test_a_record_counts_every_answer_by_outcome():
    by_place = lambda place: [["right", "..."], ["?", "wrong"]][place]  # noqa: E731
    rounds = Rounds(training=[by_place], validation=accuracies(2), rounds=1)
    rounds.run()
    record = rounds.records[1]
    assert record.outcomes == {"graded": 2, "unparseable": 1, "cut_off": 1, "failed": 0}
    assert (record.reward, record.accuracy, record.answer_tokens) == (0.25, 0.25, 3.0)
    assert record.entropy == 0.5  # each token of the script has a log-probability of -0.5


# Round 0 answers none of four validation prompts right, round 1 two, round 2 three.
@pytest.mark.parametrize(
    ("target", "ending", "done"), [(50, "target", 1), (50.1, "target", 2), (75, "target", 2), (76, "all_rounds", 2)]
)
def test_a_run_ends_as_soon_as_validation_reaches_the_target(target, ending, done):
    rounds = Rounds(training=[MIXED], validation=accuracies(0, 2, 3))
    rounds.config = rounds.config.model_copy(update={"limits": LimitSettings(target_percent=target)})
    assert rounds.run() == ending
    assert rounds.records[-1].round == done


def test_a_target_that_the_start_reaches_ends_before_anything_is_learned():
    rounds = Rounds(training=[MIXED], validation=accuracies(4))
    rounds.config = rounds.config.model_copy(update={"limits": LimitSettings(target_percent=100)})
    assert rounds.run() == "target"
    assert [record.round for record in rounds.records] == [0]
    assert "sample" not in rounds.calls


def test_a_run_killed_after_the_round_that_reached_the_target_resumes_to_that_ending():
    rounds = Rounds(training=[MIXED], validation=accuracies(0, 2, 3))
    rounds.config = rounds.config.model_copy(update={"limits": LimitSettings(target_percent=50)})
    rounds.run()
    last = rounds.last
    assert rounds.run(resumed=last) == "target"
    assert rounds.records[-1].round == 1


def test_a_share_is_a_target_reached_also_where_floating_point_falls_short():
    assert 0.57 * 100 < 57  # what a plain comparison would go by
    assert target_reached(0.57, 57)
    assert not target_reached(0.5699, 57)
    assert not target_reached(1.0, None)
