"""What the rounds of every objective are made of: the parts that meet in one, and the steps they share.

Scoring is greedy: validation in every round, and held-out problems before and after a run.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal, TypedDict

from ratchet.config import RlSettings, RunConfig
from ratchet.datasets import PromptStream
from ratchet.engine.advantages import REWARD_RESOLUTION
from ratchet.engine.checkpoint import Progress
from ratchet.engine.distribution import GREEDY
from ratchet.engine.given_answers import number_of_steps
from ratchet.engine.grading import (
    Grader,
    grade_while_sampling,
    outcome_counts,
    part_means,
    watch_failure_counts,
    watch_mean,
)
from ratchet.engine.policy import Policy
from ratchet.engine.sampler import Sampled, Sampler, SampleRequest
from ratchet.engine.update import Learner
from ratchet.errors import Interrupted, StopReason
from ratchet.readiness.step_counts import steps_of
from ratchet.run.records import EncodedPrompt, Group, Rollout, RoundRecord, Seconds, Validation

# Draws of a round at most, with dynamic sampling. DAPO (Yu et al. 2025, arXiv:2503.14476, section 3.2) draws until
# the batch is full; a bound keeps a task that has become easy from drawing for ever.
MAX_DRAWS = 3

# When asked: between two rounds (may another one start?) or within one (must it be given up?).
When = Literal["between", "within"]


# Receives each finished round: its record, its rollouts (none for round 0) and where the run stands. Returns after
# it is safe on disk.
Report = Callable[[RoundRecord, Sequence[Group], Progress], None]


@dataclass(frozen=True)
class Task:
    """What the policy learns on. ``stream`` hands out training prompts by ``encoded``'s ids."""

    stream: PromptStream
    encoded: dict[int, EncodedPrompt]
    validation: Sequence[EncodedPrompt]
    grader: Grader


@dataclass(frozen=True)
class Engine:
    """What learns: the policy with its optimizer, and the sampler that writes with it."""

    policy: Policy
    learner: Learner
    sampler: Sampler


def number_of_rounds(config: RunConfig, prompts: int) -> int:
    """How many rounds a run has; "full" takes as many as the epochs need, sft and dpo are scored so often."""
    if config.tuning is not None:
        return min(config.tuning.evaluations, number_of_steps(config.tuning, prompts))
    return steps_of(config.rl, prompts).rounds


def most_draws(rl: RlSettings) -> int:
    """How often a round draws prompts at most."""
    return MAX_DRAWS if rl.dynamic_sampling == "refill" else 1


def has_signal(group: Group) -> bool:
    """Whether a group's rewards differ, so that it can teach anything."""
    rewards = [rollout.reward for rollout in group.rollouts]
    return max(rewards) - min(rewards) > REWARD_RESOLUTION


def round_zero(engine: Engine, task: Task, report: Report, validated: Callable[[], Validation]) -> Progress:
    """Score the starting adapter, which is the best one so far, and report it."""
    started = perf_counter()
    validation = validated()
    took = perf_counter() - started
    record = RoundRecord(
        round=0,
        validation=validation,
        **best_after(0, validation, ()),
        seconds=Seconds(validation=took, total=took),
    )
    progress = Progress([record], engine.policy.adapter_state(), task.stream.state())
    report(record, (), progress)
    return progress


def reported(
    engine: Engine, task: Task, progress: Progress, record: RoundRecord, groups: Sequence[Group], report: Report
) -> Progress:
    """Report a round that is done; return where the run stands after it."""
    # A new object: whoever holds the previous one keeps the state of the last round that is safe on disk.
    finished = Progress(
        records=[*progress.records, record],
        best_state=engine.policy.adapter_state() if record.best_round == record.round else progress.best_state,
        stream_state=task.stream.state(),
        skipped_in_a_row=engine.learner.skipped_in_a_row,
    )
    report(record, groups, finished)
    return finished


def score(
    sampler: Sampler,
    grader: Grader,
    prompts: Sequence[EncodedPrompt],
    max_answer_tokens: int,
    check: Callable[[], None],
) -> tuple[Validation, list[Rollout]]:
    """Answer every prompt with its most likely tokens and grade the answers; return one rollout a prompt, in order."""
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


class StreamClock:
    """Times how long a sampler's stream took, and what came after it."""

    def __init__(self) -> None:
        self._started = self._ended = perf_counter()

    def timed(self, stream: Generator[Sampled]) -> Generator[Sampled]:
        """Yield what the stream yields, and note when it ends."""
        try:
            yield from stream
        finally:
            self._ended = perf_counter()

    @property
    def sampled_seconds(self) -> float:
        """Seconds from the start to the stream's end."""
        return self._ended - self._started

    @property
    def seconds_since_sampled(self) -> float:
        """Seconds since the stream ended."""
        return perf_counter() - self._ended


class Best(TypedDict):
    """The fields of a round's record that name the best round so far."""

    best_round: int
    best_accuracy: float | None


def best_after(number: int, validation: Validation, earlier: Sequence[RoundRecord]) -> Best:
    """Return the best round after one more; only a validation that ranks strictly higher replaces the best so far.

    ``earlier`` holds the records of round 0 and of every round since.
    """
    best = earlier[earlier[-1].best_round] if earlier else None
    if best is None or validation.beats(best.validation):
        return {"best_round": number, "best_accuracy": validation.accuracy}
    return {"best_round": best.round, "best_accuracy": best.validation.accuracy}


def checker(why_stop: Callable[[When], StopReason | None]) -> Callable[[], None]:
    """What gives up the round under way, by raising ``Interrupted``, once there is a reason to."""

    def check() -> None:
        if reason := why_stop("within"):
            raise Interrupted("The round under way was given up.", reason)

    return check
