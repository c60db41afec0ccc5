"""How runs end, each ending made to happen: the best adapter is there and loads, the status is right, the sentence has
cause and remedy, the rollouts reach to the last finished round, and no text of a prompt, reference or answer is in any
log, journal or error.

The worker is the real one and the tiny model learns; what it answers is scripted (``scripted_worker.py``). Endings that
need a real process, disk or limit are in ``test_endings_for_real.py``.
"""

import hashlib
import json
import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import get_args

import pytest
import torch
from peft import PeftModel
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

import ratchet
from ratchet import service, worker
from ratchet.cli.starting import exit_status
from ratchet.config import LimitSettings
from ratchet.engine.prepare import prepare
from ratchet.errors import (
    DiskFull,
    NoLearningSignal,
    NotFinite,
    OutOfMemory,
    SandboxUnavailable,
    VerifierFailing,
)
from ratchet.run.endings import ENDINGS, KEEPING_FAULTS, Ending, ending_of, status_of
from ratchet.run.records import RunResult
from ratchet.run.run_folder import RunFolder
from ratchet.verifiers import identity
from ratchet.worker import watchdog

from ..scripted_worker import ALL_RIGHT, CANARY, HALF_RIGHT, MIXED, NONE_RIGHT, ScriptedRun, settings_of
from ..small_runs import adapter_bytes, records

TINY = Path(ratchet.__file__).parent / "assets" / "tiny"


def assert_silent(folder, *outputs):
    """No text of prompts, references or answers, but in the rollouts and the settings."""
    for path in folder.path.rglob("*"):
        if path.is_file() and path.parent != folder.rollouts_path:
            assert CANARY.encode() not in path.read_bytes(), path
    for output in outputs:
        assert CANARY not in output
    kept = [path for path in folder.rollouts_path.iterdir() if CANARY in path.read_text()]
    assert kept or not list(folder.rollouts_path.glob("round-*"))  # the search would find it


def assert_kept(run, *, ending, best, done, status="stopped_early", said=()):
    """The run ended so, and what is kept is the best round's and whole."""
    event, folder = run.ended, run.folder
    assert (event["status"], event["ending"], event["best_round"], event["rounds_done"]) == (status, ending, best, done)
    weights = adapter_bytes(folder)
    assert weights == run.kept[best]
    assert event["adapter_sha256"] == hashlib.sha256(weights).hexdigest()
    with warnings.catch_warnings():
        # PEFT asks transformers by a name that goes away in its version 6.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
        loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(TINY), folder.adapter_path)
    assert any("lora_B" in name for name, _ in loaded.named_parameters())
    assert sorted(int(file.stem[-3:]) for file in folder.rollouts_path.glob("round-*")) == list(range(1, done + 1))
    for words in said:
        assert words in event["message"]
    assert f"{done} of 3 rounds done" in event["message"] or f"{done} of " in event["message"]
    assert service.summary(str(folder.path)).status == status
    assert not list(folder.path.glob(".reserve"))
    assert_silent(folder, event["message"])


def test_all_rounds_keep_the_best_one_also_when_the_last_ones_collapse(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT, NONE_RIGHT, NONE_RIGHT])
    result = run.run()
    assert_kept(run, ending="all_rounds", status="completed", best=1, done=3, said=["round 1 is kept"])
    assert exit_status(result) == 0


def test_a_run_that_gains_nothing_keeps_its_start_and_says_so(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, validation=[HALF_RIGHT])
    run.run()
    said = ["No round beat the starting point", "no gain"]
    assert_kept(run, ending="all_rounds", status="completed", best=0, done=3, said=said)


def test_the_target(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT, ALL_RIGHT], limits__target_percent=50)
    result = run.run()
    assert_kept(run, ending="target", best=1, done=1, said=["The target is reached.", "higher Target"])
    assert exit_status(result) == 0


def test_the_target_that_the_start_has_reached(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, validation=[ALL_RIGHT], target_percent=100)
    run.run()
    assert_kept(run, ending="target", best=0, done=0)


def test_nothing_left(tmp_path, monkeypatch):
    run = ScriptedRun(
        tmp_path,
        monkeypatch,
        training=[MIXED, ["right", "right"]],
        validation=[NONE_RIGHT, HALF_RIGHT],
        rounds=9,
        no_signal_rounds=2,
    )
    run.run()
    said = ["nothing left to learn", "harder prompts"]
    assert_kept(run, ending="nothing_left", status="completed", best=1, done=3, said=said)


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


