"""The vLLM sampler against the trainer and the in-process sampler, on a real engine."""

import pytest

from ratchet.engine.distribution import GREEDY, SamplingSettings
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.sampler.in_process import InProcessSampler
from ratchet.engine.sampler.vllm import VllmSampler
from ratchet.errors import Interrupted
from ratchet.models.model_files import ModelFiles

from ..engine.models import EOS, TURN, random_ids, tiny_policy
from .conftest import LONGEST, SHAPE

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


@pytest.fixture(scope="module")
def shared(saved):
    """A policy, a sampler with a running engine, and its answers to ``requests_of(4)``; no test may change them."""
    policy = tiny_policy(end_ids=END_IDS, **SHAPE)
    policy.files = ModelFiles("random", str(saved()), None, "sha256:0")
    sampler = VllmSampler(policy, 0.3, 1 << 14, 14 + LONGEST)
    yield policy, sampler, sampled(sampler, requests_of(4), PLAIN)
    sampler.close()


def test_greedy_answers_are_the_in_process_samplers_token_for_token(shared):
    policy, sampler, _ = shared
    ours = sampled(sampler, requests_of(1), GREEDY)
    theirs = sampled(InProcessSampler(policy, 1 << 20), requests_of(1), GREEDY)
    assert tokens_of(ours) == tokens_of(theirs)
    assert {k: (c.text, c.finish) for k, c in ours.items()} == {k: (c.text, c.finish) for k, c in theirs.items()}


def test_the_end_token_is_kept_its_text_is_not_and_an_answer_without_one_is_cut_off(shared):
    policy, _, answers = shared
    assert len(answers) == 4 * len(LENGTHS)
    assert {completion.finish for completion in answers.values()} == {"stop", "length"}
    for completion in answers.values():
        stopped = completion.token_ids[-1] in END_IDS
        assert completion.finish == ("stop" if stopped else "length")
        assert stopped or len(completion.token_ids) == LONGEST
        assert not set(completion.token_ids[:-1]) & set(END_IDS)
        written = completion.token_ids[:-1] if stopped else completion.token_ids
        assert completion.text == policy.chat.decode(list(written))
        assert len(completion.logprobs) == len(completion.token_ids)
        assert completion.full_logprobs == completion.logprobs


def test_where_tokens_are_left_out_full_log_probabilities_are_unknown_which_is_not_zero(shared):
    _, sampler, _ = shared
    assert all(completion.full_logprobs is None for completion in sampled(sampler, requests_of(2), NUCLEUS).values())


def test_an_answer_depends_on_its_own_key_alone(shared):
    _, sampler, answers = shared
    tokens = tokens_of(answers)
    for number, request in enumerate(requests_of(4)):
        alone = tokens_of(sampled(sampler, [request], PLAIN))
        assert alone == {(0, answer): tokens[number, answer] for answer in range(4)}
    backwards = tokens_of(sampled(sampler, requests_of(4)[::-1], PLAIN))
    assert backwards == {(len(LENGTHS) - 1 - number, answer): ids for (number, answer), ids in tokens.items()}
    few = tokens_of(sampled(sampler, requests_of(2), PLAIN))
    assert few.items() <= tokens.items()
    assert len(set(tokens.values())) > len(tokens) / 2
    assert tokens_of(sampled(sampler, requests_of(4, round_number=2), PLAIN)) != tokens


def test_answers_come_as_they_finish_and_none_waits_for_the_others(shared):
    _, sampler, answers = shared
    lengths = [len(completion.token_ids) for completion in answers.values()]
    assert lengths == sorted(lengths)
    steps = []
    stream = sampler.sample(requests_of(4), PLAIN, LONGEST, lambda: steps.append("check"))
    first = next(stream).completion
    assert len(steps) <= 2 + len(first.token_ids)
    # Closed by its consumer, it leaves nothing behind.
    assert sampler._engine.has_unfinished_requests()
    stream.close()
    assert not sampler._engine.has_unfinished_requests()
    assert sampled(sampler, requests_of(4), PLAIN) == answers


def test_the_check_gives_up_between_two_steps_and_leaves_nothing_behind(shared):
    _, sampler, answers = shared
    steps = []

    def give_up():
        steps.append("check")
        if len(steps) == 5:
            raise Interrupted("enough")

    engine = sampler._engine
    with pytest.raises(Interrupted):
        sampled(sampler, requests_of(4), PLAIN, give_up)
    assert len(steps) == 5
    assert not engine.has_unfinished_requests()
    assert sampled(sampler, requests_of(4), PLAIN) == answers
    assert sampler._engine is engine
