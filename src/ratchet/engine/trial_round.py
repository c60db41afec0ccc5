"""A trial: one small round, measured, from which the full run's time and memory follow (``estimate.py``).

    small pass    at most 8 training and 8 validation prompts, the longest among them, as the full run asks them
    full batch    the same prompts, each several times, so that as many answers are written at a time as in the full run
    both again    now that nothing is prepared for the first time; the full batch without the longest prompts

Asking a prompt several times in one call shares nothing between the copies, so it costs what other prompts cost. Each
pass samples, grades, updates on every group (those without a signal cost the same) and validates. What no longer fits
into the time that is left is left out. The first passes tell the memory, the last ones the time.

Writes nothing and keeps no adapter.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from math import ceil
from time import perf_counter

import torch

from ratchet.config import RlSettings, RunConfig
from ratchet.datasets import PromptStream
from ratchet.engine.build import EngineBudgets
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.estimate import PassTimes, SamplerCall, Size
from ratchet.engine.grading import Grader, grade_while_sampling
from ratchet.engine.memory import MemoryMeter
from ratchet.engine.packing import pack
from ratchet.engine.policy import Policy
from ratchet.engine.prepare import Prepared
from ratchet.engine.round_parts import Engine, StreamClock, has_signal, most_draws, number_of_rounds, score
from ratchet.engine.sampler import SampleRequest
from ratchet.engine.sampler.choice import most_rows
from ratchet.engine.update import packed_answers, update
from ratchet.run.records import EncodedPrompt, Group
from ratchet.run.trial_report import Phase, PhaseName

MOST_PROMPTS = 8
_LONGEST = 2  # so many of them are the longest there are
# A pass starts only if this much of the time that is left is expected to do.
_SHARE_OF_TIME = 0.7
# Groups for a row of the update and a little more, so that one is as full as in the full run.
_FILLED = 1.2


@dataclass(frozen=True)
class PassPrompts:
    """The prompts of one pass: for training one for each group, for validation one for each answer."""

    train: tuple[EncodedPrompt, ...]
    validation: tuple[EncodedPrompt, ...]


@dataclass
class PhaseLog:
    """Seconds and peaks by phase: of several times the last one's seconds and the highest peak."""

    meter: MemoryMeter
    phases: dict[PhaseName, Phase] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: PhaseName) -> Iterator[None]:
        """Measure the block; one that fails leaves nothing."""
        self.meter.begin()
        started = perf_counter()
        yield
        self.note(name, perf_counter() - started)

    def note(self, name: PhaseName, seconds: float) -> None:
        """Enter a phase that took so long and has just ended."""
        peak, before = self.meter.peak(), self.phases.get(name, Phase(name=name, seconds=0.0))
        self.phases[name] = Phase(
            name=name,
            seconds=seconds,
            host_bytes=_higher(peak.host, before.host_bytes),
            device_bytes=_higher(peak.device, before.device_bytes),
            device_reserved_bytes=_higher(peak.device_reserved, before.device_reserved_bytes),
        )


