"""Diagnoses: labelled curves, false alarms on healthy noise, what is too early, and every sentence's numbers."""

import pytest

from ratchet.config import RlSettings
from ratchet.run.health import examine, found_in_words
from ratchet.run.records import Learned

from ..curves import CASES, config_of, healthy_run, records_of

BY_NAME = {case["name"]: case for case in CASES}


def codes(case, upto=None):
    records = records_of(case)
    return {diagnosis.code for diagnosis in examine(records[:upto], config_of(case)).diagnoses}


def of(name, code):
    case = BY_NAME[name]
    (found,) = (d for d in examine(records_of(case), config_of(case)).diagnoses if d.code == code)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_is_wrong_is_found_and_nothing_else(case):
    found = codes(case)
    assert set(case["expected"]) <= found <= {*case["expected"], *case["may"]}


def test_the_cases_are_many_and_a_third_of_them_healthy():
    assert len(CASES) >= 60
    assert len(CASES) / 3 <= sum(not case["expected"] for case in CASES) <= len(CASES) / 2
    assert {code for case in CASES for code in case["expected"]} == {
        "reward_hacking",
        "entropy_collapse",
        "length_creep",
        "ratio_blow_up",
        "dead_signal",
        "mostly_cut_off",
        "parse_failures",
        "validation_collapse",
        "overfitting",
    }


def test_of_healthy_noisy_runs_at_most_a_twentieth_raises_anything(repeats):
    runs = repeats(500, 60)
    raised = [seed for seed in range(runs) if codes(healthy_run(seed))]
    assert len(raised) <= runs / 20, raised


@pytest.mark.slow
def test_nor_do_they_while_they_go_on_when_looked_at_after_each_round(repeats):
    def raises(seed):
        case = healthy_run(seed)
        records, config = records_of(case), config_of(case)
        return any(examine(records[:upto], config).diagnoses for upto in range(1, len(records) + 1))

    runs = repeats(60, 20)
    raised = [seed for seed in range(1000, 1000 + runs) if raises(seed)]
    assert len(raised) <= runs / 20, raised


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_two_rounds_are_too_early_for_anything_and_seven_for_trends(case):
    records, config = records_of(case), config_of(case)
    two = examine(records[:3], config)
    assert (two.diagnoses, two.trends) == ((), {})
    assert "(needs 3): 2 rounds are done" in two.too_early
    seven = {d.code for d in examine(records[:8], config).diagnoses}
    assert seven <= {"dead_signal", "mostly_cut_off", "parse_failures", "ratio_blow_up"}


def test_it_is_said_when_it_is_too_early_and_not_longer():
    case = BY_NAME["learns in 20 rounds"]
    records, config = records_of(case), config_of(case)
    assert examine(records[:1], config).too_early.startswith(
        "Not enough rounds for a diagnosis (needs 3): 0 rounds are done"
    )
    assert examine(records[:2], config).too_early.startswith(
        "Not enough rounds for a diagnosis (needs 3): 1 round is done"
    )
    assert examine(records[:4], config).too_early.startswith(
        "Not enough rounds for trends (needs 8): 3 rounds are done"
    )
    assert examine(records[:9], config).too_early == ""


def test_reward_hacking_names_both_curves_with_first_and_last_values():
    found, curves = of("watch falls", "reward_hacking"), BY_NAME["watch falls"]["curves"]
    reward, watch = found.curves
    assert (reward.name, reward.first, reward.last) == ("reward", curves["reward"][0], curves["reward"][-1])
    assert (watch.name, watch.first, watch.last) == ("watch metric (qa)", curves["watch"][0], curves["watch"][-1])
    assert found.evidence == (
        f"Reward rose from {reward.first:.3f} (round 1) to {reward.last:.3f} (round 20) while watch metric (qa) fell "
        f"from {watch.first:.3f} (round 1) to {watch.last:.3f} (round 20)."
    )


def test_hacking_after_a_good_start_is_seen_in_the_latter_half():
    found = of("watch rises first", "reward_hacking")
    assert [curve.first_round for curve in found.curves] == [31, 31]


def test_what_is_kept_is_said_where_validation_collapses():
    case = BY_NAME["collapses to nothing"]
    last = records_of(case)[-1]
    assert (
        f"the adapter of round {last.best_round}, with {last.best_accuracy:.1%}"
        in of(case["name"], "validation_collapse").evidence
    )


