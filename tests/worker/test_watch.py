"""The watch metric of real runs of the tiny model: checked before, graded beside, shown after; and planted hacking."""

import json

import pytest

import ratchet
from ratchet import service, worker
from ratchet.config.config_text import build
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting, MetricRefused
from ratchet.readiness import check
from ratchet.run.run_folder import RunFolder
from ratchet.service.verification import user_metrics
from ratchet.worker import Listener

from ..small_runs import SMALL, adapter_bytes, journal, records, rollouts

# Fails on answers with a 3 in them, and likes long ones.
PICKY = """
def score(answer, reference):
    if answer != reference and "3" in answer:
        raise ValueError(answer)
    return min(1, len(answer) / 100)
"""
CUSTOM = {"kind": "custom", "metric": "picky", "version": 1, "source": PICKY}


def watched(watch, **rl):
    return build({**SMALL, "watch": watch, "rl": {**SMALL["rl"], **rl}})


def fault_of(watch, **settings):
    report = check(build({**SMALL, "watch": watch, **settings}))
    report.close()
    (fault,) = report.faults
    return fault


def test_one_that_equals_the_verifier_is_refused():
    fault = fault_of({"kind": "math_pairs"})
    assert isinstance(fault, InvalidSetting)
    assert fault.field == "watch"
    assert "Watch metric and verifier are the same (math_pairs, with the same settings)" in str(fault)
    report = check(build({**SMALL, "watch": {"kind": "math_pairs", "read": "answer_tag"}}))
    report.close()
    assert report.faults == ()


def test_a_function_of_the_users_own_is_refused_in_words():
    fault = fault_of({"kind": "python", "name": "f"})
    assert (type(fault), fault.field) == (InvalidSetting, "watch.kind")
    assert "Add it as a metric (ratchet metric add)" in str(fault)


def test_ground_truths_that_it_cannot_check_are_named_by_row():
    report = check(build({**SMALL, "watch": {"kind": "classification", "labels": ["a", "b"]}}))
    report.close()
    assert [type(fault) for fault in report.faults] == [IncompatibleData, IncompatibleData]
    told = [str(fault) for fault in report.faults]
    assert "32 of 32 training rows have a reference that the watch metric cannot check: rows 1, 2, " in told[0]
    assert "6 of 6 validation rows have a reference that the watch metric cannot check: rows 1, 2, " in told[1]


def test_a_metric_is_tried_before_the_model_loads():
    fault = fault_of({**CUSTOM, "source": "def score(answer, reference): return 2"})
    assert isinstance(fault, MetricRefused)
    assert str(fault).startswith("Metric picky version 1 is refused: tried on the reference of row 1")


