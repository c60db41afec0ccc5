"""The update: one pass of optimizer steps over the groups of a round that carry a signal.

A step's loss is summed over micro-batches of whole answers; since all denominators are those of the step, how it is
cut into micro-batches changes memory and time, not the result. A loss or gradient that is not finite skips its step;
two in a row end the run.

How far the sampler's log-probabilities are from the trainer's is reported as ``sampler_gap``; where the sampler is an
engine of its own, the truncated importance ratio corrects for it (``losses.py``).

Left out on purpose: no second pass over the same rollouts, no learning-rate schedule.

Dimensions: P informative groups, G answers each, N answer tokens of a micro-batch, A its answers.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor

from ratchet.config import OptimizerSettings, RlSettings
from ratchet.engine.advantages import group_advantages
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.logprobs import RowForward, answer_logprobs, drawn_logprobs
from ratchet.engine.losses import (
    LOSSES,
    ImportanceStats,
    LossStats,
    StepTotals,
    TokenBatch,
    policy_loss,
    truncated_importance,
)
from ratchet.engine.memory import give_back, out_of_memory_as
from ratchet.engine.packing import PackedAnswer, PackedRow, packed_rows
from ratchet.engine.policy import Policy
from ratchet.engine.third_party import without_compiler
from ratchet.errors import NotFinite
from ratchet.run.records import Group, Learned, Rollout

SKIPS_ALLOWED = 1  # in a row


@dataclass
class Learner:
    """The optimizer with the settings of its steps. ``skipped_in_a_row`` lives on between rounds.

    ``importance_cap`` is None where the sampler computes with the policy's own model: there is nothing to correct.
    """

    policy: Policy
    settings: RlSettings
    optimizer: torch.optim.AdamW
    gradient_norm_limit: float
    micro_batch_tokens: int
    forward: RowForward
    skipped_in_a_row: int = 0
    importance_cap: float | None = None


@dataclass
class StepSums:
    """What adds up over the steps of a round, whatever the objective."""

    skipped: int = 0
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    def learned(self, **more: Any) -> Learned:
        """The round's record of learning: means over the steps that were taken, and what an objective adds."""
        applied = len(self.losses)
        return Learned(
            steps=applied,
            skipped_steps=self.skipped,
            loss=sum(self.losses) / applied if applied else None,
            gradient_norm=sum(self.norms) / applied if applied else None,
            **more,
        )


@dataclass
class _UpdateSums(StepSums):
    steps: int = 0
    stats: LossStats = field(default_factory=LossStats)
    gap_sum: float = 0.0
    gap_tokens: int = 0
    importance: ImportanceStats = field(default_factory=ImportanceStats)


@dataclass(frozen=True)
class _WeightedAnswer:
    """One answer of the round with what the loss needs beside its tokens."""

    packed: PackedAnswer
    advantage: float
    sampled_logprobs: tuple[float, ...]  # under the temperature alone; with a correction, under what it was drawn from


@dataclass(frozen=True)
class _Start:
    """Log-probabilities at the round's start by answer number, each None where the step's own pass gives them."""

    full: dict[int, Tensor] | None  # temperature-scaled
    drawn: dict[int, Tensor] | None  # under the distribution the answers were drawn from


def new_optimizer(policy: Policy, learning_rate: float, settings: OptimizerSettings) -> torch.optim.AdamW:
    """Return AdamW over the adapter's weights, at a constant rate."""
    return torch.optim.AdamW(
        policy.parameters,
        lr=learning_rate,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        foreach=False,  # one weight at a time: the same bytes whatever their number
    )


def packed_answers(groups: Sequence[Group]) -> list[PackedAnswer]:
    """Number the answers of some groups and make them ready for packing."""
    numbered = [(group, rollout) for group in groups for rollout in group.rollouts]
    return [
        PackedAnswer(group.prompt_token_ids, rollout.completion.token_ids, number)
        for number, (group, rollout) in enumerate(numbered)
    ]


