"""Real runs of sft and dpo with the tiny model: exact resumes, early ends, and how rounds are ranked and shown."""

import json
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from importlib.util import find_spec
from math import log

import pytest

import ratchet.readiness.device_checks
from ratchet import service, worker
from ratchet.config.config_text import build
from ratchet.datasets.math_pairs_source import solve
from ratchet.errors import IncompatibleData, InvalidSetting, NotReady
from ratchet.run.run_folder import RunFolder
from ratchet.service.data import datasets
from ratchet.worker import Listener

from ..small_runs import adapter_bytes, ended, events_apart_from_times, keep_events, log_apart_from_times, records

SFT = {
    "model": "tiny",
    "objective": "sft",
    "data": {"source": "math_pairs", "prompts": 24, "heldout": 4},
    "prompt": {"system_prompt": ""},
    "reward": {"format_bonus": "off"},
    "rl": {"max_answer_tokens": 32, "validation_prompts": 6},
    "sft": {"epochs": 1, "batch_size": 4, "evaluations": 3, "warmup_share": 0.2},
    "learning_rate": 1e-3,
}
WITHOUT_VERIFIER = {**SFT, "data": {"source": "dataset", "name": "given"}, "rl": {"validation_prompts": 6}}
DPO = {
    **WITHOUT_VERIFIER,
    "objective": "dpo",
    "dpo": {"epochs": 2, "batch_size": 4, "evaluations": 2},
    "learning_rate": 1e-3,
}


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of ours catches it."""


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def run_of(settings, path, listener=None, now=time.monotonic):
    folder = RunFolder.create(build(settings), path)
    return folder, worker.run(folder, listeners=[listener] if listener else [], now=now)


def assert_same_run(folder, other):
    assert adapter_bytes(folder) == adapter_bytes(other)
    assert folder.checkpoint_path.exists()
    assert [{**r, "seconds": None} for r in records(folder)] == [{**r, "seconds": None} for r in records(other)]
    assert ended(folder)["adapter_sha256"] == ended(other)["adapter_sha256"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An sft run to its end, shared by all tests that only look at it."""
    home = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(home / "home"))
        return run_of(SFT, home / "run")


def test_an_sft_run_ends_with_losses_accuracies_and_an_adapter(reference):
    folder, result = reference
    assert (result.status, result.ending, result.rounds_done) == ("completed", "all_rounds", 3)
    rounds = records(folder)
    assert [one["learned"] and one["learned"]["steps"] for one in rounds] == [None, 2, 2, 2]
    assert all(one["validation"]["accuracy"] is not None for one in rounds)
    losses = [one["validation"]["loss"] for one in rounds]
    assert losses[-1] < losses[0]
    assert (result.start_loss, result.best_loss) == (losses[0], losses[result.best_round])
    assert result.best_accuracy == max(one["validation"]["accuracy"] for one in rounds)
    assert result.heldout_before is not None
    assert result.highest_reward is None  # nothing is rewarded
    assert [name for name in os.listdir(folder.path) if "checkpoint" in name or "trainer" in name] == [
        "checkpoint.safetensors"
    ]
    assert json.loads((folder.adapter_path / "adapter_config.json").read_text())["r"] == 8
    answers = folder.read_rollouts(2)  # to the validation sample
    assert [len(row["answers"]) for row in answers] == [1] * 6
    assert "validation_loss=" in folder.log_path.read_text()
    assert json.loads(folder.run_path.read_text())["fixed"]["versions"]["trl"]


def test_the_same_seed_gives_the_same_bytes_journal_and_log_apart_from_times(reference, tmp_path):
    folder, _ = run_of(SFT, tmp_path / "again")
    assert_same_run(folder, reference[0])
    assert events_apart_from_times(folder) == events_apart_from_times(reference[0])
    assert log_apart_from_times(folder) == log_apart_from_times(reference[0])


def test_a_run_killed_within_a_round_goes_on_to_the_same_bytes(reference, tmp_path):
    folder = RunFolder.create(build(SFT), tmp_path / "run")

    def on_progress(phase, done, total):
        if phase == "training" and done == 1 and folder.checkpoint_path.exists() and len(records(folder)) == 2:
            raise Killed

    with pytest.raises(Killed):
        worker.run(folder, listeners=[Listener(on_progress=on_progress)])
    assert service.summary(str(folder.path)).status == "interrupted"
    worker.run(folder)
    assert_same_run(folder, reference[0])


