"""The vLLM sampler and the adapter it is given: the trainer's log-probabilities over many swaps, and clean ends."""

import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet.engine.distribution import GREEDY
from ratchet.engine.logprobs import PLAIN as PLAIN_ROWS
from ratchet.engine.logprobs import answer_logprobs, drawn_logprobs
from ratchet.engine.packing import PackedAnswer, pack
from ratchet.errors import NotFinite

from .test_vllm_sampler import END_IDS, PLAIN, SAMPLING, requests_of, sampled, tokens_of


def stir(policy, seed):
    """Give the adapter's second factor other random weights, as an update would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1, generator=generator)


def gaps(policy, requests, completions, settings):
    """Return all differences between the log-probabilities of sampler and trainer."""
    found = []
    for (request, _), completion in completions.items():
        answer = PackedAnswer(requests[request].prompt_token_ids, completion.token_ids, 0)
        (row,) = pack([answer], 1, device=policy.device, plain=True)
        drawn = drawn_logprobs(policy, row, settings, PLAIN_ROWS)
        found += (drawn - torch.tensor(completion.logprobs)).abs().tolist()
        if completion.full_logprobs is not None:
            with torch.no_grad():
                full = answer_logprobs(policy, row, 1.0 if settings.greedy else settings.temperature, PLAIN_ROWS)
            found += (full - torch.tensor(completion.full_logprobs)).abs().tolist()
    return found


def settings_of_the_process():
    return {
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "precision": torch.get_float32_matmul_precision(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cores": os.sched_getaffinity(0),
        "interrupt": signal.getsignal(signal.SIGINT),
        "termination": signal.getsignal(signal.SIGTERM),
        "random": random.getstate(),
        "random of numpy": str(np.random.get_state()),
        "random of torch": torch.random.get_rng_state().tolist(),
    }


def test_starting_an_engine_and_sampling_leave_the_process_as_it_was(policy_of, sampler_of):
    policy = policy_of()
    before = settings_of_the_process()
    assert sampled(sampler_of(policy), requests_of(1), PLAIN)
    assert settings_of_the_process() == before


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_log_probabilities_are_the_trainers_over_twelve_adapter_swaps(architecture, policy_of, sampler_of):
    policy = policy_of(architecture, end_ids=END_IDS)
    sampler = sampler_of(policy)
    seen, largest = set(), 0.0
    for swap in range(12):
        stir(policy, seed=swap)
        settings = SAMPLING[swap % len(SAMPLING)]
        requests = requests_of(3, swap)
        completions = sampled(sampler, requests, settings)
        largest = max(largest, *gaps(policy, requests, completions, settings))
        greedy = sampled(sampler, requests_of(1), GREEDY)
        largest = max(largest, *gaps(policy, requests_of(1), greedy, GREEDY))
        seen.add(tuple(sorted(tokens_of(greedy).items())))
        assert sampler._engine.list_loras() == {swap + 1}
        assert [path.name for path in Path(sampler._folder.name).iterdir()] == [str(swap + 1)]
    assert len(seen) == 12  # each adapter says something else
    assert largest < 1e-4


def test_the_adapter_is_handed_over_only_when_it_has_changed(policy_of, sampler_of):
    policy = policy_of(end_ids=END_IDS)
    sampler = sampler_of(policy)
    for _ in range(2):
        sampled(sampler, requests_of(1), GREEDY)
    assert sampler._engine.list_loras() == {1}
    stir(policy, 5)
    changed = sampled(sampler, requests_of(1), GREEDY)
    assert sampler._engine.list_loras() == {2}
    policy.load_adapter_state(policy.adapter_state())  # the same numbers in other tensors
    assert sampled(sampler, requests_of(1), GREEDY) == changed
    assert sampler._engine.list_loras() == {2}


def test_resting_and_closing_twice_are_harmless(policy_of, sampler_of):
    sampler = sampler_of(policy_of(end_ids=END_IDS))
    sampler.rest()  # before there is an engine
    answers = sampled(sampler, requests_of(4), PLAIN)
    sampler.rest()
    sampler.rest()
    assert sampled(sampler, requests_of(4), PLAIN) == answers
    folder = Path(sampler._folder.name)
    assert any(folder.iterdir())
    sampler.close()
    sampler.close()
    assert not folder.exists()


def test_an_adapter_that_is_not_finite_is_no_fault_of_the_engine(policy_of, sampler_of):
    policy = policy_of()
    sampler = sampler_of(policy, note=lambda text: pytest.fail(text))
    with torch.no_grad():
        policy.parameters[1][0, 0] = torch.nan
    with pytest.raises(NotFinite, match="lower Learning rate"):
        sampled(sampler, requests_of(1), PLAIN)


def test_a_model_whose_output_is_not_finite_is_not_sampled_from(policy_of, sampler_of):
    # Finite weights that overflow on the way: what a collapsed policy looks like.
    policy = policy_of()
    sampler = sampler_of(policy, note=lambda text: pytest.fail(text))
    with torch.no_grad():
        for weight in policy.parameters:
            weight.fill_(3e19)
    with pytest.raises(NotFinite, match="not a finite number"):
        sampled(sampler, requests_of(1), PLAIN)
