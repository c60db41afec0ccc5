"""The vLLM sampler against the trainer and the in-process sampler, on a real engine."""

import os
from pathlib import Path

import pytest
import torch

from ratchet.engine.distribution import GREEDY, SamplingSettings, sampling_logprobs
from ratchet.engine.logprobs import row_logits
from ratchet.engine.packing import PackedAnswer, pack
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.errors import Interrupted, NotFinite

from ..engine.models import EOS, TURN, random_ids
from .conftest import LONGEST

LENGTHS = [3, 9, 5, 1, 14]
# Several end ids of 64, so that answers of very different lengths occur.
END_IDS = (EOS, TURN, 10, 20, 30, 40)
PLAIN = SamplingSettings()
NUCLEUS = SamplingSettings(temperature=0.6, top_p=0.9)
SAMPLING = [PLAIN, NUCLEUS, SamplingSettings(top_k=20), SamplingSettings(temperature=1.3, top_k=12, top_p=0.8)]


def requests_of(answers, round_number=1, lengths=LENGTHS):
    return [
        SampleRequest(random_ids(length, seed=number), answers, random_key=(7, round_number, number))
        for number, length in enumerate(lengths)
    ]


def nothing():
    pass


def sampled(sampler, requests, settings, check=nothing):
    return {(s.request, s.answer): s.completion for s in sampler.sample(requests, settings, LONGEST, check)}


def tokens_of(completions):
    return {key: completion.token_ids for key, completion in completions.items()}


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
        with torch.no_grad():
            drawn, full = sampling_logprobs(row_logits(policy, row), row.targets, settings)
        found += (drawn - torch.tensor(completion.logprobs)).abs().tolist()
        if completion.full_logprobs is not None:
            found += (full - torch.tensor(completion.full_logprobs)).abs().tolist()
    return found


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_log_probabilities_are_the_trainers_over_twelve_adapter_swaps(architecture, policy_of, sampler_of):
    policy = policy_of(architecture, end_ids=END_IDS)
    sampler = sampler_of(policy)
    seen, largest, tokens = set(), 0.0, 0
    for swap in range(12):
        stir(policy, seed=swap)
        settings = SAMPLING[swap % len(SAMPLING)]
        requests = requests_of(3, swap)
        completions = sampled(sampler, requests, settings)
        differences = gaps(policy, requests, completions, settings)
        largest, tokens = max(largest, *differences), tokens + len(differences)
        greedy = sampled(sampler, requests_of(1), GREEDY)
        largest = max(largest, *gaps(policy, requests_of(1), greedy, GREEDY))
        seen.add(tuple(sorted(tokens_of(greedy).items())))
        assert sampler._engine.list_loras() == {swap + 1}
        assert [path.name for path in Path(sampler._folder.name).iterdir()] == [str(swap + 1)]
    assert len(seen) == 12  # each adapter says something else
    print(f"{architecture}: {tokens} log-probabilities, largest gap {largest:.1e}")
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


def test_what_is_sampled(policy_of, sampler_of):
    """One engine for everything that leaves it as it was."""
    policy = policy_of(end_ids=END_IDS)
    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), os.sched_getaffinity(0))
    sampler = sampler_of(policy)
    requests = requests_of(4)

    # Greedy answers are the in-process sampler's, token for token.
    ours = sampled(sampler, requests_of(1), GREEDY)
    theirs = sampled(InProcessSampler(policy, 1 << 20), requests_of(1), GREEDY)
    assert tokens_of(ours) == tokens_of(theirs)
    assert {key: (c.text, c.finish) for key, c in ours.items()} == {
        key: (c.text, c.finish) for key, c in theirs.items()
    }

    # Starting an engine and sampling leave torch as it was.
    after = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), os.sched_getaffinity(0))
    assert after == before

    # The end token is kept, its text is not, and an answer without one is cut off.
    together = sampled(sampler, requests, PLAIN)
    assert len(together) == 4 * len(LENGTHS)
    assert {completion.finish for completion in together.values()} == {"stop", "length"}
    for completion in together.values():
        stopped = completion.token_ids[-1] in END_IDS
        assert completion.finish == ("stop" if stopped else "length")
        assert stopped or len(completion.token_ids) == LONGEST
        assert not set(completion.token_ids[:-1]) & set(END_IDS)
        written = completion.token_ids[:-1] if stopped else completion.token_ids
        assert completion.text == policy.chat.decode(list(written))
        assert len(completion.logprobs) == len(completion.token_ids)
        assert completion.full_logprobs == completion.logprobs

    # Where a nucleus truncates, the untruncated log-probabilities are unknown, which is not zero.
    assert all(completion.full_logprobs is None for completion in sampled(sampler, requests, NUCLEUS).values())

    # An answer depends on its own key alone: not on what else is asked, nor on the order, nor on what was before.
    tokens = tokens_of(together)
    for number, request in enumerate(requests):
        alone = tokens_of(sampled(sampler, [request], PLAIN))
        assert alone == {(0, answer): tokens[number, answer] for answer in range(4)}
    backwards = tokens_of(sampled(sampler, requests[::-1], PLAIN))
    assert backwards == {(len(requests) - 1 - number, answer): ids for (number, answer), ids in tokens.items()}
    assert len(set(tokens.values())) > len(tokens) / 2
    assert tokens_of(sampled(sampler, requests_of(4, round_number=2), PLAIN)) != tokens

    # Answers come as they finish, and none waits for the others.
    lengths = [len(completion.token_ids) for completion in together.values()]
    assert lengths == sorted(lengths)
    steps = []
    stream = sampler.sample(requests, PLAIN, LONGEST, lambda: steps.append("check"))
    first = next(stream).completion
    assert len(steps) <= 2 + len(first.token_ids)

    # Given up half way, by its consumer or by the check, it leaves nothing behind.
    stream.close()
    assert not sampler._engine.has_unfinished_requests()

    def give_up():
        steps.append("check")
        if len(steps) == 5:
            raise Interrupted("enough")

    steps.clear()
    with pytest.raises(Interrupted):
        sampled(sampler, requests, PLAIN, give_up)
    assert not sampler._engine.has_unfinished_requests()
    assert sampled(sampler, requests, PLAIN) == together

    # Resting costs nothing here; afterwards the same is sampled.
    engine = sampler._engine
    sampler.rest()
    assert sampled(sampler, requests, PLAIN) == together
    assert sampler._engine is engine


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


def test_closing_removes_the_adapters_files(policy_of, sampler_of):
    sampler = sampler_of(policy_of())
    sampled(sampler, requests_of(1), GREEDY)
    folder = Path(sampler._folder.name)
    assert any(folder.iterdir())
    sampler.close()
    sampler.close()
    assert not folder.exists()