# Two hours at 3 an hour: a cap of 6 is what two hours cost, so both end at the same time but for a cap of a little less.
LIMITS = {
    "time_limit": ({"time_hours": 2}, 7200.0, "Time limit"),
    "cost_limit": ({"time_hours": 100, "price_per_hour": 3, "cost_cap": 6}, 7200.0, "Cost cap"),
}


@pytest.mark.parametrize("ending", LIMITS)
def test_a_limit_between_rounds_starts_no_round_that_would_not_fit(ending, tmp_path, monkeypatch):
    limits, seconds, setting = LIMITS[ending]
    clock = Clock()
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT], **limits)

    def after_round(number):
        if number == 1:
            clock.seconds = seconds - 180 - 120 + 1

    run.after_round = after_round
    result = run.run(now=clock)
    assert_kept(run, ending=ending, best=1, done=1, said=[ENDINGS[ending].why, f"higher {setting}"])
    assert exit_status(result) == 0
    assert result.cost == (None if ending == "time_limit" else pytest.approx((seconds - 299) / 3600 * 3))


@pytest.mark.parametrize("ending", LIMITS)
def test_a_limit_within_a_round_costs_that_round_alone(ending, tmp_path, monkeypatch):
    limits, seconds, _ = LIMITS[ending]
    clock = Clock()
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT], **limits)

    def on_progress(phase, done, total):
        if phase == "updating" and run.kept.keys() == {0, 1}:
            clock.seconds = seconds - 179

    run.run(on_progress, now=clock)
    assert_kept(run, ending=ending, best=1, done=1)


@pytest.mark.parametrize("ending", LIMITS)
def test_a_limit_before_round_zero_names_the_phase_that_took_it(ending, tmp_path, monkeypatch):
    limits, seconds, setting = LIMITS[ending]
    clock = Clock()
    run = ScriptedRun(tmp_path, monkeypatch, **limits)

    def on_progress(phase, done, total):
        if phase == "loading":
            clock.seconds = seconds

    result = run.run(on_progress, now=clock)
    assert (result.status, result.ending, result.adapter) == ("failed", ending, None)
    assert "loading the model took 7200 of 7200 seconds" in result.message
    assert f"Raise {setting}." in result.message
    assert exit_status(result) == 4
    assert not run.folder.adapter_path.exists()


def test_preparing_can_be_what_took_the_time(tmp_path, monkeypatch):
    clock = Clock()
    run = ScriptedRun(tmp_path, monkeypatch)

    def slow(*given):
        clock.seconds = 8000.0
        return prepare(*given)

    monkeypatch.setattr("ratchet.worker.job.prepare", slow)
    result = run.run(now=clock)
    assert "checking settings and data took 8000 of 8000 seconds" in result.message


def test_cost_is_in_every_record_with_a_price_and_nowhere_without(tmp_path, monkeypatch):
    clock = Clock()
    run = ScriptedRun(tmp_path, monkeypatch, price_per_hour=36, currency="EUR")

    def after_round(number):
        clock.seconds += 100.0

    run.after_round = after_round
    result = run.run(now=clock)
    assert [record["cost"] for record in records(run.folder)] == [0.0, 1.0, 2.0, 3.0]
    assert (result.cost, result.currency, run.ended["cost"]) == (4.0, "EUR", 4.0)
    other = ScriptedRun(tmp_path / "other", monkeypatch)
    result = other.run()
    for text in (result.model_dump_json(), other.folder.events_path.read_text()):
        assert '"cost"' not in text
        assert "currency" not in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_stopped_by_a_signal(number, tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT])
    run.after_round = lambda done: done == 1 and os.kill(os.getpid(), number)
    outer = signal.signal(number, signal.default_int_handler)  # the tests themselves may run under nohup
    try:
        result = run.run()
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, outer)
    said = ["Stopped as asked.", "ratchet resume"]
    assert_kept(run, ending="stopped", best=1, done=1, said=said)
    assert exit_status(result) == 0


def test_a_hangup_that_is_ignored_stays_so(tmp_path, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = ScriptedRun(tmp_path, monkeypatch)
        run.after_round = lambda done: done == 1 and os.kill(os.getpid(), signal.SIGHUP)
        assert run.run().ending == "all_rounds"
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def write_stop(folder):
    folder.stop_path.write_text(json.dumps({"at": "2026-11-30T00:00:00+00:00", "by": "somebody"}))


def test_stopped_by_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("ratchet.worker.session._SECONDS_BETWEEN_LOOKS", 0.0)
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT])
    run.after_round = lambda done: done == 1 and write_stop(run.folder)
    run.run()
    assert_kept(run, ending="stopped", best=1, done=1)