def update(learner: Learner, groups: Sequence[Group], check: Callable[[], None]) -> Learned:
    """Take one pass of optimizer steps over the groups, all of which carry a signal.

    Args:
        learner: Policy, optimizer and settings; the adapter's weights change in place.
        groups: The informative groups of a round, possibly none.
        check: Called between micro-batches; raises to give up the round.

    Raises:
        NotFinite: the second step in a row whose loss or gradient is not finite.
        OutOfMemory: with stage "update".
    """
    answers = _answers(groups, learner)
    group_size = learner.settings.answers_per_prompt
    per_step = learner.settings.batch_size or max(len(answers), group_size)
    steps = [answers[start : start + per_step] for start in range(0, len(answers), per_step)]
    sums = _UpdateSums()
    with out_of_memory_as("update"), same_sums_each_time():
        old = drawn = None
        if len(steps) > 1:  # with a single step the policy is still the one that sampled: every ratio is exactly 1
            old = _at_start(learner, steps, lambda row: _logprobs(learner, row), check)
        sampling = SamplingSettings.of(learner.settings)
        if learner.importance_cap is not None and sampling.truncates:
            policy, forward = learner.policy, learner.forward
            drawn = _at_start(learner, steps, lambda row: drawn_logprobs(policy, row, sampling, forward), check)
        for step in steps:
            _step(learner, step, _Start(old, drawn), sums, check)
    if learner.policy.device.type == "cpu":
        # What the backward passes left in pieces would lie beside the cache and the merged weights of what comes next.
        give_back(learner.policy.merged_bytes)
    return _learned(sums)


@contextmanager
def same_sums_each_time() -> Iterator[None]:
    """Have torch add in a fixed order for the block.

    The answers of a group share their prompt's last token, whose gradient is a sum over them. By default several
    threads add to it in the order in which they come, so the same run would give other bytes each time.
    """
    mode = torch.get_deterministic_debug_mode()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    # On a GPU some kernels have no such form; there the promise is as good as theirs, and it is not reported each time.
    # By the debug mode: ``use_deterministic_algorithms`` sets the very same, and loads torch's compiler to tell it.
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def _answers(groups: Sequence[Group], learner: Learner) -> list[_WeightedAnswer]:
    if not groups:
        return []
    settings = learner.settings
    rewards = torch.tensor([[r.reward for r in group.rollouts] for group in groups], dtype=torch.float64)  # (P, G)
    advantages = group_advantages(rewards, scale=LOSSES[settings.loss].advantage_scale).flatten().tolist()
    sampled = [_sampled_logprobs(rollout, learner) for group in groups for rollout in group.rollouts]
    return [
        _WeightedAnswer(packed, advantage, logprobs)
        for packed, advantage, logprobs in zip(packed_answers(groups), advantages, sampled, strict=True)
    ]


def _sampled_logprobs(rollout: Rollout, learner: Learner) -> tuple[float, ...]:
    """What the sampler reported, to be compared with the trainer's under the same distribution."""
    completion = rollout.completion
    if learner.importance_cap is not None:
        return completion.logprobs
    if completion.full_logprobs is None:
        raise ValueError("a sampler without full log-probabilities needs an importance cap")
    return completion.full_logprobs


def _logprobs(learner: Learner, row: PackedRow) -> Tensor:
    """Log-probabilities of a row's answer tokens under the temperature alone, (N,)."""
    return answer_logprobs(learner.policy, row, learner.settings.temperature, learner.forward)


def _rows(learner: Learner, step: Sequence[_WeightedAnswer]) -> Iterator[PackedRow]:
    return packed_rows(
        (answer.packed for answer in step),
        learner.micro_batch_tokens,
        device=learner.policy.device,
        plain=learner.forward.is_plain,
        padded=learner.forward.rows == "decoder",
    )


def _at_start(
    learner: Learner,
    steps: Sequence[Sequence[_WeightedAnswer]],
    logprobs_of: Callable[[PackedRow], Tensor],
    check: Callable[[], None],
) -> dict[int, Tensor]:
    """Compute log-probabilities while the policy is still the round's first one; return them by answer number."""
    found: dict[int, Tensor] = {}
    with torch.no_grad():
        for row in (row for step in steps for row in _rows(learner, step)):
            check()
            lengths = torch.bincount(row.answer_index).tolist()
            found.update(zip(row.numbers, logprobs_of(row).split_with_sizes(lengths), strict=True))
    return found


def _step(
    learner: Learner,
    step: Sequence[_WeightedAnswer],
    start: _Start,
    sums: _UpdateSums,
    check: Callable[[], None],
) -> None:
    """Accumulate the gradient of one step over its micro-batches and apply it, unless it is not finite."""
    settings = learner.settings
    totals = StepTotals(
        answers=len(step),
        tokens=sum(len(answer.packed.token_ids) for answer in step),
        max_answer_tokens=settings.max_answer_tokens,
    )
    by_number = {answer.packed.number: answer for answer in step}
    learner.optimizer.zero_grad(set_to_none=True)
    loss_sum, stats = 0.0, LossStats()
    for row in _rows(learner, step):
        check()
        loss, row_stats = _row(learner, row, totals, start, sums, by_number)
        loss_sum += loss
        stats += row_stats
    sums.steps += 1
    if apply_gradient(learner, loss_sum, sums, ", a lower Gradient norm limit, or a KL coefficient above 0"):
        sums.stats += stats


