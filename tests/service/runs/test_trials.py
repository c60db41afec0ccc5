"""Trials of the tiny model: what they leave, how they end when cut short, and the full run that they configure."""

import json
import os
import re
import signal
import time

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ratchet
from ratchet import service, worker
from ratchet.config import LimitSettings, RunConfig
from ratchet.config.config_text import as_yaml, build, read_file
from ratchet.engine import trial_round as engine_trial
from ratchet.engine.memory import Load, Shape
from ratchet.engine.prediction import advice
from ratchet.errors import Conflict, InvalidSetting, NotFound, OutOfMemory
from ratchet.run.run_folder import RunFolder
from ratchet.run.trial_report import Answers, Estimate, TrialReport

from ...small_runs import SMALL, ended, flags, journal, small

FLAGS = [flag for flag in flags() if flag != "--inspected"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One trial of a small run, shared by all tests that only look at it."""
    home = tmp_path_factory.mktemp("trial")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(home / "home"))
        config = small(price_per_hour=3600, currency="EUR")  # one a second
        return ratchet.trial(config, out=home / "trial")


def test_a_trial_needs_no_confirmed_report_and_leaves_no_adapter_to_start_from(made):
    assert (made.status, made.ending) == ("completed", "all_rounds")
    names = {path.name for path in made.folder.iterdir()}
    kept = {"config.json", "events.jsonl", "heartbeat.json", "rollouts", "run.json", "run.log", "trial.json"}
    assert names == {".lock", *kept}
    folder = RunFolder(made.folder)
    assert folder.kind == "trial"
    assert ended(folder)["adapter_sha256"] is None
    assert len(folder.read_rollouts(1)) == 4  # the prompts of a round; a trial asks at most eight


def test_the_journal_holds_the_report_that_lies_in_the_folder(made):
    reports = [event["report"] for event in journal(RunFolder(made.folder)) if event["event"] == "trial"]
    assert [TrialReport.model_validate(one) for one in reports] == [made.report]


def test_it_says_what_it_holds_for_and_what_it_measured(made):
    held, report = made.report.holds_for, made.report
    assert (held.model, held.answers_per_prompt, held.max_answer_tokens, held.lora_rank) == ("tiny", 4, 32, 8)
    assert held.device.startswith("cpu")
    assert held.identity.startswith("sha256:")
    assert held.window_tokens == 512
    assert {phase.name for phase in report.phases} >= {
        "loading",
        "sampling",
        "grading",
        "update",
        "validation",
        "saving",
    }
    assert all(phase.seconds >= 0 for phase in report.phases)
    assert report.answers.answers == 16
    assert sum(report.answers.outcomes.values()) == 16
    assert (report.training_prompts, report.validation_prompts) == (4, 6)


def test_the_estimate_is_the_sum_of_its_parts_and_the_cost_follows_from_it(made):
    found = made.report.estimate
    # Three rounds, round 0 with one validation, and saving after each of the four.
    rounds = 3 * found.round + found.validation + found.saving
    assert found.seconds == pytest.approx(found.preparation + rounds + found.heldout)
    assert (found.cost, found.currency) == (pytest.approx(found.seconds), "EUR")
    assert not found.is_rough
    if found.host_bytes is not None:
        assert found.host_bytes >= max(phase.host_bytes for phase in made.report.phases)
        assert found.host_phase in {phase.name for phase in made.report.phases}


def test_no_text_of_a_prompt_or_an_answer_is_in_report_journal_or_log(made):
    folder = RunFolder(made.folder)
    written = folder.trial_path.read_text() + folder.events_path.read_text() + folder.log_path.read_text()
    texts = [answer["text"] for row in folder.read_rollouts(1) for answer in row["answers"]]
    texts += [row["prompt"][-1]["content"] for row in folder.read_rollouts(1)]
    long = [text for text in texts if len(text) > 8]  # a shorter one may be found in any number
    assert long
    assert not [text for text in long if text in written]


def test_an_ended_trial_cannot_be_gone_on_with(made):
    with pytest.raises(Conflict, match="cannot be resumed"):
        ratchet.resume(made.folder)
    with pytest.raises(Conflict, match="was a trial"):
        worker.run(RunFolder(made.folder))


def test_a_trial_that_was_killed_is_made_again_from_its_start(tmp_path):
    folder = RunFolder.create(small(), tmp_path / "trial", kind="trial")

    class Killed(BaseException):
        pass

    def killed(event):
        if event.event == "planned":
            raise Killed

    with pytest.raises(Killed):
        worker.run(folder, listeners=[worker.Listener(on_event=killed)])
    with pytest.raises(Conflict, match="cannot be resumed"):
        ratchet.resume(folder.path)
    assert worker.run(folder).status == "completed"
    assert folder.read_trial().is_finished


def test_a_trial_whose_time_is_up_fails_with_the_phases_it_measured_and_what_to_do(tmp_path):
    folder = RunFolder.create(small(), tmp_path / "trial", kind="trial")
    late = []

    def on_progress(phase, done, total):
        if phase == "updating":
            late.append(True)

    result = worker.run(
        folder,
        listeners=[worker.Listener(on_progress=on_progress)],
        now=lambda: time.monotonic() + (1e6 if late else 0),
    )
    assert (result.status, result.ending, result.adapter) == ("failed", "time_limit", None)
    report = folder.read_trial()
    assert report.estimate is None
    assert [phase.name for phase in report.phases] == ["checking", "loading", "validation", "sampling", "grading"]
    assert report.fix_first == result.message == ended(folder)["message"]
    assert "15 minutes" in result.message
    assert "Raise Trial minutes" in result.message


@pytest.mark.parametrize(("trial_minutes", "hours", "expected"), [(2, 1.0, "2 minutes"), (15, 0.05, "3 minutes")])
def test_the_lower_of_trial_minutes_and_time_limit_counts(tmp_path, trial_minutes, hours, expected):
    config = small(trial_minutes=trial_minutes, time_hours=hours)
    folder = RunFolder.create(config, tmp_path / "trial", kind="trial")
    started = []

    def now():
        started.append(True)
        # Within the limit for as long as it takes to set up the clock, and at once past the lower one afterwards.
        return 0.0 if len(started) < 3 else 60.0 * float(expected.split()[0])

    result = worker.run(folder, now=now)
    assert result.ending == "time_limit"
    assert expected in result.message


def test_out_of_memory_fails_the_trial_with_the_error_and_keeps_what_was_measured(tmp_path, monkeypatch):
    def update(*_):
        raise OutOfMemory("The update does not fit in this device's memory. Choose a smaller Micro batch.", "update")

    monkeypatch.setattr(engine_trial, "update", update)
    made = ratchet.trial(SMALL, out=tmp_path / "trial")
    assert (made.status, made.ending, made.report.is_finished) == ("failed", "out_of_memory", False)
    assert "smaller Micro batch" in made.report.fix_first
    assert [phase.name for phase in made.report.phases] == ["loading", "validation", "sampling", "grading"]
    with pytest.raises(Conflict, match="smaller Micro batch"):
        made.full_run()


def test_an_unforeseen_fault_is_named_by_its_type_alone(tmp_path, monkeypatch):
    def update(*_):
        raise ZeroDivisionError("a text of the model")

    monkeypatch.setattr(engine_trial, "update", update)
    with pytest.raises(ZeroDivisionError):
        ratchet.trial(SMALL, out=tmp_path / "trial")
    folder = RunFolder(tmp_path / "trial")
    assert folder.read_trial().fix_first == "Something unforeseen failed (ZeroDivisionError)."
    assert ended(folder)["status"] == "failed"
    assert "a text of the model" not in folder.events_path.read_text() + folder.trial_path.read_text()


def test_a_trial_that_is_stopped_ends_as_cancelled(tmp_path):
    folder = RunFolder.create(small(), tmp_path / "trial", kind="trial")

    def on_progress(phase, done, total):
        if phase == "sampling":
            os.kill(os.getpid(), signal.SIGTERM)

    result = worker.run(folder, listeners=[worker.Listener(on_progress=on_progress)])
    assert (result.status, result.ending) == ("cancelled", "stopped")
    assert folder.read_trial().estimate is None


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_objectives_that_a_trial_does_not_measure_are_refused(objective, tmp_path):
    with pytest.raises(InvalidSetting, match=f"Objective is {objective}"):
        ratchet.trial({**SMALL, "objective": objective}, out=tmp_path / "trial")
    assert not (tmp_path / "trial").exists()


def with_estimate(made, seconds, hours):
    """The trial as if it had predicted so many seconds, for a run with that limit."""
    estimate = made.report.estimate.model_copy(update={"seconds": seconds})
    report = made.report.model_copy(update={"estimate": estimate})
    limits = LimitSettings(time_hours=hours)
    return service.Trial(
        made.run, made.folder, made.status, made.ending, "", report, made.config.model_copy(update={"limits": limits})
    )


@pytest.mark.parametrize(
    ("seconds", "hours", "expected"),
    [
        (3600.0, 1.0, 1.25),
        (3600.0, 2.0, 2.0),
        (3600.0, None, None),
        (3000.0, 0.5, 1.05),  # 3750 seconds are 1.0417 hours
        (8000 * 3600.0, 2.0, None),  # more than a limit may say
    ],
)
def test_a_limit_that_is_too_short_becomes_the_estimate_plus_a_quarter(made, seconds, hours, expected):
    config, notes = with_estimate(made, seconds, hours).full_run()
    assert config.limits.time_hours == expected
    assert bool(notes) == (expected != hours)
    assert config == made.config.model_copy(update={"limits": LimitSettings(time_hours=expected)})


def test_only_settings_that_matter_for_memory_count_as_changed(made):
    assert service.changed_since(made, made.config) == []
    harmless = {"learning_rate": 1e-5, "seed": 7, "limits": LimitSettings(time_hours=9.0)}
    assert service.changed_since(made, made.config.model_copy(update=harmless)) == []
    rl = made.config.rl.model_copy(update={"max_answer_tokens": 64, "rounds": 9, "answers_per_prompt": 8})
    lora = made.config.lora.model_copy(update={"rank": 16})
    data = made.config.data.model_copy(update={"pairs": 3})
    changed = service.changed_since(made, made.config.model_copy(update={"rl": rl, "lora": lora, "data": data}))
    assert sorted(changed) == ["Answers per prompt", "LoRA rank", "Max answer tokens", "Pairs"]


@pytest.mark.parametrize("wanted", ["no-such-run", "full"])
def test_only_a_trial_can_be_shown_again_or_compared_with(tmp_path, wanted):
    RunFolder.create(small(), tmp_path / "full")
    name = str(tmp_path / "full") if wanted == "full" else wanted
    with pytest.raises((NotFound, Conflict)) as caught:
        service.find_trial(name)
    assert ("not a trial" in str(caught.value)) == (wanted == "full")


def test_a_trial_that_has_not_ended_is_no_trial_to_show(tmp_path):
    folder = RunFolder.create(small(), tmp_path / "trial", kind="trial")
    with pytest.raises(NotFound, match="has not finished"):
        service.find_trial(str(folder.path))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


CONFIG = build(SMALL)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS | st.sampled_from(["off", "no", "1e4", "2026-01-02", "010", "~", "null", "0x1f", "1_000", "a: b", "'"]))
def test_settings_written_as_yaml_are_read_as_the_same_settings(tmp_path, text):
    config = CONFIG.model_copy(update={"project": text, "learning_rate": 1e-8})
    path = tmp_path / "full.yaml"
    path.write_bytes(as_yaml(config).encode())
    assert build(read_file(path)) == config


LOAD = Load(Shape(4, 128, 384, 600, 128, 128, 4), 1 << 20, 1 << 20, 1000, longest_prompt=60, longest_answer=100)
FOUND = Answers(
    prompts=8, answers=64, groups=8, informative_groups=5, reward=0.5, accuracy=0.5, format=0.0,
    outcomes={"graded": 64, "unparseable": 0, "cut_off": 0, "failed": 0}, mean_tokens=20.0, longest_tokens=30,
)  # fmt: skip
PREDICTED = Estimate(
    rounds=10, seconds=1000.0, preparation=10.0, sampling=40.0, grading=0.0, update=40.0, validation=10.0, saving=1.0,
    heldout=0.0, host_bytes=1, host_phase="update", host_share=0.5,
)  # fmt: skip


def advised(config=None, answers=None, **estimate):
    found = FOUND.model_copy(update=answers or {})
    return advice((config or RunConfig()).resolved(), found, PREDICTED.model_copy(update=estimate), LOAD)


def outcomes(**counts):
    return {"outcomes": {"graded": 64 - sum(counts.values()), "unparseable": 0, "cut_off": 0, "failed": 0, **counts}}


def test_a_trial_without_trouble_advises_nothing():
    assert advised() == []


def test_memory_above_nine_tenths_is_told_with_what_to_lower_in_that_phase():
    assert advised(host_share=0.9) == []
    (told,) = advised(host_share=0.91)
    assert "91%" in told
    assert "Micro batch" in told
    (told,) = advised(device_share=0.95, device_phase="sampling")
    assert "GPU's" in told
    assert "Sampling budget" in told


def test_what_cannot_be_lowered_is_not_advised():
    config = build({"rl": {"micro_batch_tokens": 100, "gradient_checkpointing": "on"}})
    (told,) = advised(config, host_share=0.99)
    assert "Micro batch" not in told  # one answer with its prompt has 160 tokens, and is never split
    assert "Gradient" not in told
    assert "Max answer tokens" in told


def test_an_estimate_beyond_time_limit_or_cost_cap_is_told():
    assert advised(build({"limits": {"time_hours": 1}})) == []
    (told,) = advised(build({"limits": {"time_hours": 0.25}}))
    assert "17 min" in told
    assert "0.25 hours" in told
    capped = build({"limits": {"price_per_hour": 1, "cost_cap": 2}})
    assert advised(capped, cost=1.9) == []
    (told,) = advised(capped, cost=2.1, currency="USD")
    assert "2.10 USD" in told


@pytest.mark.parametrize(
    ("answers", "marks"),
    [
        (outcomes(unparseable=2), ["2 of 64", "unparseable", "system prompt"]),
        (outcomes(cut_off=7), ["7 of 64", "cut off at 512 tokens", "Raise Max answer tokens"]),
        ({**outcomes(failed=2), "failures": {"time": 2}}, ["2 of 64", "2 by time"]),
        ({**outcomes(failed=8), "failures": {"time": 8}}, ["8 of 64", "which ends a run"]),
        ({"informative_groups": 0}, ["None of 8 prompts", "Raise Temperature"]),
        ({"informative_groups": 0, "accuracy": 1.0}, ["None of 8 prompts", "harder prompts"]),
        ({"informative_groups": 0, "accuracy": 0.0}, ["None of 8 prompts", "easier prompts"]),
        ({"informative_groups": 1, "accuracy": 0.02}, ["2% of the answers", "demonstrations"]),
    ],
)
def test_trouble_with_answers_is_counted_and_told_with_what_to_do(answers, marks):
    (told,) = advised(answers=answers)
    assert all(mark in told for mark in marks)


@pytest.mark.parametrize("answers", [outcomes(unparseable=1), outcomes(cut_off=6)])
def test_a_little_trouble_is_none(answers):
    assert advised(answers=answers) == []


def test_the_command_shows_the_trial_and_writes_settings_that_train_takes(ratchet_command, tmp_path):
    given = tmp_path / "run.yaml"
    given.write_text(yaml.safe_dump({**SMALL, "limits": {"time_hours": 0.01}}), encoding="utf-8")
    full = tmp_path / "full.yaml"
    code, out, err = ratchet_command("trial", given, "--rounds", 40, "--write", full, "--json")
    told = json.loads(out.splitlines()[-1])
    assert code == 0, err
    assert told["report"]["estimate"]["rounds"] == 40
    assert told["written"] == str(full)
    assert "Full run" in err
    code, out, _ = ratchet_command("trial", "--of", told["run"])
    assert code == 0
    assert re.search(r"Full run .* for 40 rounds", out)
    assert "Model    tiny" in out
    code, out, err = ratchet_command("train", full, "--check", "--trial", told["run"])
    assert (code, err) == (0, "")
    assert "Ready." in out
    assert "Changed since" not in out
    _, out, _ = ratchet_command("train", full, "--check", "--lora.rank", 4, "--json")  # found without being named
    assert f"Changed since trial {told['run']}: LoRA rank." in json.loads(out)["warnings"][-1]


def test_train_says_what_has_changed_since_its_trial_before_it_starts(ratchet_command, made, tmp_path):
    more = ["--rounds", 1, "--heldout", 0, "--lora.rank", 4, "--trial", made.folder]
    code, out, _ = ratchet_command("train", *flags(), *more, "--out", tmp_path / "run")
    assert code == 0
    note, first = out.index(f"Changed since trial {made.run}:"), out.index("Round   0")
    assert note < first
    assert "LoRA rank" in out[note : out.index("\n", note)]


def test_an_unfinished_trial_exits_4_with_the_phases_and_what_to_fix(ratchet_command, monkeypatch, tmp_path):
    def update(*_):
        raise OutOfMemory("The update does not fit. Choose a smaller Micro batch.", "update")

    monkeypatch.setattr(engine_trial, "update", update)
    full = tmp_path / "full.yaml"
    code, out, err = ratchet_command("trial", *FLAGS, "--write", full, "--json")
    told = json.loads(out.splitlines()[-1])
    assert (code, told["status"], told["ending"]) == (4, "failed", "out_of_memory")
    assert told["report"]["estimate"] is None
    assert "Fix first: The update does not fit" in err
    assert not full.exists()


@pytest.mark.parametrize("arguments", [[], ["--of", "x", "--rounds", "3"]])
def test_a_trial_of_nothing_or_of_two_things_is_a_wrong_call(ratchet_command, arguments):
    assert ratchet_command("trial", *arguments)[0] == 2


def test_a_trial_that_is_not_there_exits_3_before_a_run_starts(ratchet_command, tmp_path):
    code, _, err = ratchet_command("train", *flags(), "--trial", "nothing", "--out", tmp_path / "run")
    assert code == 3
    assert "There is no run nothing" in err
    assert not (tmp_path / "run").exists()


def test_trials_are_listed_as_such_and_shown(ratchet_command, made, monkeypatch):
    monkeypatch.setenv("RATCHET_HOME", str(made.folder.parent / "home"))
    _, out, _ = ratchet_command("runs", "list", "--json")
    assert [run["kind"] for run in json.loads(out)["runs"]] == ["trial"]
    _, out, _ = ratchet_command("runs", "show", made.run)
    assert "Full run" in out
