"""A plan: its steps, the objective that goes with data and verifier, and the file that starts the very run."""

import json

import pytest

from ratchet.config.config_text import build, read_file
from ratchet.engine.round_parts import number_of_rounds
from ratchet.errors import Conflict, InvalidSetting
from ratchet.models.memory_estimate import CARDS
from ratchet.service.runs.run_plan import advised, plan, write_plan

from ...small_runs import small


def test_steps_are_rounds_times_steps_of_a_round():
    planned = plan(small(rounds=3, prompts_per_round=4, answers_per_prompt=4, batch_size=8))
    # 4 prompts with 4 answers are 16 answers: two steps of 8.
    assert (planned.steps.rounds, planned.steps.per_round, planned.steps.total) == (3, 2, 6)
    assert planned.steps.batch_size == 8


def test_without_a_batch_size_a_round_is_one_step():
    planned = plan(small(rounds=3))
    assert (planned.steps.per_round, planned.steps.batch_size) == (1, 16)


@pytest.mark.parametrize(("prompts", "epochs"), [(4, 1), (5, 1), (64, 2), (7, 3)])
def test_full_takes_as_many_rounds_as_the_engine_does(prompts, epochs):
    config = small(rounds="full", prompts_per_round=prompts, epochs=epochs)
    planned = plan(config)
    assert planned.steps.rounds == number_of_rounds(config, 32)
    assert planned.steps.prompts == min(prompts, 32)


def test_memory_is_told_for_this_device_and_for_usual_cards():
    planned = plan(small(device="cpu"))
    assert [one.device for one in planned.memory] == ["this machine's CPU", *CARDS]
    assert [phase.name for phase in planned.memory[0].phases] == ["loading", "sampling", "update", "validation"]
    assert all(one.fits for one in planned.memory)


@pytest.mark.parametrize(
    ("layout", "verifiers", "are_graded", "objective"),
    [
        (None, ["math_pairs"], True, "rl"),
        ("prompt", ["qa"], True, "rl"),
        ("messages", [], False, "sft"),
        ("prompt", [], False, "sft"),
        ("preference", [], False, "dpo"),
        ("preference", ["qa"], True, "dpo"),
        ("prompt", ["numeric"], False, "none"),
        (None, [], False, "none"),
    ],
)
def test_the_objective_follows_from_rows_and_verifier(layout, verifiers, are_graded, objective):
    assert advised(layout, verifiers, are_graded=are_graded).objective == objective


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"loss": "dapo", "time_hours": "none"},
        {"verifier.kind": "numeric", "format_bonus": "off", "seed": "3"},
        {"watch.kind": "final_number", "price_per_hour": "2"},
    ],
)
def test_the_written_file_starts_the_very_run(tmp_path, flags):
    config = small(**flags)
    planned = plan(config)
    write_plan(planned, tmp_path / "run.yaml")
    assert build(read_file(tmp_path / "run.yaml")) == config
    # Only what is not usual is in it, so that it can be read.
    assert "clip_low" not in (tmp_path / "run.yaml").read_text()


def test_only_settings_that_passed_their_checks_are_written_and_nothing_is_overwritten(tmp_path):
    failing = plan(small(max_answer_tokens=600))
    with pytest.raises(InvalidSetting, match="Max answer tokens"):
        write_plan(failing, tmp_path / "run.yaml")
    assert not (tmp_path / "run.yaml").exists()
    (tmp_path / "run.yaml").write_text("mine")
    with pytest.raises(Conflict, match="exists already"):
        write_plan(plan(small()), tmp_path / "run.yaml")
    assert (tmp_path / "run.yaml").read_text() == "mine"


def test_the_command_tells_people_and_machines_and_exits_like_check(ratchet_command, tmp_path):
    good = ["plan", "--source", "math_pairs", "--prompts", "32", "--max-answer-tokens", "64", "--device", "cpu"]
    code, out, _ = ratchet_command(*good, "--write", tmp_path / "run.yaml")
    assert code == 0
    assert "20 rounds x 1 a round = 20" in out
    assert "141 GB card" in out
    assert "measure it with ratchet trial" in out
    assert f"ratchet train {tmp_path / 'run.yaml'}" in out
    code, out, _ = ratchet_command(*good, "--json")
    told = json.loads(out)
    assert (code, told["ready"], told["steps"]["steps"]) == (0, True, 20)
    assert set(told["memory"][0]["phases"]) == {"loading", "sampling", "update", "validation"}
    assert told["objective_advised"]["objective"] == "rl"
    assert ratchet_command("train", tmp_path / "run.yaml", "--check", "--json")[0] == 0
    code, out, _ = ratchet_command("plan", "--source", "math_pairs", "--json")
    assert code == 2
    assert "Max answer tokens is 512" in json.loads(out)["error"]["message"]