def apply_gradient(learner: Learner, loss: float, sums: StepSums, remedy: str) -> bool:
    """Take the step whose gradient was accumulated, unless it or the loss is not finite; tell whether it was taken.

    Raises:
        NotFinite: for the second time in a row. ``remedy`` says what to choose beside a lower Learning rate.
    """
    norm = float(torch.nn.utils.clip_grad_norm_(learner.policy.parameters, learner.gradient_norm_limit, foreach=False))
    if not torch.isfinite(torch.tensor([loss, norm])).all():
        sums.skipped += 1
        learner.skipped_in_a_row += 1
        if learner.skipped_in_a_row > SKIPS_ALLOWED:
            raise NotFinite(
                "The loss or its gradient was not a finite number in two steps in a row. Choose a lower Learning rate"
                f"{remedy}."
            )
        return False
    with without_compiler():
        learner.optimizer.step()
    learner.skipped_in_a_row = 0
    sums.losses.append(loss)
    sums.norms.append(norm)
    return True


def _row(
    learner: Learner,
    row: PackedRow,
    totals: StepTotals,
    start: _Start,
    sums: _UpdateSums,
    by_number: Mapping[int, _WeightedAnswer],
) -> tuple[float, LossStats]:
    """Add one row's gradient to the weights'; return its part of the loss. What it kept for it is gone afterwards."""
    settings = learner.settings
    logprobs = _logprobs(learner, row)
    if sums.steps == 0 and learner.importance_cap is None:
        _add_gap(sums, logprobs, row, by_number)
    old = _of_row(start.full, row, logprobs.detach())
    batch = TokenBatch(
        logprobs=logprobs,
        old_logprobs=old,
        reference_logprobs=_reference_logprobs(learner, row),
        advantages=torch.tensor([by_number[n].advantage for n in row.numbers], dtype=logprobs.dtype).to(
            logprobs.device
        ),
        answer_index=row.answer_index,
        importance=_importance(learner, sums, _of_row(start.drawn, row, old), row, by_number),
    )
    loss, row_stats = policy_loss(batch, totals, settings)
    # torch's own functions carry no types.
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), row_stats


def _reference_logprobs(learner: Learner, row: PackedRow) -> Tensor | None:
    if learner.settings.beta == 0:
        return None
    with torch.no_grad(), learner.policy.as_reference():
        return _logprobs(learner, row)


def _of_row(by_number: dict[int, Tensor] | None, row: PackedRow, otherwise: Tensor) -> Tensor:
    """Join the tensors of a row's answers, (N,)."""
    return otherwise if by_number is None else torch.cat([by_number[number] for number in row.numbers])


def _importance(
    learner: Learner, sums: _UpdateSums, trainer: Tensor, row: PackedRow, by_number: Mapping[int, _WeightedAnswer]
) -> Tensor | None:
    """Return the weights that correct for the sampler, (N,), and add up their size; None where nothing is corrected."""
    if learner.importance_cap is None:
        return None
    sampled = [value for number in row.numbers for value in by_number[number].sampled_logprobs]
    weights, stats = truncated_importance(trainer, trainer.new_tensor(sampled), learner.importance_cap)
    sums.importance += stats
    return weights


def _add_gap(sums: _UpdateSums, logprobs: Tensor, row: PackedRow, by_number: Mapping[int, _WeightedAnswer]) -> None:
    """Compare with what the sampler reported, while the policy is still the one that sampled."""
    sampled = [value for number in row.numbers for value in by_number[number].sampled_logprobs]
    sums.gap_sum += float((logprobs.detach() - torch.tensor(sampled, device=logprobs.device)).abs().sum())
    sums.gap_tokens += len(sampled)


def _learned(sums: _UpdateSums) -> Learned:
    tokens = sums.stats.tokens
    corrected = sums.importance
    if corrected.tokens:
        sums.gap_sum, sums.gap_tokens = corrected.gap_sum, corrected.tokens
    return sums.learned(
        kl=sums.stats.kl_sum / tokens if sums.stats.kl_sum is not None and tokens else None,
        clip_fraction=sums.stats.clipped_tokens / tokens if tokens else None,
        sampler_gap=sums.gap_sum / sums.gap_tokens if sums.gap_tokens else None,
        importance_mean=corrected.ratio_sum / corrected.tokens if corrected.tokens else None,
        importance_max=corrected.ratio_max if corrected.tokens else None,
        importance_capped=corrected.capped_tokens / corrected.tokens if corrected.tokens else None,
        tokens=tokens,
    )