@pytest.mark.parametrize(
    ("name", "code", "loss", "remedy"),
    [
        ("entropy gone, stuck at half", "entropy_collapse", "grpo", "Set Loss to dapo"),
        ("entropy gone, stuck at half", "entropy_collapse", "dapo", "Raise Clip high"),
        ("twice as long, no better", "length_creep", "grpo", "Set Loss to dr_grpo"),
        ("twice as long, no better", "length_creep", "dr_grpo", "Set an Overlong buffer"),
        ("gradient explodes", "ratio_blow_up", "grpo", "Set Loss to gspo"),
        ("gradient explodes", "ratio_blow_up", "gspo", "Lower Learning rate"),
    ],
)
def test_the_remedy_is_not_what_is_set_already(name, code, loss, remedy):
    case = {**BY_NAME[name], "loss": loss}
    (found,) = (d for d in examine(records_of(case), config_of(case)).diagnoses if d.code == code)
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("name", "title", "remedy"),
    [
        ("all wrong", "No learning signal, all answers were wrong", "Train on demonstrations first"),
        ("all right", "No learning signal, every answer was right", "Choose harder prompts"),
        ("all cut off", "No learning signal, most answers were cut off", "Raise Max answer tokens"),
        ("all unparseable", "No learning signal, most answers were unparseable", "In the system prompt"),
        ("alike, half right", "No learning signal, all answers to a prompt scored alike", "Raise Temperature"),
    ],
)
def test_dead_signal_is_named_by_its_cause(name, title, remedy):
    found = of(name, "dead_signal")
    assert found.title.startswith(title)
    assert found.remedy.startswith(remedy)
    assert found.evidence.startswith("0 of 48 groups of rounds 10 to 12 ")


def test_a_verifier_that_fails_is_a_cause_too():
    case = {**BY_NAME["all wrong"], "curves": {**BY_NAME["all wrong"]["curves"], "failed": [0.9] * 12}}
    (found,) = examine(records_of(case), config_of(case)).diagnoses
    assert found.title == "No learning signal, the verifier failed on most answers"


def test_shares_are_counted_over_the_last_three_rounds():
    case = BY_NAME["half unparseable"]
    hits = sum(record.outcomes["unparseable"] for record in records_of(case)[-3:])
    assert of(case["name"], "parse_failures").evidence.startswith(f"{hits} of 384 answers of the last 3 rounds")


def test_the_trends_of_the_tiles_are_there_from_six_rounds_on():
    case = BY_NAME["learns in 20 rounds"]
    records, config = records_of(case), config_of(case)
    assert examine(records[:6], config).trends.keys() == {"validation accuracy"}  # round 0 has one too
    trends = examine(records, config).trends
    assert trends.keys() == {"reward", "accuracy", "validation accuracy", "entropy", "answer length"}
    assert trends["reward"].direction == "rising"
    assert trends["reward"].peak == max(case["curves"]["reward"])


def test_numbers_that_are_missing_or_not_finite_are_left_out():
    case = BY_NAME["learns in 20 rounds"]
    records = [
        record.model_copy(
            update={"entropy": None, "learned": record.learned and Learned(steps=0, gradient_norm=float("nan"))}
        )
        for record in records_of(case)
    ]
    health = examine(records, config_of(case))
    assert health.diagnoses == ()
    assert "entropy" not in health.trends


def tuned(training, validation, objective):
    """A run of supervised tuning: losses alone."""
    case = BY_NAME["learns in 40 rounds"]
    config = config_of(case).model_copy(update={"objective": objective, "rl": RlSettings()})
    found = []
    for record, on_training, on_validation in zip(records_of(case), [None, *training], validation, strict=False):
        losses = {"loss": on_validation, "accuracy": 0.0}
        found.append(
            record.model_copy(
                update={
                    "validation": record.validation.model_copy(update=losses),
                    "reward": None,
                    "accuracy": None,
                    "groups": 0,
                    "outcomes": {},
                    "learned": None if on_training is None else Learned(steps=10, loss=on_training),
                }
            )
        )
    return examine(found, config)


def test_tuning_overfits_by_its_losses():
    down = [2 - 0.04 * n for n in range(24)]
    up_again = [2 - 0.1 * n for n in range(9)] + [1.2 + 0.05 * n for n in range(16)]
    (found,) = tuned(down, up_again, "sft").diagnoses
    assert found.code == "overfitting"
    assert "Training loss fell from 1.720 (round 8)" in found.evidence
    assert "validation loss rose from 1.200 (round 8)" in found.evidence
    assert tuned(down, [2 - 0.03 * n for n in range(25)], "sft").diagnoses == ()
    assert tuned(down, up_again, "rl").diagnoses == ()


def test_the_words_at_the_end_name_what_was_found():
    case = BY_NAME["watch falls"]
    diagnoses = examine(records_of(case), config_of(case)).diagnoses
    assert found_in_words(diagnoses, "r1") == (
        "Found in its rounds: likely reward hacking. What says so and what to do: ratchet runs health r1"
    )
    assert found_in_words((), "r1") == ""
