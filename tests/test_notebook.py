"""Ratchet from Python: settings as a dict, a verifier function of the user's own, a callback, and resuming."""

import itertools
import os
import signal

import pytest

import ratchet
from ratchet import service
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting
from ratchet.run.run_folder import RunFolder
from ratchet.verifiers import identity

from .small_runs import SMALL, adapter_bytes, ended, records


def closeness(answer, ground_truth):
    """Right to the digit counts 1, the right number of digits a half."""
    last = answer.split()[-1] if answer.split() else ""
    return 1.0 if last == ground_truth else 0.5 * (len(last) == len(ground_truth))


def other(answer, ground_truth):
    return 0.0


def short(**rl):
    return {**SMALL, "rl": {**SMALL["rl"], "rounds": 2, **rl}}


def stop_after(number):
    def on_round(record):
        if record.round == number:
            os.kill(os.getpid(), signal.SIGINT)

    return on_round


def test_a_run_with_a_function_and_a_callback_records_which_function_it_was(tmp_path):
    seen = []
    result = ratchet.train(short(), inspected=True, verifier=closeness, on_round=seen.append, out=tmp_path / "run")
    assert isinstance(result, ratchet.RunResult)
    assert (result.ending, result.rounds_done) == ("all_rounds", 2)
    assert [record.round for record in seen] == [0, 1, 2]
    assert all(record.validation.accuracy >= 0 for record in seen)
    stored = RunFolder(tmp_path / "run").read_config().verifier
    assert (stored.kind, stored.name, stored.module) == ("python", "closeness", __name__)
    assert stored.source_hash == identity(closeness).source_hash != ""


def test_the_callback_is_called_once_the_round_is_safe_on_disk(tmp_path):
    folder = RunFolder(tmp_path / "run")
    kept = []

    def on_round(record):
        kept.append([one["round"] for one in records(folder)])

    ratchet.train(short(rounds=1), inspected=True, on_round=on_round, out=folder.path)
    assert kept == [[0], [0, 1]]


def test_such_a_run_is_resumed_with_the_same_function_alone(tmp_path):
    first = ratchet.train(short(), inspected=True, verifier=closeness, on_round=stop_after(1), out=tmp_path / "run")
    assert (first.ending, first.rounds_done) == ("stopped", 1)
    with pytest.raises(Conflict, match=r"test_notebook\.closeness, whose source has changed"):
        ratchet.resume(tmp_path / "run", verifier=other)
    with pytest.raises(Conflict, match="verifier=function"):
        ratchet.resume(tmp_path / "run")
    assert service.summary(str(tmp_path / "run")).status == "stopped_early"
    second = ratchet.resume(tmp_path / "run", verifier=closeness)
    whole = ratchet.train(short(), inspected=True, verifier=closeness, out=tmp_path / "whole")
    assert (second.ending, second.best_accuracy) == ("all_rounds", whole.best_accuracy)
    assert adapter_bytes(RunFolder(tmp_path / "run")) == adapter_bytes(RunFolder(tmp_path / "whole"))


def test_a_function_takes_the_place_of_the_part_that_asks_for_one(tmp_path):
    parts = [{"verifier": {"kind": "math_pairs"}}, {"verifier": {"kind": "python", "read": "whole"}, "weight": 3.0}]
    settings = {**short(), "verifier": {"kind": "composite", "parts": parts}}
    first = ratchet.train(settings, inspected=True, verifier=closeness, on_round=stop_after(1), out=tmp_path / "run")
    assert (first.ending, first.rounds_done) == ("stopped", 1)
    stored = RunFolder(tmp_path / "run").read_config().verifier
    assert [part.verifier.kind for part in stored.parts] == ["math_pairs", "python"]
    assert stored.parts[1].verifier == identity(closeness).model_copy(update={"read": "whole"})
    with pytest.raises(Conflict, match=r"test_notebook\.closeness, whose source has changed"):
        ratchet.resume(tmp_path / "run", verifier=other)
    assert ratchet.resume(tmp_path / "run", verifier=closeness).ending == "all_rounds"
    record = records(RunFolder(tmp_path / "run"))[-1]
    assert set(record["parts"]) == {"math_pairs", "math_pairs.accuracy_strict", "python"}


