"""What a run was given is remembered, and copies with changes are made of that."""

import json

import pytest

from ratchet.config import MathPairsData, RlSettings, RunConfig
from ratchet.config.base import RENAMED, first_names
from ratchet.config.changes import with_changes, with_values
from ratchet.config.config_text import as_yaml, build, read_file
from ratchet.errors import InvalidSetting


def stored(config):
    """The settings as a run's folder or the database gives them back."""
    return RunConfig.model_validate_json(config.resolved().model_dump_json())


def stored_before(config):
    """The same of a run that was made before settings remembered what was given."""
    settings = json.loads(config.resolved().model_dump_json())
    del settings["given"]
    return RunConfig.model_validate_json(json.dumps(settings))


def test_what_was_given_is_kept_beside_what_follows_from_it():
    config = build({"rl": {"loss": "dapo"}}, {"lora.rank": "4"})
    assert config.given == {"rl": {"loss": "dapo"}, "lora": {"rank": 4}}
    assert (stored(config).given, stored(config).rl.clip_high) == (config.given, 0.28)
    assert RunConfig().given == {}
    assert RunConfig(data=MathPairsData(pairs=3), rl=RlSettings(rounds=2)).given == {
        "data": {"source": "math_pairs", "pairs": 3},
        "rl": {"rounds": 2},
    }
    assert build({"preset": "hosted_steps"}).given == {"preset": "hosted_steps"}


def test_an_explicit_value_survives_a_change_of_what_it_usually_follows_from():
    explicit = stored(build({"rl": {"loss": "grpo", "clip_low": 0.2}}))
    gspo = with_changes(explicit, {"loss": "gspo"}).resolved()
    assert (gspo.rl.clip_low, gspo.rl.clip_high) == (0.2, 4e-4)
    left_out = with_changes(stored(build({"rl": {"loss": "grpo"}})), {"loss": "gspo"}).resolved()
    assert (left_out.rl.clip_low, left_out.rl.clip_high) == (3e-4, 4e-4)
    rate = stored(build({"learning_rate": 1e-4}))
    assert with_changes(rate, {"objective": "sft"}).rate == 1e-4
    assert with_changes(stored(build({})), {"objective": "sft"}).rate == 2e-4


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rl": {"loss": "gspo"}},
        {"objective": "sft"},
        {"preset": "hosted_steps"},
        {"rl": {"max_steps": 20}, "lora": {"rank": 4}},
        {"data": {"source": "reasoning_gym", "task": "chain_sum"}},
        {"data": {"source": "gsm8k", "rows": 10}, "verifier": {"kind": "numeric"}},
        {
            "verifier": {
                "kind": "composite",
                "parts": [
                    {"verifier": {"kind": "qa"}, "weight": 0.5},
                    {"verifier": {"kind": "numeric"}, "weight": 0.5},
                ],
            }
        },
        {"watch": {"kind": "final_number"}, "prompt": {"few_shot_examples": [{"user": "1+1?", "assistant": "2"}]}},
        {"trackers": ["trackio"], "start_from": "r1"},
    ],
)
def test_runs_from_before_are_read_as_given_what_is_not_usual(settings, tmp_path):
    config = build(settings).resolved()
    before = stored_before(config)
    assert before == config == stored(config)
    assert before.given.keys() - {"data"} <= settings.keys()
    assert with_changes(before, {}).resolved() == config
    # A file of all settings says as little of which of them were given.
    (tmp_path / "all.yaml").write_text(as_yaml(config))
    assert build(read_file(tmp_path / "all.yaml")).given == before.given


def test_a_setting_that_was_filled_in_before_still_follows_a_change():
    dapo = with_changes(stored_before(build({})), {"loss": "dapo"}).resolved().rl
    assert (dapo.clip_high, dapo.dynamic_sampling) == (0.28, "refill")
    assert with_changes(stored_before(build({"rl": {"clip_high": 0.5}})), {"loss": "dapo"}).rl.clip_high == 0.5