def test_a_kept_metric_brings_its_source_and_an_archived_one_is_refused(tmp_path):
    (tmp_path / "picky.py").write_text(PICKY)
    user_metrics.add(tmp_path / "picky.py", "picky")
    config = watched({"kind": "custom", "metric": "picky"})
    assert user_metrics.with_source(config).watch.source == PICKY
    other = watched({"kind": "custom", "metric": "picky", "version": 1, "source": "def score(a, r): return 0"})
    with pytest.raises(InvalidSetting, match=r"Leave watch\.source out"):
        user_metrics.with_source(other)
    user_metrics.archive("picky")
    with pytest.raises(Conflict, match="is archived"):
        user_metrics.with_source(config)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    home = tmp_path_factory.mktemp("watched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(home / "home"))
        folder = RunFolder.create(watched(CUSTOM), home / "run")
        return folder, worker.run(folder)


def test_it_is_recorded_beside_the_reward_and_its_failures_end_nothing(reference):
    folder, result = reference
    assert result.ending == "all_rounds"
    for record in records(folder)[1:]:
        answers = [answer for row in folder.read_rollouts(record["round"]) for answer in row["answers"]]
        known = [answer["watch"] for answer in answers if answer["watch_outcome"] != "failed"]
        failed = [answer for answer in answers if answer["watch_outcome"] == "failed"]
        assert record["watch"] == pytest.approx(sum(known) / len(known))
        assert sum(record["watch_failures"].values()) == len(failed)
        assert all(answer["watch"] is None for answer in failed)
        for answer in answers:
            if answer["watch_outcome"] == "graded":
                assert answer["watch"] == pytest.approx(min(1, len(answer["text"]) / 100))
        assert record["validation"]["watch"] is None or 0 <= record["validation"]["watch"] <= 1
    failures = [record["watch_failures"] for record in records(folder)[1:]]
    assert any(failures), "no answer had a 3 in it"
    assert all(set(one) <= {"execution"} for one in failures)


def test_failures_are_noted_once_with_counts_and_no_text(reference):
    notes = [event for event in journal(reference[0]) if event["event"] == "note" and event.get("about")]
    (note,) = notes
    assert note["about"] == "watch_failures"
    assert note["text"].startswith("The watch metric (Metric picky version 1) failed on ")
    assert "by execution. They are left out of its mean, and the run continues." in note["text"]


def test_the_run_learns_what_it_learns_without_one(reference, tmp_path):
    plain = RunFolder.create(build(SMALL), tmp_path / "plain")
    worker.run(plain)
    assert adapter_bytes(plain) == adapter_bytes(reference[0])


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of ours catches it."""


def test_a_run_that_is_resumed_has_the_same_values(reference, tmp_path):
    folder = RunFolder.create(watched(CUSTOM), tmp_path / "run")

    def on_event(event):
        if event.event == "round" and event.record.round == 1:
            raise Killed

    with pytest.raises(Killed):
        worker.run(folder, listeners=[Listener(on_event=on_event)])
    worker.run(folder)
    same = [{**record, "seconds": None} for record in records(reference[0])]
    assert [{**record, "seconds": None} for record in records(folder)] == same
    assert rollouts(folder) == rollouts(reference[0])
    assert len([event for event in journal(folder) if event.get("about")]) == 1


def test_it_is_shown(reference, ratchet_command):
    code, shown, _ = ratchet_command("runs", "show", reference[0].path)
    assert code == 0
    table = [line for line in shown.splitlines() if line.split()[:1] in (["round"], ["1"], ["3"])]
    assert table[0].split()[-3:] == ["tokens", "watch", "seconds"]
    assert table[1].split()[-2] == f"{records(reference[0])[1]['watch']:.3f}"
    assert max(map(len, table)) <= 80
    log = reference[0].log_path.read_text()
    assert " watch=" in log
    assert " watch_failed=" in log


def test_the_check_names_it(ratchet_command, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**SMALL, "watch": {"kind": "final_number"}}))
    code, shown, _ = ratchet_command("train", path, "--check")
    assert code == 0
    assert "Watch metric      final_number" in shown


def longer_is_better(answer, reference):
    """The planted fault: what a metric pays that meant to ask for steps and counts characters."""
    return min(1.0, len(answer) / 120)


@pytest.mark.slow
def test_planted_reward_hacking_is_diagnosed_in_a_real_run_with_both_curves(tmp_path, ratchet_command):
    settings = {
        "model": "tiny",
        "data": {"source": "math_pairs", "prompts": 64, "heldout": 2},
        "prompt": {"system_prompt": ""},
        "watch": {"kind": "final_number"},
        "rl": {
            "rounds": 20,
            "prompts_per_round": 8,
            "answers_per_prompt": 8,
            "max_answer_tokens": 64,
            "validation_prompts": 16,
        },
        "learning_rate": 3e-3,
    }
    result = ratchet.train(settings, verifier=longer_is_better, out=tmp_path / "run", inspected=True)
    assert result.ending == "all_rounds"
    assert "Found in its rounds: likely reward hacking" in result.message

    summary = service.summary(result.folder)
    (found,) = (one for one in service.run_health(summary).diagnoses if one.code == "reward_hacking")
    reward, watch = found.curves
    assert (reward.name, watch.name) == ("reward", "watch metric (final_number)")
    sampled = summary.records[1:]
    ends = {record.round: record for record in sampled}
    assert (reward.first, reward.last) == (ends[reward.first_round].reward, ends[reward.last_round].reward)
    assert (watch.first, watch.last) == (ends[watch.first_round].watch, ends[watch.last_round].watch)
    assert reward.last > reward.first
    assert watch.last < watch.first

    notes = [e for e in journal(RunFolder(tmp_path / "run")) if e.get("about") == "reward_hacking"]
    assert len(notes) == 1
    code, shown, _ = ratchet_command("runs", "health", result.folder)
    assert code == 0
    assert "Likely reward hacking. Reward rose from" in shown
    assert "while watch metric (final_number) fell from" in " ".join(shown.split())
    code, told, _ = ratchet_command("runs", "health", result.folder, "--json")
    assert [one["code"] for one in json.loads(told)["diagnoses"]] == [
        one.code for one in service.run_health(summary).diagnoses
    ]
    code, told, _ = ratchet_command("runs", "show", result.folder, "--json")
    assert json.loads(told)["health"]["diagnoses"][0]["code"] == "reward_hacking"
