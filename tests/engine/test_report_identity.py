"""The key of a report: what it changes with, what it does not, and the keys that ship."""

import json
from pathlib import Path

import pytest

import ratchet
from ratchet.config import RunConfig
from ratchet.config.config_text import build
from ratchet.engine.prepare import prepare
from ratchet.engine.report_sampling import _source_name, made_with, report_key, training_data_hash
from ratchet.errors import ModelUnavailable
from ratchet.models.model_files import SMOLLM2
from ratchet.service.runs.demo_presets import SHIPPED_REPORTS, demo_settings, real_demo_settings

from ..small_runs import SMALL, small

TINY = Path(ratchet.__file__).parent / "assets" / "tiny"


def key_of(config):
    prepared = prepare(config)
    try:
        return report_key(made_with(prepared))
    finally:
        prepared.verifier.close()


@pytest.fixture(scope="module")
def usual():
    return key_of(build(SMALL))


OTHER = {
    "learning_rate": 1e-3, "seed": 7, "rounds": 9, "prompts_per_round": 8, "answers_per_prompt": 8, "loss": "dapo",
    "temperature": 0.7, "top_p": 0.9, "max_answer_tokens": 24, "validation_prompts": 12, "heldout": 12, "time_hours": 1,
    "lora__rank": 4, "no_signal_rounds": 9, "micro_batch_tokens": 256,
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_settings_of_training_leave_the_key_as_it_is(name, usual):
    assert key_of(small(**{name: OTHER[name]})) == usual


SAME = {
    "verifier": {"kind": "final_number"}, "what it reads": {"kind": "math_pairs", "read": "answer_tag"}, "bonus": {"format_bonus": "tags"},
    "overlong buffer": {"overlong_buffer_tokens": 8}, "data": {"prompts": 33}, "data seed": {"data__seed": 3},
    "system prompt": {"system_prompt": "Be brief."}, "examples": {"worked_examples": 2},
    "template": {"template_options": '{"a": 1}'}, "quantization": {"quantization": "8bit"},
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_whatever_a_report_holds_for_changes_the_key(what, usual):
    assert key_of(small(**SAME[what])) != usual


def test_another_model_changes_the_key_and_a_copy_of_the_same_does_not(usual, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in TINY.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert key_of(small(model=str(copy))) == usual
    settings = json.loads((copy / "generation_config.json").read_text())
    (copy / "generation_config.json").write_text(json.dumps({**settings, "temperature": 0.5}))
    assert key_of(small(model=str(copy))) != usual


def test_a_hub_model_is_known_by_the_commit_that_its_revision_means(monkeypatch, tmp_path):
    def cached(commit):
        hub = tmp_path / commit / "hub" / "models--someone--small"
        (hub / "refs").mkdir(parents=True)
        (hub / "refs" / "main").write_text(commit)
        snapshot = hub / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for file in TINY.iterdir():
            (snapshot / file.name).write_bytes(file.read_bytes())
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub.parent))
        monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(hub.parent), raising=False)
        prepared = prepare(small(model="someone/small"))
        return made_with(prepared).model

    first = cached("a" * 40)
    assert first == "a" * 40
    assert cached("b" * 40) == "b" * 40


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"source": "math_pairs"}, "math_pairs"),
        ({"source": "dataset", "name": "sums", "version": 3}, "dataset sums@3"),
        ({"source": "reasoning_gym", "task": "chain_sum"}, "reasoning_gym chain_sum"),
        ({"source": "gsm8k"}, "gsm8k openai/gsm8k"),
    ],
)
def test_the_source_is_named_with_what_is_taken_of_it(data, named):
    settings = {"data": data, "verifier": {"kind": "final_number"}}
    assert _source_name(build(settings).data) == named


def test_the_data_hash_is_of_every_part_of_a_row():
    class Encoded:
        def __init__(self, **changes):
            row = {
                "id": 1,
                "messages": [{"role": "user", "content": "x"}],
                "ground_truth": "y",
                "extras": {},
                **changes,
            }
            self.prompt = type("Row", (), row)

    class Some:
        def __init__(self, *train):
            self.train = train

    hashes = {
        training_data_hash(Some(Encoded(**changes)))
        for changes in ({}, {"id": 2}, {"messages": []}, {"ground_truth": "z"}, {"extras": {"tests": ["a"]}})
    }
    assert len(hashes) == 5


def test_the_demo_ships_confirmed_as_its_settings_are():
    """Where this fails, the demo's report is another one: read it (ratchet inspect), then write its key down."""
    assert key_of(RunConfig.model_validate(demo_settings())) == SHIPPED_REPORTS["demo"]
    other = build(demo_settings(), {"data.largest": "8"})
    assert key_of(other) not in SHIPPED_REPORTS.values()


@pytest.mark.slow
def test_the_real_demo_ships_confirmed_as_its_settings_are():
    """As above: ratchet inspect with the settings of ``real_demo_settings``."""
    try:
        key = key_of(RunConfig.model_validate(real_demo_settings()))
    except ModelUnavailable:
        pytest.skip(f"the package with {SMOLLM2} is not installed")
    assert key == SHIPPED_REPORTS["real demo"]
