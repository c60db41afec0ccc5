"""Whole runs graded by a metric in the sandbox, and what ends them."""

import json
from pathlib import Path

import pytest

from ratchet import worker
from ratchet.config.config_text import build
from ratchet.engine.prepare import prepare
from ratchet.errors import MetricRefused, SandboxUnavailable
from ratchet.run.run_folder import RunFolder
from ratchet.sandbox import metric_pool
from ratchet.service import Consent
from ratchet.service.runs.launching import create_and_train as create_and_train_confirmed

LAST_NUMBER = """
import re
def score(answer, reference):
    numbers = re.findall(r"\\d+", answer)
    return 1.0 if numbers and numbers[-1] == reference else 0.0
"""
FAILING = """
def score(answer, reference):
    if answer == reference:
        return 1.0
    raise ValueError(answer)
"""


def consent(report):
    return Consent("python", "only the metric matters")


def create_and_train(*arguments, **options):
    return create_and_train_confirmed(*arguments, ask=consent, **options)


def settings(source, **rl):
    return build(
        {
            "model": "tiny",
            "data": {"source": "math_pairs", "prompts": 32, "heldout": 6},
            "prompt": {"system_prompt": ""},
            "verifier": {"kind": "custom", "metric": "closeness", "version": 2, "source": source},
            "rl": {
                "rounds": 2,
                "prompts_per_round": 4,
                "answers_per_prompt": 4,
                "max_answer_tokens": 32,
                "validation_prompts": 6,
                **rl,
            },
            "learning_rate": 2e-3,
        }
    )


def events(folder):
    return [json.loads(line) for line in (Path(folder) / "events.jsonl").read_text().splitlines()]


def test_a_metric_trains_like_the_verifier_that_it_repeats(tmp_path):
    ours = create_and_train(settings(LAST_NUMBER), tmp_path / "custom")
    config = settings(LAST_NUMBER)
    built_in = config.model_copy(update={"verifier": build({"verifier": {"kind": "final_number"}}).verifier})
    built_in = built_in.model_copy(update={"reward": config.reward.model_copy(update={"format_bonus": "off"})})
    theirs = create_and_train(built_in, tmp_path / "built-in")
    assert ours.status == "completed"
    assert (ours.start_accuracy, ours.best_accuracy) == (theirs.start_accuracy, theirs.best_accuracy)
    notes = [event["text"] for event in events(ours.folder) if event["event"] == "note"]
    assert any(note.startswith("Metric closeness version 2 grades by bubblewrap") for note in notes)


def test_a_metric_that_fails_on_too_much_ends_the_run_with_numbers_and_no_text(tmp_path):
    result = create_and_train(settings(FAILING), tmp_path / "run")
    assert (result.status, result.ending) == ("stopped_early", "metric_failures")
    assert result.message.startswith("Metric closeness version 2 failed on ")
    assert " answers in round 1 (" in result.message
    assert (
        "by execution), more than 10%, which ends a run. Make it handle any text; the empty answer is an answer too."
        in result.message
    )


def test_a_metric_that_cannot_be_used_is_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(MetricRefused, match="closeness version 2 is refused: it has no function score"):
        create_and_train(settings("x = 1"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_sandbox_that_stops_working_ends_the_run_with_its_adapter_and_can_be_resumed(tmp_path, monkeypatch):
    real = metric_pool.MetricProcess
    broken = []

    def process(*arguments, **options):
        if broken:
            raise SandboxUnavailable("The kernel says no.", "Ask it again.")
        return real(*arguments, **options)

    def on_event(event):
        if event.event == "round" and event.record.round == 1:
            broken.append(True)
            for sandbox in prepared.verifier._pool._choose()[1]._pool._state._running.copy():
                sandbox.stop()

    # A tenth of sixteen answers may fail: the two under way when their processes end are too many for less.
    prepared = prepare(settings(LAST_NUMBER, answers_per_prompt=8))
    monkeypatch.setattr(metric_pool, "MetricProcess", process)
    folder = RunFolder.create(prepared.config, tmp_path / "run")
    result = worker.run(folder, prepared=prepared, listeners=[worker.Listener(on_event=on_event)])
    assert (result.status, result.ending, result.rounds_done) == ("stopped_early", "sandbox_unavailable", 1)
    assert "The kernel says no. Ask it again." in result.message
    assert result.adapter
    broken.clear()
    assert worker.run(folder).ending == "all_rounds"
