"""Whole runs of the shipped tiny model with vLLM: chosen, recorded, learned from, resumed, and ended well."""

import os
import signal
import time

import pytest

from ratchet import worker
from ratchet.engine.sampler import vllm as sampler_module
from ratchet.engine.sampler.vllm import write_adapter
from ratchet.errors import SamplerFailed
from ratchet.models.adapter_files import ADAPTER_WEIGHTS
from ratchet.run.run_folder import RunFolder

from ..small_runs import adapter_bytes, ended, flags, journal, records, rollouts, small


def train(path, listener=None, **changes):
    folder = RunFolder.create(small(backend="vllm", **changes), path)
    return folder, worker.run(folder, listeners=[listener] if listener else [])


def notes(folder):
    return [event["text"] for event in journal(folder) if event["event"] == "note"]


def without_seconds(folder):
    return [{**record, "seconds": None} for record in records(folder)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    home = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(home / "home"))
        return train(home / "run", temperature="0.9", top_p="0.95")


def test_a_run_samples_with_vllm_and_says_so(reference):
    folder, result = reference
    assert (result.status, result.ending, result.rounds_done) == ("completed", "all_rounds", 3)
    fixed = folder.read_run()["fixed"]
    assert fixed["sampler"] == {"backend": "vllm", "why": "Generation backend is vllm."}
    assert any(name.startswith("vllm") for name in fixed["versions"])
    assert "Answers are sampled by vllm: Generation backend is vllm." in notes(folder)
    for record in records(folder)[1:]:
        learned = record["learned"]
        assert record["entropy"] is None  # unknown with a nucleus, and not 0
        assert learned["steps"] == 1
        assert 0 < learned["sampler_gap"] < 1e-4
        assert learned["importance_mean"] == pytest.approx(1, abs=1e-3)
        assert learned["importance_max"] < 1.01
        assert learned["importance_capped"] == 0
    assert "importance=1.0000" in folder.log_path.read_text()


def test_a_run_that_is_killed_while_vllm_samples_resumes_to_the_same_bytes(reference, start_cli, tmp_path):
    folder = RunFolder(tmp_path / "run")
    process = start_cli(
        "train", *flags(), "--backend", "vllm", "--temperature", "0.9", "--top-p", "0.95", "--out", folder.path
    )
    limit = time.monotonic() + 200
    while not (folder.events_path.exists() and len(records(folder)) >= 2):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)  # the engine is in this process, and dies with it
    process.wait()
    assert len(records(folder)) < 4
    assert worker.run(folder).ending == "all_rounds"
    assert without_seconds(folder) == without_seconds(reference[0])
    assert rollouts(folder) == rollouts(reference[0])
    assert adapter_bytes(folder) == adapter_bytes(reference[0])


def breaking(monkeypatch, first, last):
    """Damage these hand-overs of the adapter, counted from 1, on their way to the engine."""
    count = 0

    def write(path, files):
        nonlocal count
        count += 1
        write_adapter(path, files)
        if first <= count <= last:
            (path / ADAPTER_WEIGHTS).write_bytes(b"broken")

    monkeypatch.setattr(sampler_module, "write_adapter", write)


def test_an_engine_that_dies_once_changes_no_byte(reference, tmp_path, monkeypatch):
    breaking(monkeypatch, 2, 2)
    folder, result = train(tmp_path / "run", temperature="0.9", top_p="0.95")
    assert result.ending == "all_rounds"
    assert [note for note in notes(folder) if "was started again" in note]
    assert rollouts(folder) == rollouts(reference[0])
    assert adapter_bytes(folder) == adapter_bytes(reference[0])


def test_an_engine_that_dies_twice_ends_the_run_with_its_best_adapter_and_it_can_be_resumed(
    reference, tmp_path, monkeypatch
):
    # The first adapter samples round 0 and round 1, the second validates round 1 and samples round 2; the third fails.
    with monkeypatch.context() as patch:
        breaking(patch, 3, 1000)
        folder, result = train(tmp_path / "run", temperature="0.9", top_p="0.95")
    assert (result.status, result.ending, result.rounds_done) == ("stopped_early", "sampler_failed", 1)
    assert result.message.startswith("The vLLM engine failed twice")
    assert ended(folder)["message"] == result.message
    assert adapter_bytes(folder)
    assert worker.run(folder).ending == "all_rounds"
    assert rollouts(folder) == rollouts(reference[0])
    assert adapter_bytes(folder) == adapter_bytes(reference[0])


def test_an_engine_that_never_works_fails_the_run_in_words(tmp_path, monkeypatch):
    breaking(monkeypatch, 1, 1000)
    with pytest.raises(SamplerFailed, match="failed twice"):
        train(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert (ended(folder)["status"], ended(folder)["ending"]) == ("failed", "sampler_failed")