def test_a_stop_that_came_before_the_worker_ends_it_without_loading_anything(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT])
    write_stop(run.folder)
    result = run.run()
    assert (result.status, result.ending, result.adapter) == ("cancelled", "stopped", None)
    assert run.policy is None
    assert run.ended["message"].startswith("Stopped as asked.")


def test_a_stop_that_came_between_two_sessions_keeps_the_adapter_and_a_resume_takes_it_back(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT])

    def kill(done):
        if done == 1:
            raise KeyboardInterrupt

    run.after_round = kill
    with pytest.raises(KeyboardInterrupt):
        run.run()
    write_stop(run.folder)
    result = run.run()
    assert result.adapter == str(run.folder.adapter_path)
    assert_kept(run, ending="stopped", best=1, done=1)
    record = run.folder.read_run()
    run.folder.write_run({**record, "report": {}})
    run.after_round = lambda done: None
    assert service.resume(str(run.folder.path), listeners=[run.watch()]).ending == "all_rounds"
    assert not run.folder.stop_path.exists()


def test_metric_failures(tmp_path, monkeypatch):
    answered = []

    def metric(answer, reference):
        answered.append(answer)
        if len(answered) > 12:  # four of round 0, then four and four of round 1
            raise ValueError(f"{CANARY}: cannot read {answer} for {reference}")
        return float(answer == f"{CANARY} 12")

    config = settings_of(tmp_path).model_copy(update={"verifier": identity(metric)})
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT], config=config)
    result = run.run(function=metric)
    said = ["failed on 4 of 4 answers in round 2 (4 by execution)", "the empty answer is an answer too"]
    assert_kept(run, ending="metric_failures", best=1, done=1, said=said)
    assert exit_status(result) == 4


class FullDevice(TorchDispatchMode):
    """An allocator that refuses after so many calls, as CUDA's does."""

    def __init__(self, calls):
        super().__init__()
        self.left = calls

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.left -= 1
        if self.left < 0:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate 2.00 GiB. {CANARY}")
        return function(*args, **(kwargs or {}))


def full_at(phase, run):
    """Return what fills the device in round 2 at a phase, and a list that holds the open mode for the test to close."""
    seen, opened = [], []

    def on_progress(now, done, total):
        if now == phase and done == 0:
            seen.append(phase)
            if len(seen) == 2 + (phase == "scoring"):
                opened.append(FullDevice(3))
                opened[0].__enter__()

    return on_progress, opened


@pytest.mark.parametrize(
    ("phase", "said", "unsaid"),
    [
        (
            "sampling",
            ["Answers per prompt is 4", "Max answer tokens 16", "Sampling budget", "fewer Answers", "more memory"],
            ["Micro batch"],
        ),
        (
            "updating",
            [
                "Micro batch is",
                "Max answer tokens 16",
                "smaller Micro batch",
                "Gradient checkpointing on",
                "more memory",
            ],
            ["Sampling budget", "Answers per prompt"],
        ),
        ("scoring", ["Validation does not fit", "lower Max answer tokens", "more memory"], ["Answers per prompt"]),
    ],
)
def test_out_of_memory_on_a_gpu_simulated_at_the_allocator(phase, said, unsaid, tmp_path):
    def length(answer, reference):
        return len(answer) % 7 / 7  # what the tiny model writes here differs in length

    config = settings_of(tmp_path, answers_per_prompt=4).model_copy(update={"verifier": identity(length)})
    folder = RunFolder.create(config, tmp_path / "run")
    on_progress, opened = full_at(phase, folder)
    try:
        result = worker.run(folder, function=length, listeners=[worker.Listener(on_progress=on_progress)])
    finally:
        for mode in opened:
            mode.__exit__(None, None, None)
    assert opened, result.message
    assert (result.status, result.ending, result.rounds_done) == ("stopped_early", "out_of_memory", 1)
    for words in said:
        assert words in result.message
    for words in unsaid:
        assert words not in result.message
    assert result.best_round is not None
    assert_silent(folder, result.message)
    assert exit_status(result) == 4