def test_contents_stay_pinned_while_their_names_stay():
    data = {"source": "dataset", "name": "sums"}
    pinned = stored(build({"data": data, "verifier": {"kind": "numeric"}}))
    pinned = pinned.model_copy(
        update={
            "revision": "0123abc",
            "data": pinned.data.model_copy(update={"version": 3, "content_hash": "a" * 64}),
        }
    )
    assert pinned.given["data"] == data
    same = with_changes(pinned, {"data.rows": "5"})
    assert (same.revision, same.data.version, same.data.content_hash) == ("0123abc", 3, "a" * 64)
    other = with_changes(pinned, {"data.name": "products", "model": "smollm2-135m"})
    assert (other.revision, other.data.version, other.data.content_hash) == ("main", None, "")
    newer = with_changes(pinned, {"data.version": "4"})
    assert (newer.data.version, newer.data.content_hash) == (4, "")


def test_another_source_brings_its_own_verifier_and_prompt():
    config = stored(build({"prompt": {"system_prompt": "Add."}, "verifier": {"kind": "numeric"}}))
    other = with_changes(config, {"data.source": "reasoning_gym", "data.task": "chain_sum"})
    assert (other.prompt.system_prompt, other.verifier) == (None, None)
    assert with_changes(config, {"verifier.read": "answer_tag"}).verifier.kind == "numeric"
    assert with_changes(stored(build({})), {"verifier.read": "answer_tag"}).verifier.kind == "math_pairs"


def test_values_are_set_and_noted_without_resolving_anything_anew():
    resolved = stored(build({"rl": {"loss": "dapo"}}))
    changed = with_values(
        resolved, {"seed": 7, "data.heldout": 0, "limits.time_hours": None, "start_from": {"adapter": "r1"}}
    )
    assert (changed.seed, changed.data.heldout, changed.limits.time_hours) == (7, 0, None)
    assert (changed.start_from.adapter, changed.rl.clip_high) == ("r1", 0.28)
    assert changed.given == {
        "rl": {"loss": "dapo"},
        "seed": 7,
        "data": {"heldout": 0},
        "limits": {"time_hours": None},
        "start_from": {"adapter": "r1"},
    }
    assert with_changes(changed, {"loss": "grpo"}).resolved().rl.clip_high == 0.2
    as_given = with_values(build({"rl": {"rounds": 3}}), {"seed": 1})
    assert (as_given.rl.model_fields_set, as_given.lora.model_fields_set) == ({"rounds"}, set())


def test_a_runs_own_config_is_a_settings_file_and_flags_over_it_are_given(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(stored(build({"rl": {"loss": "dapo"}})).model_dump_json())
    config = build(read_file(path), {"seed": "3"})
    assert config.given == {"rl": {"loss": "dapo"}, "seed": 3}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_setting_is_read_under_the_name_that_it_had_before(old, new):
    section, name = old.split(".")
    value = 2
    expected = build({}, {new: str(value)})
    in_file = {section: {name: value}}
    assert (
        build(in_file)
        == build({}, {old: str(value)})
        == build({}, {name: str(value)})
        == build({old: value})
        == expected
    )
    assert build(in_file).given == expected.given == {section: {new.split(".")[1]: value}}
    settings = json.loads(expected.resolved().model_dump_json())
    settings[section][name] = settings[section].pop(new.split(".")[1])
    settings["given"] = in_file
    of_before = RunConfig.model_validate_json(json.dumps(settings))
    assert (of_before, of_before.given) == (expected.resolved(), expected.given)
    assert name not in as_yaml(of_before)
    with pytest.raises(InvalidSetting, match=f"no setting {old}"):
        build({section: {name: value, new.split(".")[1]: value}})


def test_what_is_hashed_keeps_the_names_that_settings_had_first():
    assert first_names("prompt", {"few_shot_examples": [], "system_prompt": ""}) == {
        "worked_examples": [],
        "system_prompt": "",
    }
