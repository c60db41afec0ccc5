"""What a trial's numbers mean: the full run's time, memory and cost, what went wrong with the answers, what to do.

Pure functions of what was measured; no clock and no file. Sentences hold numbers and names of settings, never texts of
prompts and answers.
"""

from collections.abc import Iterator, Mapping, Sequence

from ratchet.config import RunConfig
from ratchet.engine.budget import is_too_short
from ratchet.engine.estimate import EstimatedSeconds, Size, full_run, signal_share
from ratchet.engine.grading import failure_counts, outcome_counts
from ratchet.engine.round_parts import has_signal
from ratchet.engine.trial_round import Measured
from ratchet.errors import Stage
from ratchet.models.footprint import Load, cache_bytes
from ratchet.run.diagnosis import Counts, less_memory, of_answers
from ratchet.run.display import counted, shown_seconds
from ratchet.run.records import Group
from ratchet.run.trial_report import MEMORY_WARNING, Answers, Estimate, Phase, PhaseName

# What a token of a round's answers takes as Python objects until the round is stored: its id, and one number, each
# with a place in a tuple; one number more where top-p or top-k truncates.
_TOKEN_BYTES, _TRUNCATED_TOKEN_BYTES = 8 + 28 + 8 + 24, 8 + 24


def predicted(
    config: RunConfig,
    measured: Measured,
    size: Size,
    phases: Mapping[PhaseName, Phase],
    load: Load,
) -> Estimate:
    """Return the full run's time, memory and cost; shares of host and device are left for whoever knows those."""
    seconds = full_run(
        measured.small,
        measured.large,
        size,
        signal=signal_share(measured.informative, measured.sampled_groups),
        preparation=sum(phases[name].seconds for name in _BEFORE if name in phases) + measured.first_calls,
        saving=phases["saving"].seconds,
    )
    more = _further_bytes(config, measured, size)
    cache = _missing_cache(measured, size, load)
    host = _highest({name: phase.host_bytes for name, phase in phases.items()})
    device = _highest({name: phase.device_bytes for name, phase in phases.items()})
    reserved = _highest({name: phase.device_reserved_bytes for name, phase in phases.items()})
    is_on_host = device is None
    price = config.limits.price_per_hour
    return Estimate(
        rounds=seconds.rounds,
        seconds=seconds.total,
        **{name: getattr(seconds, name) for name in _PARTS},
        is_rough=measured.is_rough,
        host_bytes=None if host is None else host[1] + more + (cache if is_on_host else 0),
        host_phase=None if host is None else host[0],
        device_bytes=None if device is None else device[1] + cache,
        device_reserved_bytes=None if reserved is None else reserved[1] + cache,
        device_phase=None if device is None else device[0],
        cost=None if price is None else seconds.total / 3600 * price,
        currency=config.limits.currency if price is not None else "",
    )


_BEFORE: tuple[PhaseName, ...] = ("checking", "loading")
_PARTS = tuple(name for name in EstimatedSeconds.__dataclass_fields__ if name != "rounds")


def _highest(peaks: Mapping[PhaseName, int | None]) -> tuple[PhaseName, int] | None:
    known = [(name, peak) for name, peak in peaks.items() if peak is not None]
    return max(known, key=lambda pair: pair[1], default=None)


def _further_bytes(config: RunConfig, measured: Measured, size: Size) -> int:
    """What the full round's answers take beyond those of the trial's largest pass."""
    written = measured.large.sampling
    missing = size.prompts * size.answers - written.answers
    truncates = config.rl.top_p < 1 or config.rl.top_k > 0
    a_token = _TOKEN_BYTES + (_TRUNCATED_TOKEN_BYTES if truncates else 0)
    return max(0, missing) * a_token * sum(written.lengths) // written.answers


def _missing_cache(measured: Measured, size: Size, load: Load) -> int:
    """What the cache takes of the rows that the full run has and the trial had no time for."""
    most = max(size.prompts * size.answers, size.validation, size.heldout)
    rows = min(size.rows, most) - min(size.rows, measured.large.sampling.answers)
    longest = load.longest_prompt + max(measured.large.sampling.lengths)
    return cache_bytes(load.shape, max(0, rows) * longest) if measured.is_rough else 0


def answers_of(groups: Sequence[Group]) -> Answers:
    """Count what became of some groups' answers."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lengths = [len(rollout.completion.token_ids) for rollout in rollouts]
    count = len(rollouts)
    return Answers(
        prompts=len({group.prompt.id for group in groups}),
        answers=count,
        groups=len(groups),
        informative_groups=sum(has_signal(group) for group in groups),
        reward=sum(rollout.reward for rollout in rollouts) / count,
        accuracy=sum(rollout.grade.correctness for rollout in rollouts) / count,
        format=sum(rollout.format for rollout in rollouts) / count,
        outcomes=outcome_counts(rollouts),
        failures=failure_counts(rollouts),
        mean_tokens=sum(lengths) / count,
        longest_tokens=max(lengths),
    )


def advice(config: RunConfig, answers: Answers, estimate: Estimate, load: Load) -> list[str]:
    """What to know and do before the full run starts, what would end it first."""
    return [
        *_on_memory(config, estimate, load),
        *_on_time(config, estimate),
        *(one.advice for one in of_answers(_counts(answers), config.rl.max_answer_tokens)),
    ]


def _on_memory(config: RunConfig, estimate: Estimate, load: Load) -> Iterator[str]:
    for what, share, phase in (
        ("GPU's", estimate.device_share, estimate.device_phase),
        ("machine's", estimate.host_share, estimate.host_phase),
    ):
        if share is not None and share > MEMORY_WARNING:
            yield (
                f"The full run is expected to take {share:.0%} of the {what} memory, most of it in "
                f"{'the update' if phase == 'update' else phase}. {_lower(config, phase, load)}"
            )


def _lower(config: RunConfig, phase: PhaseName | None, load: Load) -> str:
    """What to lower for a phase: only what can be."""
    stage: Stage = phase if phase in ("update", "sampling", "validation") else "loading"
    tokens = config.rl.micro_batch_tokens
    return less_memory(
        stage,
        micro_batch=tokens is None or tokens > load.longest_row,
        gradient_checkpointing=config.rl.gradient_checkpointing != "on",
    )


def _on_time(config: RunConfig, estimate: Estimate) -> Iterator[str]:
    hours = config.limits.time_hours
    if hours is not None and is_too_short(hours * 3600, estimate.seconds, estimate.round):
        yield (
            f"The full run is expected to take {shown_seconds(estimate.seconds)}, and Time limit is "
            f"{counted(hours, 'hour')}: it would end before its last round. Raise Time limit, or choose fewer Rounds."
        )
    cap, cost = config.limits.cost_cap, estimate.cost
    if cap is not None and cost is not None and cost > cap:
        yield (
            f"The full run is expected to cost {cost:.2f} {estimate.currency}, and Cost cap is {cap:g}: it would end "
            "before its last round. Raise Cost cap, or choose fewer Rounds."
        )


def _counts(answers: Answers) -> Counts:
    return Counts(
        answers.outcomes,
        answers.accuracy,
        answers.reward,
        answers.groups,
        answers.informative_groups,
        answers.failures,
    )
