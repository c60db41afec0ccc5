"""How long a run is and what it is made with, said in other words: optimizer steps in place of rounds, and presets."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ratchet.config import RlSettings, RunConfig
from ratchet.config.config_text import build
from ratchet.engine.round_parts import number_of_rounds
from ratchet.errors import InvalidSetting
from ratchet.readiness import advice_on_rate
from ratchet.readiness.advice import advice
from ratchet.readiness.step_counts import with_rounds


def rl_of(**rl):
    return build({"rl": rl}).resolved()


# steps   prompts x answers / batch = steps a round   rounds
@pytest.mark.parametrize(
    ("steps", "rl", "prompts", "rounds", "said"),
    [
        (100, {"prompts_per_round": 1}, 50, 100, None),
        (100, {"prompts_per_round": 16, "answers_per_prompt": 8, "batch_size": 32}, 50, 25, None),
        (
            10,
            {"prompts_per_round": 16, "answers_per_prompt": 8, "batch_size": 32},
            50,
            3,
            "Optimizer steps is 10; a round has 4, so the run has 3 rounds with up to 12 steps.",
        ),
        # Three prompts are all there are: 24 answers in one step of 32, or in two of 16.
        (10, {"prompts_per_round": 16, "answers_per_prompt": 8, "batch_size": 32}, 3, 10, None),
        (10, {"prompts_per_round": 16, "answers_per_prompt": 8, "batch_size": 16}, 3, 5, None),
        (1, {"prompts_per_round": 16, "answers_per_prompt": 8, "batch_size": 8}, 50, 1, "up to 16 steps"),
    ],
)
def test_optimizer_steps_become_rounds(steps, rl, prompts, rounds, said):
    config, notes = with_rounds(rl_of(max_steps=steps, **rl), prompts)
    assert (config.rl.rounds, config.rl.max_steps) == (rounds, None)
    assert bool(notes) == bool(said)
    assert not said or said in notes[0]
    assert with_rounds(config, prompts) == (config, ())


@settings(max_examples=50)
@given(st.integers(1, 400), st.integers(1, 40), st.integers(2, 8), st.integers(1, 12), st.integers(1, 60))
def test_as_many_rounds_as_hold_the_steps_and_no_more(steps, per_round, group, in_batch, prompts):
    batch = group * min(in_batch, per_round)
    rl = {"prompts_per_round": per_round, "answers_per_prompt": group, "batch_size": batch, "max_steps": steps}
    config, _ = with_rounds(rl_of(**rl), prompts)
    answers = min(per_round, prompts) * group
    a_round = len(range(0, answers, batch))  # how ``update`` cuts a round into steps
    assert config.rl.rounds * a_round >= steps
    assert (config.rl.rounds - 1) * a_round < steps


def test_minus_one_means_as_many_as_the_epochs_need():
    config, notes = with_rounds(rl_of(max_steps=-1, prompts_per_round=16, epochs=2), 50)
    assert (config.rl.rounds, notes) == ("full", ())
    assert number_of_rounds(config, 50) == 7  # 100 prompts, 16 a round


def test_too_many_steps_are_refused_with_how_many_there_can_be():
    config = rl_of(max_steps=4004, prompts_per_round=16, answers_per_prompt=8, batch_size=32)
    with pytest.raises(InvalidSetting, match=r"4004, which are 1001 rounds of 4; .* Choose at most 4000") as caught:
        with_rounds(config, 50)
    assert caught.value.field == "rl.max_steps"
    assert RlSettings(rounds=1000).rounds == 1000
    with pytest.raises(ValidationError):
        RlSettings(rounds=1001)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rounds": 20, "max_steps": 100}, "Rounds is 20 and Optimizer steps is 100"),
        ({"max_steps": 0}, "Optimizer steps is 0"),
        ({"max_steps": -2}, "at least -1"),
    ],
)
def test_steps_that_cannot_be_are_refused_in_words(given, said):
    with pytest.raises(InvalidSetting, match=said):
        build({"rl": given})


def test_steps_survive_the_way_through_json_before_the_prompts_are_counted():
    config = build({"rl": {"max_steps": 100}})
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert "rounds" not in json.loads(config.model_dump_json())["rl"]


STEPS = {"prompts_per_round": 1, "answers_per_prompt": 8, "max_answer_tokens": 256, "max_steps": 100}
ROUNDS = {"rounds": 20, "prompts_per_round": 64, "answers_per_prompt": 8, "max_answer_tokens": 512, "max_steps": None}


@pytest.mark.parametrize(("name", "rl", "rate"), [("hosted_steps", STEPS, 1e-6), ("hosted_rounds", ROUNDS, 5e-6)])
def test_a_preset_is_the_same_from_file_flags_and_python(name, rl, rate):
    from_file = build({"preset": name})
    assert from_file == build({}, {"preset": name}) == RunConfig(preset=name)
    assert {key: getattr(from_file.rl, key) for key in rl} == rl
    assert from_file.learning_rate == rate
    untouched = from_file.model_copy(update={"preset": None, "rl": RlSettings(), "learning_rate": None})
    assert untouched == RunConfig()


def test_what_is_given_wins_over_a_preset_and_a_preset_over_the_defaults():
    config = build({"preset": "hosted_steps", "rl": {"answers_per_prompt": 4}}, {"learning_rate": "2e-4"})
    assert (config.rl.answers_per_prompt, config.rl.max_answer_tokens, config.learning_rate) == (4, 256, 2e-4)
    assert RunConfig(preset="hosted_steps", rl=RlSettings(temperature=0.5)).rl.temperature == 0.5


def test_whoever_gives_a_length_has_given_both_ways_to_say_it():
    assert build({"preset": "hosted_steps", "rl": {"rounds": 7}}).rl.max_steps is None
    config = build({"preset": "hosted_rounds", "rl": {"max_steps": 7}})
    assert with_rounds(config.resolved(), 500)[0].rl.rounds == 7
    assert with_rounds(build({"preset": "hosted_steps"}).resolved(), 500)[0].rl.rounds == 100


def test_a_preset_that_does_not_go_with_what_is_given_is_refused_in_words():
    with pytest.raises(InvalidSetting, match=r"Batch size is 16, but a round has 1 prompts x 8 answers"):
        build({"preset": "hosted_steps", "rl": {"batch_size": 16}})
    with pytest.raises(InvalidSetting, match=r"Preset is hosted_steps, which is for Objective rl, not sft"):
        build({"preset": "hosted_steps", "objective": "sft"})
    with pytest.raises(InvalidSetting, match="hosted_steps"):
        build({"preset": "nonsense"})


def test_what_is_stored_holds_every_setting_and_reads_back_as_the_same():
    config, _ = with_rounds(build({"preset": "hosted_steps"}).resolved(), 500)
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert config.resolved() == config


@pytest.mark.parametrize("name", ["hosted_steps", "hosted_rounds"])
def test_a_preset_comes_with_the_advice_on_its_rate_once(name):
    config = build({"preset": name}).resolved()
    told = [note for note in advice(config, None, 500, "cpu") if note.startswith("Learning rate")]
    assert len(told) == 1
    assert f"by the preset {name}" in told[0]
    assert advice_on_rate(config, 200_000_000) is None
    own = build({"preset": name, "learning_rate": 3e-6}).resolved()
    assert not [note for note in advice(own, None, 500, "cpu") if "preset" in note]
    assert advice_on_rate(own, 200_000_000)