def test_functions_whose_source_cannot_be_seen_are_told_apart_by_name(tmp_path):
    names = {}
    exec("def one(answer, truth): return 0.0\ndef two(answer, truth): return 1.0", names)
    folder = RunFolder.create(ratchet.RunConfig(verifier=identity(names["one"])), tmp_path / "run")
    assert folder.read_config().verifier.source_hash == ""
    with pytest.raises(Conflict, match="another function"):
        ratchet.resume(folder.path, verifier=names["two"])


def test_a_run_with_a_built_in_verifier_takes_no_function(tmp_path):
    folder = RunFolder.create(ratchet.RunConfig(), tmp_path / "run")
    with pytest.raises(Conflict, match="Resume it without a function"):
        ratchet.resume(folder.path, verifier=closeness)


def test_a_function_that_raises_on_a_few_answers_has_them_counted_as_failed(tmp_path):
    calls, reported = itertools.count(), []

    def fragile(answer, ground_truth):
        # After round 0 comes a round of 4 x 4 answers; one of those 16 raises.
        if len(reported) == 1 and next(calls) == 3:
            raise ValueError("zyzzyva")
        return closeness(answer, ground_truth)

    result = ratchet.train(short(), inspected=True, verifier=fragile, on_round=reported.append, out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert (result.ending, result.rounds_done) == ("all_rounds", 2)
    assert records(folder)[1]["outcomes"]["failed"] == 1
    assert records(folder)[1]["failures"] == {"execution": 1}
    assert "zyzzyva" not in folder.events_path.read_text() + folder.log_path.read_text()


def test_a_function_that_starts_to_fail_ends_the_run_with_its_best_adapter(tmp_path):
    done = []

    def breaking(answer, ground_truth):
        if done and done[-1].round == 1:
            raise ValueError("zyzzyva")
        return closeness(answer, ground_truth)

    result = ratchet.train(short(), inspected=True, verifier=breaking, on_round=done.append, out=tmp_path / "run")
    assert (result.status, result.ending, result.rounds_done) == ("stopped_early", "metric_failures", 1)
    assert "on 16 of 16 answers in round 2 (16 by execution)" in result.message
    assert "zyzzyva" not in result.message
    folder = RunFolder(tmp_path / "run")
    assert adapter_bytes(folder)
    assert ended(folder)["ending"] == "metric_failures"


def test_settings_may_be_an_object_or_a_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: ./none/here\n")
    for config in (path, str(path), ratchet.RunConfig(model="./none/here")):
        with pytest.raises(Exception, match=r"\./none/here does not exist"):
            ratchet.train(config)


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({"rl": {"rounds": 0}}, InvalidSetting, "at least 1"),
        ({"rl": {"rounds": True}}, InvalidSetting, "whole number"),
        ({"nonsense": 1}, InvalidSetting, "no setting nonsense"),
        (
            {"data": {"source": "boxed", "path": "./none.jsonl"}, "rl": {"max_answer_tokens": 32}},
            IncompatibleData,
            "no file or folder",
        ),
    ],
)
def test_what_is_wrong_is_raised_and_leaves_no_run(config, error, said):
    with pytest.raises(error, match=said):
        ratchet.train(config)
    assert service.list_runs() == []


@pytest.mark.parametrize("function", [lambda: 1.0, lambda answer: 1.0, 5], ids=["no argument", "one", "no function"])
def test_a_function_that_cannot_be_called_is_refused(function):
    with pytest.raises((InvalidSetting, TypeError)):
        ratchet.train(short(), inspected=True, verifier=function)
    assert service.list_runs() == []


def test_a_callback_that_raises_ends_the_run_and_it_can_be_resumed(tmp_path):
    def on_round(record):
        if record.round == 1:
            raise RuntimeError("zyzzyva")

    with pytest.raises(RuntimeError, match="zyzzyva"):
        ratchet.train(short(), inspected=True, on_round=on_round, out=tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert "zyzzyva" not in folder.events_path.read_text() + folder.log_path.read_text()
    seen = []
    assert ratchet.resume(folder.path, on_round=seen.append).ending == "all_rounds"
    assert [record.round for record in seen] == [2]


@pytest.mark.parametrize(
    ("config", "options"), [(None, {}), (5, {}), ([], {}), ({}, {"out": 5}), ({}, {"on_round": 5})]
)
def test_an_argument_of_a_wrong_type_is_refused_before_anything_starts(config, options):
    with pytest.raises(InvalidSetting, match=r"(is|are) of type (int|list|NoneType); give"):
        ratchet.train(config, **options)
    assert service.list_runs() == []
