"""Whole runs of the shipped tiny model in 8 and 4 bits, and with gradient checkpointing: they learn and resume exactly."""

import re

import pytest

import ratchet
from ratchet import worker
from ratchet.engine import memory
from ratchet.run.run_folder import RunFolder
from ratchet.worker import Listener

from ..small_runs import adapter_bytes, ended, journal, records, rollouts, small

KINDS = ["8bit", "4bit"]


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of ours catches it."""


def train(path, **settings):
    folder = RunFolder.create(small(**settings), path)
    return folder, worker.run(folder)


def killed_after(path, number, **settings):
    def kill(event):
        if event.event == "round" and event.record.round == number:
            raise Killed

    folder = RunFolder.create(small(**settings), path)
    with pytest.raises(Killed):
        worker.run(folder, listeners=[Listener(on_event=kill)])
    return folder


def notes(folder):
    return [event["text"] for event in journal(folder) if event["event"] == "note"]


def assert_same_run(folder, other):
    assert adapter_bytes(folder) == adapter_bytes(other)
    assert [{**r, "seconds": None} for r in records(folder)] == [{**r, "seconds": None} for r in records(other)]
    assert rollouts(folder) == rollouts(other)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_same_bytes(kind, tmp_path):
    whole, _ = train(tmp_path / "whole", quantization=kind)
    folder = killed_after(tmp_path / "killed", 1, quantization=kind)
    worker.run(folder)
    assert_same_run(folder, whole)
    assert ended(folder)["adapter_sha256"] == ended(whole)["adapter_sha256"]
    fixed = whole.read_run()["fixed"]
    assert fixed["versions"]["bitsandbytes"]
    assert fixed["forward"]["rows"] == "packed"
    assert fixed["batches"] == "transformers"
    assert not any(re.search("versions differ", note) for note in notes(folder))
    # What samples and what learns are the same policy.
    assert all(record["learned"]["sampler_gap"] < 1e-4 for record in records(whole)[1:])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_short_run_learns(kind, tmp_path):
    """The README's run: without quantization it goes from 34 to 98 percent."""
    result = ratchet.train(
        {
            "model": "tiny",
            "quantization": kind,
            "data": {"source": "math_pairs", "heldout": 128},
            "prompt": {"system_prompt": ""},
            "reward": {"format_bonus": "off"},
            "rl": {"rounds": 4, "prompts_per_round": 32, "max_answer_tokens": 32},
            "learning_rate": 2e-3,
        },
        out=tmp_path / "run",
        inspected=True,
    )
    assert result.start_accuracy < 0.5
    assert result.best_accuracy > result.start_accuracy + 0.3
    assert result.heldout_after > result.heldout_before + 0.3


def test_gradient_checkpointing_changes_no_result_and_is_kept_for_the_resume(tmp_path):
    plain, _ = train(tmp_path / "plain", gradient_checkpointing="off")
    folder = killed_after(tmp_path / "on", 1, gradient_checkpointing="on")
    worker.run(folder)
    assert folder.read_run()["fixed"]["budgets"]["gradient_checkpointing"] is True
    assert plain.read_run()["fixed"]["budgets"]["gradient_checkpointing"] is False
    assert_same_run(folder, plain)


def test_it_turns_itself_on_where_memory_is_short_says_so_and_stays_on(tmp_path, monkeypatch):
    usual, _ = train(tmp_path / "usual")
    assert not any("Gradient checkpointing" in note for note in notes(usual))
    with monkeypatch.context() as patch:
        patch.setattr(memory, "host_memory", lambda: 11_000_000)
        folder = killed_after(tmp_path / "short", 1)
    (note,) = [note for note in notes(folder) if "Gradient checkpointing is on" in note]
    assert re.search(r"would take about \d\.\d GB of the \d\.\d GB meant for it", note)
    worker.run(folder)  # on a machine with more memory: what was decided stands
    assert folder.read_run()["fixed"]["budgets"]["gradient_checkpointing"] is True
    assert [r["validation"] for r in records(folder)] == [r["validation"] for r in records(usual)]