def _higher(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


@dataclass(frozen=True)
class Measured:
    """What the passes found."""

    small: PassTimes  # times of the small pass, warm if there was time for it
    large: PassTimes  # times of the pass that fills a batch; the small one's where there was no time
    first_calls: float  # seconds that the first pass took longer than the same one later
    validation_prompts: int  # how many there were
    groups: list[Group]  # those of the starting model: one for each prompt
    informative: int  # how many of all groups had a signal
    sampled_groups: int  # how many groups there were in all
    is_rough: bool  # there was no time to fill a batch


def size_of(prepared: Prepared, policy: Policy, plan: EngineBudgets) -> Size:
    """What the full run has of everything."""
    config = prepared.config
    shortest = min(len(one.token_ids) for one in prepared.train)
    return Size(
        rounds=number_of_rounds(config, len(prepared.train)),
        prompts=min(config.rl.prompts_per_round, len(prepared.train)),
        answers=config.rl.answers_per_prompt,
        validation=len(prepared.validation),
        heldout=len(prepared.heldout),
        rows=most_rows(
            plan.sampler.backend,
            policy.device,
            plan.budgets.sampling_tokens,
            shortest + config.rl.max_answer_tokens,
        ),
        draws=most_draws(config.rl),
    )


def chosen_prompts(prompts: Sequence[EncodedPrompt], seed: int, count: int) -> list[EncodedPrompt]:
    """Return up to ``count`` prompts: the longest two, then those of a seeded sample."""
    count = min(count, len(prompts), MOST_PROMPTS)
    longest = sorted(prompts, key=lambda one: -len(one.token_ids))[: min(_LONGEST, count)]
    had = {one.prompt.id for one in longest}
    by_id = {one.prompt.id: one for one in prompts}
    sampled = PromptStream([one.prompt for one in prompts], seed).take(count - len(longest), exclude=had)
    return [*longest, *(by_id[prompt.id] for prompt in sampled)]


def small_pass(prepared: Prepared, size: Size) -> PassPrompts:
    """Return the prompts of the small pass: at most eight of each kind, the longest first."""
    seed = prepared.config.seed
    return PassPrompts(
        tuple(chosen_prompts(prepared.train, seed, size.prompts)),
        tuple(chosen_prompts(prepared.validation, seed, size.validation)),
    )


def batch_groups(size: Size, least: int, group_tokens: float, row_tokens: int) -> int:
    """How many groups fill what the full run computes at a time: the sampler's batch and a row of the update.

    No more than the run's prompts. Tokens: what a group takes in a row of the update, and such a row at most.
    """
    sampled = -(-size.rows // size.answers)
    updated = ceil(_FILLED * row_tokens / group_tokens)
    return min(size.prompts, max(least, sampled, updated))


def _filled(chosen: Sequence[EncodedPrompt], count: int) -> tuple[EncodedPrompt, ...]:
    """Return the chosen prompts, the longest once, up to so many."""
    rest = _sampled(chosen)
    return (*chosen, *islice(cycle(rest), count - len(chosen)))


def _repeated(chosen: Sequence[EncodedPrompt], count: int) -> tuple[EncodedPrompt, ...]:
    """Return the sampled prompts, without the longest, up to so many."""
    return tuple(islice(cycle(_sampled(chosen)), count))


def _sampled(chosen: Sequence[EncodedPrompt]) -> Sequence[EncodedPrompt]:
    return chosen[_LONGEST:] or chosen


class TrialRound:
    """The passes of a trial over one engine. ``log`` receives the phases as they end."""

    def __init__(self, config: RunConfig, engine: Engine, grader: Grader, log: PhaseLog, check: Callable[[], None]):
        self._config = config
        self._engine = engine
        self._grader = grader
        self._log = log
        self._check = check
        self._number = 0
        self._informative = 0
        self._groups = 0

    def measure(self, prepared: Prepared, size: Size, left: Callable[[], float]) -> Measured:
        """Make the passes that there is time for; ``left`` returns the seconds that are left.

        Raises:
            Interrupted, OutOfMemory, NotFinite, SamplerFailed: as in a round.
        """
        small_prompts = small_pass(prepared, size)
        with self._log.phase("validation"):  # round 0; the sampler's weights are merged for the next call too
            self._validated(small_prompts.validation)
        first, groups = self._pass(small_prompts)
        row_tokens = self._engine.learner.micro_batch_tokens
        batch = batch_groups(size, len(groups), self._group_tokens(groups), row_tokens)
        scored = max(len(small_prompts.validation), min(size.rows, max(size.validation, size.heldout)))
        with_longest = PassPrompts(_filled(small_prompts.train, batch), _filled(small_prompts.validation, scored))
        without = PassPrompts(_repeated(small_prompts.train, batch), _repeated(small_prompts.validation, scored))
        growth = max(batch / len(groups), scored / len(small_prompts.validation))
        small = large = first
        is_rough = growth > 1
        if is_rough and growth * first.seconds < _SHARE_OF_TIME * left():
            large, _ = self._pass(with_longest)
            is_rough = False
        if not is_rough and first.seconds + large.seconds < _SHARE_OF_TIME * left():
            small, _ = self._pass(small_prompts if growth > 1 else without)
            large = self._pass(without)[0] if growth > 1 else small
        return Measured(
            small=small,
            large=large,
            first_calls=max(0.0, first.seconds - small.seconds),
            validation_prompts=len(small_prompts.validation),
            groups=groups,
            informative=self._informative,
            sampled_groups=self._groups,
            is_rough=is_rough,
        )

    def _pass(self, prompts: PassPrompts) -> tuple[PassTimes, list[Group]]:
        config, log = self._config, self._log
        self._number += 1
        log.meter.begin()
        clock = StreamClock()
        groups = self._sampled(prompts.train, clock)
        grading = clock.seconds_since_sampled
        log.note("sampling", clock.sampled_seconds)
        log.note("grading", grading)
        self._engine.sampler.rest()
        learner = replace(self._engine.learner, skipped_in_a_row=0, settings=_settings(config.rl, len(groups)))
        with log.phase("update"):
            update(learner, groups, self._check)
        with log.phase("validation"):
            lengths = self._validated(prompts.validation)
        written = tuple(len(rollout.completion.token_ids) for group in groups for rollout in group.rollouts)
        times = PassTimes(
            sampling=SamplerCall(log.phases["sampling"].seconds, written),
            grading=grading,
            update=log.phases["update"].seconds,
            groups=len(groups),
            validation=SamplerCall(log.phases["validation"].seconds, lengths),
        )
        self._informative += sum(has_signal(group) for group in groups)
        self._groups += len(groups)
        return times, groups

    def _group_tokens(self, groups: Sequence[Group]) -> float:
        """How many tokens a group takes in the rows of the update, on average."""
        learner = self._engine.learner
        rows = pack(
            packed_answers(groups),
            learner.micro_batch_tokens,
            device=torch.device("cpu"),
            plain=learner.forward.is_plain,
            padded=learner.forward.rows == "decoder",
        )
        return sum(len(row.input_ids) for row in rows) / len(groups)

    def _sampled(self, prompts: Sequence[EncodedPrompt], clock: StreamClock) -> list[Group]:
        rl, copies = self._config.rl, Counter[int]()
        requests = []
        for one in prompts:
            key = (self._config.seed, self._number, one.prompt.id, copies[one.prompt.id])
            requests.append(SampleRequest(one.token_ids, rl.answers_per_prompt, random_key=key))
            copies[one.prompt.id] += 1
        stream = self._engine.sampler.sample(requests, SamplingSettings.of(rl), rl.max_answer_tokens, self._check)
        asked = [one.prompt for one in prompts]
        rollouts = grade_while_sampling(self._grader, asked, clock.timed(stream), rl.answers_per_prompt)
        return [Group(one.prompt, one.token_ids, r) for one, r in zip(prompts, rollouts, strict=True)]

    def _validated(self, prompts: Sequence[EncodedPrompt]) -> tuple[int, ...]:
        longest = self._config.rl.max_answer_tokens
        _, rollouts = score(self._engine.sampler, self._grader, prompts, longest, self._check)
        return tuple(len(rollout.completion.token_ids) for rollout in rollouts)


def _settings(rl: RlSettings, groups: int) -> RlSettings:
    """Return the settings of an update that takes several optimizer steps where the full run does.

    It computes the log-probabilities at the round's start apart then, which takes time.
    """
    if rl.batch_size is None or rl.batch_size >= rl.prompts_per_round * rl.answers_per_prompt:
        return rl.model_copy(update={"batch_size": None})
    half = max(1, groups // 2) * rl.answers_per_prompt
    return rl.model_copy(update={"batch_size": min(rl.batch_size, half)})