@pytest.mark.parametrize(
    ("place", "said"), [("grading", "Sampling does not fit"), ("checkpoint", "The update does not fit")]
)
def test_pythons_own_want_of_memory(place, said, tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT])

    def fail(*_):
        raise MemoryError

    def after_round(number):
        if number == 1 and place == "grading":
            monkeypatch.setattr("ratchet.engine.grading.Grader.grade", fail)
        if number == 1 and place == "checkpoint":
            monkeypatch.setattr("ratchet.engine.checkpoint.packed", fail)

    run.after_round = after_round
    run.run()
    run.folder.drop_rollouts_after(1)  # those of the round that was lost while it was stored
    assert_kept(run, ending="out_of_memory", best=1, done=1, said=[said, "more memory"])


def test_stalled_where_the_main_thread_answers_ends_in_good_order(tmp_path, monkeypatch):
    dogs = []

    class Dog(watchdog.Watchdog):
        def __init__(self, *given):
            super().__init__(*given)
            dogs.append(self)

    def hang():
        dogs[0]._limit = 3.0  # only now: a busy machine may stand still for longer while it loads
        threading.Event().wait(200)

    monkeypatch.setattr(watchdog, "Watchdog", Dog)
    monkeypatch.setattr(watchdog, "_MOST_SECONDS_BETWEEN_LOOKS", 0.1)
    run = ScriptedRun(tmp_path, monkeypatch, training=[MIXED, hang], validation=[NONE_RIGHT, HALF_RIGHT])
    started = time.monotonic()
    result = run.run()
    assert time.monotonic() - started < 190
    said = ["Sampling answers made no progress for 0.05 minutes (Stall limit).", "raise Stall limit"]
    assert_kept(run, ending="stalled", best=1, done=1, said=said)
    assert "stalled at threading.py" in run.folder.log_path.read_text()
    assert exit_status(result) == 4


def test_not_finite_twice_in_a_row_and_once_is_skipped(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT], rounds=6)
    bad = []

    def after_round(number):
        if number == 0:
            run.policy.parameters[0].register_hook(lambda gradient: gradient * (torch.nan if bad else 1.0))
        bad[:] = [True] * (number in (1, 3, 4))  # in rounds 2, 4 and 5

    run.after_round = after_round
    result = run.run()
    assert [record["learned"]["skipped_steps"] for record in records(run.folder)[1:]] == [0, 1, 0, 1]
    said = ["not a finite number in two steps in a row", "lower Learning rate"]
    assert_kept(run, ending="not_finite", best=1, done=4, said=said)
    assert exit_status(result) == 4


def test_a_lost_answer_ends_the_round_and_hangs_nothing(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, training=[MIXED, ["right", "lost"]], validation=[NONE_RIGHT, HALF_RIGHT])
    run.run()
    said = ["lost 2 of 4 answers", "Resume the run"]
    assert_kept(run, ending="sampler_failed", best=1, done=1, said=said)


def test_a_sandbox_that_breaks(tmp_path, monkeypatch):
    fault = SandboxUnavailable("bwrap is gone.", "Install bubblewrap.")
    run = ScriptedRun(tmp_path, monkeypatch, training=[MIXED, fault], validation=[NONE_RIGHT, HALF_RIGHT])
    run.run()
    assert_kept(run, ending="sandbox_unavailable", best=1, done=1, said=["bwrap is gone", "Install"])


@pytest.mark.parametrize("what", ["write_rollouts", "stage_adapter"])
def test_a_full_disk_at_any_write_of_a_round(what, tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, validation=[NONE_RIGHT, HALF_RIGHT, ALL_RIGHT])

    def full(*_):
        raise DiskFull(f"The disk that holds {run.folder.path} is full. Free some space.")

    def after_round(number):
        if number == 1:
            monkeypatch.setattr(RunFolder, what, full)

    run.after_round = after_round
    run.run()
    run.folder.drop_rollouts_after(1)
    assert_kept(run, ending="disk_full", best=1, done=1, said=["is full", "Free some space"])


NO_SIGNAL = {
    "all right": (["right", "right"], "every answer was right", "harder prompts"),
    "all wrong": (["wrong", "wrong"], "all answers were wrong", "easier prompts"),
    "cut off": (["...", "..."], "most answers were cut off", "Raise Max answer tokens"),
    "unparseable": (["?", "?"], "most answers were unparseable", "system prompt"),
}


