"""Grading: from a finished completion to a rollout, beside the sampler. The reward is in ``verifiers/reward.py``.

What a verifier could not read, what hit the token limit and what the verifier failed on all score 0, but are counted
apart: they point at the prompt, the limit and the verifier, not at the policy. A watch metric grades the same answers
beside it, for the user's eyes: nothing is learned from it, and where it fails an answer is left out of its mean.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property

from ratchet.config import RewardSettings
from ratchet.engine.sampler import Sampled
from ratchet.errors import SamplerFailed, SandboxUnavailable, VerifierFailing
from ratchet.run.diagnosis import ends_run, verifier_failures
from ratchet.run.records import OUTCOMES, Completion, Grade, Group, Outcome, Prompt, Rollout
from ratchet.run.round_lines import watch_value
from ratchet.verifiers.base import Verifier
from ratchet.verifiers.reward import Shaping, length_factor


@dataclass(frozen=True)
class Grader:
    """A verifier with the shaping around it, and the watch metric beside it, if there is one.

    Each has threads of its own: a slow watch metric holds up no reward, and the other way round.
    """

    verifier: Verifier
    reward: RewardSettings
    max_answer_tokens: int
    prefilled_think: bool
    threads: int = 2
    on_graded: Callable[[], None] = lambda: None  # told of each answer, from the thread that graded it
    watch: Verifier | None = None
    watch_threads: int = 2

    @cached_property
    def _shaping(self) -> Shaping:
        return Shaping(self.reward, self.prefilled_think)

    def grade(self, completion: Completion, prompt: Prompt) -> Rollout:
        """Grade one completion. Never raises on what the policy wrote."""
        self.on_graded()
        if completion.finish == "length":
            return Rollout(completion, Grade(0.0, "cut_off"), format=0.0, reward=0.0)
        grade = self.verifier.grade(completion.text, prompt)
        length = length_factor(len(completion.token_ids), self.max_answer_tokens, self.reward.overlong_buffer_tokens)
        earned = self._shaping.earned(grade, completion.text, length)
        return Rollout(completion, grade, earned.format, earned.reward)

    def watched(self, completion: Completion, prompt: Prompt) -> Grade | None:
        """Grade one completion by the watch metric, None without one. Never raises: it must not end a run."""
        if self.watch is None:
            return None
        if completion.finish == "length":
            return Grade(0.0, "cut_off")
        try:
            return self.watch.grade(completion.text, prompt)
        except SandboxUnavailable:
            return Grade(0.0, "failed", failure="sandbox")
        except Exception:  # a verifier does not raise; one that does must not take the run along
            return Grade(0.0, "failed", failure="execution")


def grade_while_sampling(
    grader: Grader, prompts: Sequence[Prompt], stream: Generator[Sampled], answers: int
) -> list[tuple[Rollout, ...]]:
    """Grade completions in other threads as they arrive; return each prompt's rollouts in the order of the answers.

    ``Sampled.request`` counts from 0 in the order of the prompts. The stream is closed, also when grading raises.
    """
    futures: dict[tuple[int, int], tuple[Future[Rollout], Future[Grade | None]]] = {}

    def graded(request: int, answer: int) -> Rollout:
        rollout, watched = futures[request, answer]
        return replace(rollout.result(), watch=watched.result())

    with (
        ThreadPoolExecutor(grader.threads, thread_name_prefix="grader") as pool,
        ThreadPoolExecutor(grader.watch_threads, thread_name_prefix="watch") as watch_pool,
        closing(stream) as sampled,
    ):
        try:
            for item in sampled:
                given = item.completion, prompts[item.request]
                futures[item.request, item.answer] = (
                    pool.submit(grader.grade, *given),
                    watch_pool.submit(grader.watched, *given),
                )
            if missing := len(prompts) * answers - len(futures):
                # Unknown is not wrong: nothing is made up for what was lost, and nobody waits for it.
                raise SamplerFailed(
                    f"The sampler lost {missing} of {len(prompts) * answers} answers. Resume the run; if it happens "
                    "again, choose another Generation backend."
                )
            return [tuple(graded(request, answer) for answer in range(answers)) for request in range(len(prompts))]
        except BaseException:
            # The round is given up: what waits to be graded would only hold up the end.
            pool.shutdown(wait=False, cancel_futures=True)
            watch_pool.shutdown(wait=False, cancel_futures=True)
            raise


def outcome_counts(rollouts: Iterable[Rollout]) -> dict[Outcome, int]:
    """Count rollouts by outcome; every outcome is named, so that 0 differs from unknown."""
    counts = dict.fromkeys(OUTCOMES, 0)
    for rollout in rollouts:
        counts[rollout.grade.outcome] += 1
    return counts


def failure_counts(rollouts: Iterable[Rollout]) -> dict[str, int]:
    """Count failed grades by kind."""
    return _failures(rollout.grade for rollout in rollouts)


def watch_failure_counts(rollouts: Iterable[Rollout]) -> dict[str, int]:
    """Count by kind what the watch metric failed on."""
    return _failures(rollout.watch for rollout in rollouts if rollout.watch)


def _failures(grades: Iterable[Grade]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for grade in grades:
        if grade.outcome == "failed":
            kind = grade.failure or "unknown"
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def watch_mean(rollouts: Iterable[Rollout]) -> float | None:
    """Average what the watch metric found; None without one.

    An answer that is cut off or unparseable counts 0, as it does for a verifier. One on which the metric failed is
    left out, since nothing is known of it; None where it failed on all.
    """
    found = [watch_value(rollout) for rollout in rollouts]
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known else None


def part_means(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Average each of the verifier's further numbers over all rollouts; one that a rollout lacks counts as 0."""
    names = sorted({name for rollout in rollouts for name in rollout.grade.parts})
    return {name: sum(r.grade.parts.get(name, 0.0) for r in rollouts) / len(rollouts) for name in names}


def refuse_failing_verifier(groups: Sequence[Group], round_number: int, title: str) -> None:
    """Raise VerifierFailing when it failed on more than a tenth of the answers it was given.

    Cut-off answers are not given to the verifier, so they do not count on either side. ``title`` is how the verifier is
    called, such as "Metric closeness version 2".
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    given = [rollout for rollout in rollouts if rollout.grade.outcome != "cut_off"]
    failures = failure_counts(given)
    if ends_run(failures, len(given)):
        where = f"answers in round {round_number}"
        raise VerifierFailing(verifier_failures(failures, len(given), title, where).advice)
