"""An engine that dies: the same answers after one restart, words after the second. The engines are really broken."""

from pathlib import Path

import pytest

from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.sampler import vllm as sampler_module
from ratchet.engine.sampler.vllm import write_adapter
from ratchet.errors import SamplerFailed
from ratchet.models.adapter_files import ADAPTER_WEIGHTS

from .test_vllm_sampler import END_IDS, PLAIN, requests_of, sampled


@pytest.fixture
def damaged_disk(monkeypatch):
    """Cut an adapter's weights short, after they were checked and before the engine reads them, so many times."""

    def damage(times):
        def write(path, files):
            nonlocal times
            write_adapter(path, files)
            if times > 0:
                times -= 1
                (path / ADAPTER_WEIGHTS).write_bytes(files[ADAPTER_WEIGHTS][:1000])

        monkeypatch.setattr(sampler_module, "write_adapter", write)

    return damage


@pytest.fixture
def undisturbed(policy_of, sampler_of):
    sampler = sampler_of(policy_of(end_ids=END_IDS))
    answers = sampled(sampler, requests_of(4), PLAIN)
    sampler.close()
    return answers


def broken_adapter(sampler):
    """Make the engine load a broken adapter within a step, as it does when one it was given is gone."""
    number = sampler._adapter.number
    sampler._engine.remove_lora(number)
    (Path(sampler._folder.name) / str(number) / ADAPTER_WEIGHTS).write_bytes(b"broken")


def test_a_step_that_fails_gives_the_same_answers_after_a_restart(policy_of, sampler_of, undisturbed):
    notes = []
    sampler = sampler_of(policy_of(end_ids=END_IDS), note=notes.append)
    list(sampler.sample(requests_of(1), SamplingSettings(), 4, lambda: None))
    first = sampler._engine
    broken_adapter(sampler)
    assert sampled(sampler, requests_of(4), PLAIN) == undisturbed
    assert sampler._engine is not first
    (note,) = notes
    assert "was started again; 20 answers were asked for again" in note
    # And the new engine lives on.
    assert sampled(sampler, requests_of(4), PLAIN) == undisturbed
    assert len(notes) == 1


def test_an_adapter_that_cannot_be_read_costs_one_restart(policy_of, sampler_of, undisturbed, damaged_disk):
    notes = []
    sampler = sampler_of(policy_of(end_ids=END_IDS), note=notes.append)
    damaged_disk(1)
    assert sampled(sampler, requests_of(4), PLAIN) == undisturbed
    assert len(notes) == 1


def test_a_second_failure_in_a_row_is_said_in_words(policy_of, sampler_of, damaged_disk):
    notes = []
    sampler = sampler_of(policy_of(end_ids=END_IDS), note=notes.append)
    damaged_disk(2)
    with pytest.raises(SamplerFailed, match=r"failed twice .* 20 answers were missing\. Resume the run, or choose"):
        sampled(sampler, requests_of(4), PLAIN)
    assert len(notes) == 1
    assert sampler._engine is None
    # A later call starts from nothing and works.
    assert len(sampled(sampler, requests_of(4), PLAIN)) == 20


def test_an_engine_that_does_not_start_is_said_in_words(policy_of, sampler_of, saved, tmp_path):
    policy = policy_of()
    policy.files = type(policy.files)("random", str(tmp_path / "nowhere"), None, "sha256:0")
    sampler = sampler_of(policy)
    with pytest.raises(SamplerFailed, match=r"vLLM does not start: .*choose Generation backend in_process"):
        sampled(sampler, requests_of(1), PLAIN)
