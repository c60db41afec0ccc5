"""Sampling with vLLM and learning from it, round after round: a stale adapter would not get there."""

import pytest

from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.update import update
from ratchet.run.records import Grade, Group, Prompt, Rollout

from ..engine.models import random_ids
from ..engine.test_update import ENDS, learner_of, longer_is_better, nothing

ROUNDS, LONGEST = 12, 16


@pytest.mark.parametrize(
    ("sampling", "rl"),
    [
        (SamplingSettings(), {"loss": "grpo"}),
        (SamplingSettings(temperature=0.6, top_p=0.9), {"loss": "dapo", "batch_size": 8}),
    ],
    ids=["one step, temperature 1", "several steps, a nucleus"],
)
def test_longer_is_better_is_learned(sampling, rl, policy_of, sampler_of):
    policy = policy_of(end_ids=ENDS, fresh=True)
    sampler = sampler_of(policy, window=4 + LONGEST)
    setup = {"answers_per_prompt": 8, "prompts_per_round": 4, "temperature": sampling.temperature}
    learner = learner_of(policy, rate=2e-2, limit=1.0, top_p=sampling.top_p, **setup, **rl)
    learner.importance_cap = 2.0
    means, learned = [], []
    for number in range(ROUNDS):
        requests = [SampleRequest(random_ids(4, seed=p), 8, (3, number, p)) for p in range(4)]
        answers = {(s.request, s.answer): s.completion for s in sampler.sample(requests, sampling, LONGEST, nothing)}
        groups = []
        for p, request in enumerate(requests):
            completions = [answers[p, answer] for answer in range(8)]
            rewards = [longer_is_better(completion) for completion in completions]
            pairs = zip(completions, rewards, strict=True)
            rollouts = tuple(Rollout(c, Grade(reward, "graded"), 0.0, reward) for c, reward in pairs)
            groups.append(Group(Prompt(p, (), ""), request.prompt_token_ids, rollouts))
        rewards = [[rollout.reward for rollout in group.rollouts] for group in groups]
        means.append(sum(map(sum, rewards)) / 32)
        sampler.rest()
        learned.append(update(learner, [g for g, r in zip(groups, rewards, strict=True) if max(r) > min(r)], nothing))
    assert sum(means[-3:]) / 3 - means[0] > 0.2
    moved = [one for one in learned if one.steps]
    assert len(moved) >= ROUNDS // 2
    for one in moved:
        assert one.sampler_gap < 1e-4
        assert one.importance_mean == pytest.approx(1, abs=1e-3)
        assert one.importance_max < 1.01
        assert one.importance_capped == 0