@pytest.mark.parametrize("cause", NO_SIGNAL)
def test_no_learning_signal_fails_with_its_diagnosis(cause, tmp_path, monkeypatch):
    words, diagnosis, remedy = NO_SIGNAL[cause]
    run = ScriptedRun(tmp_path, monkeypatch, training=[words], rounds=9, no_signal_rounds=2)
    with pytest.raises(NoLearningSignal) as caught:
        run.run()
    assert (run.ended["status"], run.ended["ending"], run.ended["rounds_done"]) == ("failed", "no_learning_signal", 2)
    for text in (str(caught.value), run.ended["message"]):
        assert f"rounds 1 to 2: {diagnosis}" in text
        assert remedy in text
    assert sorted(file.name for file in run.folder.rollouts_path.iterdir()) == ["round-001.jsonl", "round-002.jsonl"]
    assert_silent(run.folder, str(caught.value))


def test_any_other_error_fails_and_is_told_by_place(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, training=[MIXED, ZeroDivisionError(CANARY)])
    with pytest.raises(ZeroDivisionError):
        run.run()
    assert (run.ended["status"], run.ended["ending"], run.ended["rounds_done"]) == ("failed", "error", 1)
    assert "ZeroDivisionError" in run.ended["message"]
    assert "scripted_worker.py" in run.folder.log_path.read_text()
    assert_silent(run.folder)


@pytest.mark.parametrize(
    ("fault", "ending"),
    [
        (OutOfMemory("Too large.", "sampling"), "out_of_memory"),
        (NotFinite("NaN."), "not_finite"),
        (DiskFull("Full."), "disk_full"),
        (VerifierFailing("It fails."), "metric_failures"),
    ],
)
def test_before_round_zero_is_scored_any_fault_fails_the_run(fault, ending, tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, validation=[fault])
    with pytest.raises(type(fault)):
        run.run()
    assert (run.ended["status"], run.ended["ending"]) == ("failed", ending)
    assert not run.folder.adapter_path.exists()


def test_the_table_has_every_ending_and_nothing_else():
    assert set(ENDINGS) == set(get_args(Ending))


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_has_a_status_an_exit_code_and_words(ending):
    rule = ENDINGS[ending]
    completed = ending in ("all_rounds", "nothing_left")
    failed = ending in ("no_learning_signal", "error")
    kept = "completed" if completed else "failed" if failed else "stopped_early"
    assert status_of(ending, has_adapter=True) == kept
    assert status_of(ending, has_adapter=False) == ("cancelled" if ending == "stopped" else "failed")
    result = RunResult(run="", folder="", status=kept, ending=ending, message="", rounds_done=1, adapter="there")
    assert exit_status(result) == (0 if rule.good else 4)
    assert exit_status(result.model_copy(update={"adapter": None})) == 4
    assert rule.why or not rule.good
    assert rule.why or rule.fault or ending in ("stalled", "error")  # whose cause is said by who ends the run
    assert not rule.fault or ending_of(rule.fault("Why.")) == ending
    assert (rule.fault in KEEPING_FAULTS) == (rule.fault is not None and not failed)


def test_the_exit_code_of_the_watchdog_is_the_tasks():
    from ratchet.cli.faults import EXIT_TASK
    from ratchet.worker.watchdog import EXIT_TASK as OF_THE_WATCHDOG

    assert OF_THE_WATCHDOG == EXIT_TASK
    assert LimitSettings().stall_minutes == 30


def test_samples_are_kept_as_asked_and_the_record_says_from_where(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, rounds=5, rollout_rounds=2)
    run.run()
    assert sorted(file.name for file in run.folder.rollouts_path.iterdir()) == ["round-004.jsonl", "round-005.jsonl"]
    assert [record.get("oldest_rollouts") for record in records(run.folder)] == [None, None, None, 2, 3, 4]
    with pytest.raises(Exception, match=r"Rounds with samples: 4 to 5. Older ones were removed") as caught:
        service.samples(str(run.folder.path), 2)
    assert caught.type.__name__ == "NotFound"


def test_samples_are_kept_up_to_a_size_and_those_of_the_last_round_always(tmp_path, monkeypatch):
    run = ScriptedRun(tmp_path, monkeypatch, rounds=4)
    run.run()
    size = run.folder.rollouts_file(1).stat().st_size
    assert all(abs(run.folder.rollouts_file(n).stat().st_size - size) < 40 for n in (2, 3, 4))
    for megabytes, kept in ((2.5 * size / 1e6, [3, 4]), (0.1 * size / 1e6, [4]), (10 * size / 1e6, [1, 2, 3, 4])):
        keep = run.config.keep.model_copy(update={"rollout_megabytes": megabytes})
        dropped = run.folder.rollouts_to_drop(keep)
        assert [n for n in (1, 2, 3, 4) if n not in dropped] == kept
