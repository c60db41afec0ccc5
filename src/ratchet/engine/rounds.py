"""READ THIS FIRST: the whole method, top to bottom.

    round 0   score the starting adapter on the validation sample
    round n   take prompts; sample G answers to each; grade them meanwhile; drop the groups that agree;
              one pass of updates over the rest; score the validation sample; keep the adapter if it is the best

This is GRPO (Shao et al. 2024, arXiv:2402.03300, section 4) with verifiable rewards and its kin, see ``losses.py``.
Left out on purpose: no critic, no reward model, no second pass over old rollouts. The policy is updated on answers it
just wrote, one optimizer step or more a round. The best round is chosen by validation correctness without shaping,
greedy, and only a strictly higher value replaces the best.

Knows no folder, clock policy, database or web: rounds are reported through ``report``, and ``why_stop`` says whether
to go on, so that a test or a notebook drives it with two lambdas.

Dimensions: P prompts in a round, G answers to each, B = P * G.
"""

from collections.abc import Callable, Sequence
from time import perf_counter

from ratchet.config import RunConfig
from ratchet.engine.checkpoint import Progress
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.grading import (
    failure_counts,
    grade_while_sampling,
    outcome_counts,
    part_means,
    refuse_failing_verifier,
    watch_failure_counts,
    watch_mean,
)
from ratchet.engine.round_parts import (
    Engine,
    Report,
    StreamClock,
    Task,
    When,
    best_after,
    checker,
    has_signal,
    most_draws,
    number_of_rounds,
    reported,
    round_zero,
    score,
)
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.update import update
from ratchet.errors import NoLearningSignal, StopReason
from ratchet.run.diagnosis import has_no_signal, no_signal_sentence
from ratchet.run.endings import Ending, target_reached
from ratchet.run.records import Group, Learned, Rollout, RoundRecord, Seconds, Validation


def train(
    config: RunConfig,
    engine: Engine,
    task: Task,
    report: Report,
    why_stop: Callable[[When], StopReason | None],
    resumed: Progress | None = None,
) -> Ending:
    """Run the rounds that are left; return how it ended. The best adapter is in what ``report`` received.

    Args:
        config: Resolved settings; ``rl.rounds`` a number.
        engine: Policy, learner and sampler, restored to ``resumed`` where that is given.
        task: Prompts and verifier.
        report: Called after round 0 and after each round.
        why_stop: Asked before each round, and between decoding steps and micro-batches.
        resumed: Where an earlier session of the run stood, None at the start.

    Raises:
        Interrupted: the round under way was given up.
        VerifierFailing, OutOfMemory, NotFinite, NoLearningSignal, SamplerFailed: see ``errors.py``. Rounds reported
            so far stand.
    """
    check = checker(why_stop)

    def validated() -> Validation:
        return score(engine.sampler, task.grader, task.validation, config.rl.max_answer_tokens, check)[0]

    progress = resumed or round_zero(engine, task, report, validated)
    for number in range(progress.rounds_done + 1, number_of_rounds(config, len(task.encoded)) + 1):
        # Here and not where a round ends: a run killed just after its last round resumes to the same ending.
        if ending := _early_ending(config, progress.records):
            return ending
        if reason := why_stop("between"):
            return reason
        started = perf_counter()
        groups, seconds = _rollouts(config, engine, task, number, check)
        informative = [group for group in groups if has_signal(group)]
        sampled_at = perf_counter()
        engine.learner.skipped_in_a_row = progress.skipped_in_a_row
        engine.sampler.rest()
        learned = update(engine.learner, informative, check)
        updated_at = perf_counter()
        validation = validated()
        ended = perf_counter()
        timing = Seconds(
            sampling=seconds.sampling,
            grading=seconds.grading,
            update=updated_at - sampled_at,
            validation=ended - updated_at,
            total=ended - started,
        )
        record = _record(number, groups, len(informative), learned, validation, progress.records, timing)
        progress = reported(engine, task, progress, record, groups, report)
        del groups, informative  # the next round's answers are written without this one's in memory
    return _early_ending(config, progress.records) or "all_rounds"