@pytest.mark.slow
def test_a_worker_that_is_killed_goes_on_to_the_same_bytes(reference, start_cli, cli, tmp_path):
    RunFolder.create(build(SFT), tmp_path / "run")
    process = start_cli("resume", tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    while process.poll() is None and len(records(folder) if folder.events_path.exists() else []) < 2:
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(records(folder)) < 4
    assert cli("resume", tmp_path / "run").returncode == 0
    assert_same_run(folder, reference[0])


def test_a_stopped_run_keeps_its_best_adapter_and_goes_on_to_the_same_bytes(reference, tmp_path):
    def on_event(event):
        if event.event == "round" and event.record.round == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    folder, result = run_of(SFT, tmp_path / "run", Listener(on_event=on_event))
    assert (result.status, result.ending, result.rounds_done) == ("stopped_early", "stopped", 1)
    assert result.message.startswith("Stopped as asked. 1 of 3 rounds done.")
    assert adapter_bytes(folder)
    worker.run(folder)
    assert_same_run(folder, reference[0])


def test_the_time_limit_within_a_round_costs_that_round_alone(tmp_path):
    clock, seen = Clock(), []

    def on_progress(phase, done, total):
        if phase == "training":
            seen.append(done)
            clock.seconds = 7200 - 180 if len(seen) == 5 else 0.0

    folder, result = run_of(SFT, tmp_path / "run", Listener(on_progress=on_progress), clock)
    assert seen == [0, 1, 2, 0, 1]
    assert (result.status, result.ending, result.rounds_done) == ("stopped_early", "time_limit", 1)
    assert not folder.rollouts_file(2).exists()


def test_a_run_whose_checkpoint_is_gone_back_to_writes_what_the_journal_lacks(reference, tmp_path):
    shutil.copytree(reference[0].path, tmp_path / "copy")
    folder = RunFolder(tmp_path / "copy")
    keep_events(folder, lambda event: event["event"] == "round" and event["record"]["round"] < 2)
    shutil.rmtree(folder.adapter_path)
    worker.run(folder)
    assert_same_run(folder, reference[0])


def problems(count, seed=0):
    rng = random.Random(seed)
    found = {}
    while len(found) < count:
        a, b, c, d = (rng.randint(1, 9) for _ in range(4))
        found[f"({a} + {b}) * ({c} + {d})"] = (a, b, c, d)
    return found


def demonstration(a, b, c, d, sign="*"):
    last = (a + b) * (c + d) if sign == "*" else a + b + c + d
    return f"{a} + {b} = {a + b}, {c} + {d} = {c + d}, {a + b} {sign} {c + d} = {last}"


def add_rows(tmp_path, rows):
    """Keep rows as version 1 of the dataset "given", 24 to train on and 6 to validate with."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for split, part in (("train", rows[:24]), ("validation", rows[24:])):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    datasets.add(str(folder), "given")


def messages(count=30):
    return [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": demonstration(*numbers)}]}
        for text, numbers in problems(count).items()
    ]


def pairs(count=30):
    return [
        {"prompt": text, "chosen": demonstration(*numbers), "rejected": demonstration(*numbers, sign="+")}
        for text, numbers in problems(count).items()
    ]


def test_without_a_verifier_rounds_rank_by_loss_and_no_accuracy_is_made_up(ratchet_command, tmp_path):
    add_rows(tmp_path, messages())
    path = tmp_path / "run.json"
    path.write_text(json.dumps(WITHOUT_VERIFIER))
    code, out, _ = ratchet_command("train", path, "--out", tmp_path / "run", "--json")
    told = json.loads(out.splitlines()[-1])
    assert (code, told["ending"], told["best_accuracy"], told["start_accuracy"]) == (0, "all_rounds", None, None)
    rounds = records(RunFolder(tmp_path / "run"))
    losses = [one["validation"]["loss"] for one in rounds]
    assert told["best_round"] == losses.index(min(losses)) > 0
    assert told["best_loss"] == min(losses) < told["start_loss"] == losses[0]
    assert all(one["best_accuracy"] is None and one["validation"]["outcomes"] == {} for one in rounds)
    assert RunFolder(tmp_path / "run").read_config().verifier is None
    assert (tmp_path / "run" / "curve.png").stat().st_size > 10_000
    code, out, _ = ratchet_command("runs", "list")
    assert f"loss {losses[0]:.4f}" in out
    code, out, _ = ratchet_command("runs", "show", tmp_path / "run")
    assert "sft, from given answers" in out
    assert "validation loss" in out
    assert "100.0%" not in out


def test_a_completion_beside_the_part_that_is_checked_is_what_is_learned(tmp_path):
    rows = [
        {"prompt": text, "ground_truth": str(solve(text)), "completion": demonstration(*numbers)}
        for text, numbers in problems(30).items()
    ]
    add_rows(tmp_path, rows)
    settings = {**WITHOUT_VERIFIER, "verifier": {"kind": "final_number"}, "sft": {"epochs": 1, "evaluations": 1}}
    settings["rl"] = SFT["rl"]
    result = service.create_and_train(build(settings), tmp_path / "run")
    assert result.start_accuracy is not None
    first, last = (one["validation"]["loss"] for one in records(RunFolder(tmp_path / "run")))
    assert last < first < 0.2  # the tiny model knows this style, not bare numbers


def test_dpo_raises_the_margin_of_the_chosen_answers(ratchet_command, tmp_path):
    add_rows(tmp_path, pairs())
    path = tmp_path / "run.json"
    path.write_text(json.dumps(DPO))
    code, out, _ = ratchet_command("train", path, "--out", tmp_path / "run")
    assert code == 0
    assert "chosen preferred 100%" in out
    first, *_, last = records(RunFolder(tmp_path / "run"))
    assert first["validation"]["loss"] == pytest.approx(log(2))
    assert (first["validation"]["margin"], first["validation"]["preferred"]) == (0, 0)
    assert last["validation"]["margin"] > 0.2
    assert last["validation"]["loss"] < 0.65
    assert last["best_round"] == last["round"]


def faults_of(settings):
    report = service.check_run(build(settings))
    report.close()
    return report.faults


def test_rows_without_answers_to_learn_from_are_refused_by_number(tmp_path):
    rows = [{"prompt": text, "ground_truth": str(solve(text))} for text in problems(30)]
    rows[2]["completion"] = "7"
    add_rows(tmp_path, rows)
    told = [str(fault) for fault in faults_of(WITHOUT_VERIFIER)]
    assert any("23 of 24 training rows have no demonstration" in text for text in told)
    assert any("rows 1, 2, 4, 5" in text and "and 3 more" in text for text in told)
    assert any("6 of 6 validation rows" in text for text in told)
    assert not any(text in " ".join(told) for text in problems(30))
    assert any("have no pair of answers (columns chosen and rejected)" in str(fault) for fault in faults_of(DPO))


def test_demonstrations_are_no_pairs_and_pairs_are_demonstrations(tmp_path):
    with pytest.raises((IncompatibleData, NotReady), match="have no pair of answers"):
        service.create_and_train(build({**SFT, "objective": "dpo"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    add_rows(tmp_path, pairs())
    assert faults_of(WITHOUT_VERIFIER) == ()


def test_the_window_counts_the_prompt_with_its_longer_answer(tmp_path):
    rows = pairs()
    rows[3]["rejected"] = ", ".join([rows[3]["rejected"]] * 3)
    add_rows(tmp_path, rows)
    assert faults_of({**WITHOUT_VERIFIER, "window_tokens": 64}) == ()
    (fault,) = faults_of({**DPO, "window_tokens": 64})
    assert "Row 4 of the training rows has a prompt of" in str(fault)
    assert "it exceeds the context length of 64 tokens (1 of 24 rows do)" in str(fault)
    left_out = {**DPO, "window_tokens": 64, "data": {**DPO["data"], "overlong": "leave_out"}}
    report = service.check_run(build(left_out))
    report.close()
    assert (report.faults, report.row_counts["training"]) == ((), 23)
    assert "1 over-long training rows are left out." in report.notes


def test_without_trl_an_objective_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(
        ratchet.readiness.device_checks, "find_spec", lambda name: None if name == "trl" else find_spec(name)
    )
    (fault,) = faults_of(SFT)
    assert isinstance(fault, InvalidSetting)
    assert fault.field == "objective"
    assert "pip install 'ratchet-rl[trl]'" in str(fault)
    assert faults_of({**SFT, "objective": "rl"}) == ()


def test_no_report_of_a_verifier_is_made_for_what_learns_from_given_answers():
    with pytest.raises(InvalidSetting, match="Objective is sft"):
        service.inspect(build(SFT))


def test_a_check_says_how_an_objective_would_train(ratchet_command, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(SFT))
    code, out, _ = ratchet_command("train", path, "--check")
    assert code == 0
    assert "3, over 1 epoch of sft in steps of 4 rows" in out


@pytest.mark.slow
def test_demonstrations_teach_the_tiny_model_math_pairs(tmp_path):
    settings = {
        **SFT,
        "data": {"source": "math_pairs", "prompts": 200, "heldout": 64},
        "rl": {"max_answer_tokens": 32, "validation_prompts": 64},
        "sft": {"epochs": 2, "evaluations": 2},
        "learning_rate": 2e-3,
    }
    _, result = run_of(settings, tmp_path / "run")
    assert result.start_accuracy < 0.5
    assert result.best_accuracy > 0.9
    assert result.heldout_after > 0.9
