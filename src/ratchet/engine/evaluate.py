"""Scoring a prompt set greedily: validation in every round, and held-out problems before and after a run."""

from collections.abc import Callable, Sequence

from ratchet.engine.distribution import GREEDY
from ratchet.engine.grading import (
    Grader,
    grade_while_sampling,
    outcome_counts,
    part_means,
    watch_failure_counts,
    watch_mean,
)
from ratchet.engine.sampler import Sampler, SampleRequest
from ratchet.run.records import EncodedPrompt, Rollout, Validation


def score(
    sampler: Sampler,
    grader: Grader,
    prompts: Sequence[EncodedPrompt],
    max_answer_tokens: int,
    check: Callable[[], None],
) -> tuple[Validation, list[Rollout]]:
    """Answer every prompt with its likeliest tokens and grade the answers.

    Returns:
        The summary and the rollouts, one per prompt in the order given.
    """
    requests = [SampleRequest(encoded.token_ids, answers=1) for encoded in prompts]
    stream = sampler.sample(requests, GREEDY, max_answer_tokens, check)
    rollouts = [only for (only,) in grade_while_sampling(grader, [e.prompt for e in prompts], stream, answers=1)]
    count = len(rollouts)
    summary = Validation(
        prompts=count,
        accuracy=sum(rollout.grade.correctness for rollout in rollouts) / count,
        reward=sum(rollout.reward for rollout in rollouts) / count,
        outcomes=outcome_counts(rollouts),
        parts=part_means(rollouts),
        answer_tokens=sum(len(rollout.completion.token_ids) for rollout in rollouts) / count,
        watch=watch_mean(rollouts),
        watch_failures=watch_failure_counts(rollouts),
    )
    return summary, rollouts