def _rollouts(
    config: RunConfig, engine: Engine, task: Task, number: int, check: Callable[[], None]
) -> tuple[list[Group], Seconds]:
    """Sample and grade a round's answers; with dynamic sampling, draw again for groups that carry no signal."""
    wanted = min(config.rl.prompts_per_round, len(task.encoded))
    groups: list[Group] = []
    sampling = grading = 0.0
    for _ in range(most_draws(config.rl)):
        missing = wanted - sum(has_signal(group) for group in groups)
        taken = task.stream.take(missing, exclude={group.prompt.id for group in groups})
        if not taken:
            break
        encoded = [task.encoded[prompt.id] for prompt in taken]
        requests = [
            SampleRequest(e.token_ids, config.rl.answers_per_prompt, random_key=(config.seed, number, e.prompt.id))
            for e in encoded
        ]
        clock = StreamClock()
        stream = clock.timed(
            engine.sampler.sample(requests, SamplingSettings.of(config.rl), config.rl.max_answer_tokens, check)
        )
        rollouts = grade_while_sampling(task.grader, taken, stream, config.rl.answers_per_prompt)
        sampling += clock.sampled_seconds
        grading += clock.seconds_since_sampled
        groups += [Group(e.prompt, e.token_ids, r) for e, r in zip(encoded, rollouts, strict=True)]
    refuse_failing_verifier(groups, number, config.verifier.title if config.verifier else "")
    return groups, Seconds(sampling=sampling, grading=grading)


def _record(
    number: int,
    groups: Sequence[Group],
    informative: int,
    learned: Learned,
    validation: Validation,
    earlier: Sequence[RoundRecord],
    seconds: Seconds,
) -> RoundRecord:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    count = len(rollouts)
    tokens = sum(len(rollout.completion.token_ids) for rollout in rollouts)
    return RoundRecord(
        round=number,
        validation=validation,
        **best_after(number, validation, earlier),
        seconds=seconds,
        prompt_ids=[group.prompt.id for group in groups],
        reward=sum(rollout.reward for rollout in rollouts) / count,
        accuracy=sum(rollout.grade.correctness for rollout in rollouts) / count,
        format=sum(rollout.format for rollout in rollouts) / count,
        parts=part_means(rollouts),
        groups=len(groups),
        informative_groups=informative,
        outcomes=outcome_counts(rollouts),
        failures=failure_counts(rollouts),
        answer_tokens=tokens / count,
        entropy=_entropy(rollouts, tokens),
        watch=watch_mean(rollouts),
        watch_failures=watch_failure_counts(rollouts),
        learned=learned,
    )


def _entropy(rollouts: Sequence[Rollout], tokens: int) -> float | None:
    """Estimate the policy's entropy at the sampled tokens, in nats; None where the sampler cannot tell."""
    known = [r.completion.full_logprobs for r in rollouts if r.completion.full_logprobs is not None]
    return -sum(map(sum, known)) / tokens if len(known) == len(rollouts) else None


def _early_ending(config: RunConfig, records: Sequence[RoundRecord]) -> Ending | None:
    """Whether the rounds so far, round 0 included, leave nothing to go on for."""
    if target_reached(records[-1].best_accuracy, config.limits.target_percent):
        return "target"
    return _signal_ending(records, config.rl.no_signal_rounds)


def _signal_ending(records: Sequence[RoundRecord], limit: int) -> Ending | None:
    """Whether signal never came (raises) or dried up because everything is right (nothing left to learn)."""
    rounds = records[1:]
    if len(rounds) < limit:
        return None
    if has_no_signal(rounds):
        raise NoLearningSignal(no_signal_sentence(rounds))
    recent = rounds[-limit:]
    dried_up = not any(record.informative_groups for record in recent)
    return "nothing_left" if dried_up and all(record.accuracy == 1.0 for record in recent) else None
