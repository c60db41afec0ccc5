"""Losses: from log-probabilities and advantages of a micro-batch to its share of the step's loss.

Every loss is a sum over tokens, ``sum_t weight_t * (importance_t * surrogate_t + beta * k3_t)``, of a surrogate (what
a token's ratio and advantage make of it) and a weight (what the sum is divided by). ``LOSSES`` says which go together:

    loss      surrogate              weight of a token of answer i   source
    grpo      clipped_token_ratio    1 / (answers * |i|)             Shao et al. 2024, arXiv:2402.03300, section 4.1.1
    dapo      clipped_token_ratio    1 / tokens                      Yu et al. 2025, arXiv:2503.14476, section 3.3
    dr_grpo   clipped_token_ratio    1 / (answers * max tokens)      Liu et al. 2025, arXiv:2503.20783, section 3.2
    gspo      clipped_answer_ratio   1 / (answers * |i|)             Zheng et al. 2025, arXiv:2507.18071, section 4.1
    cispo     bounded_weight         1 / tokens                      MiniMax 2025, arXiv:2506.13585, section 3.1

Counts are those of the whole optimizer step, after groups without signal were dropped, so the shares of its
micro-batches add up to the same loss however it is split. The papers' outer mean over prompts with a mean over their
G answers inside is the mean over answers, since every prompt has G.

Tensor arithmetic only: no model, no padding, no optimizer. The importance, which corrects for a sampler that differs
from the trainer (``truncated_importance``), is 1 where it is not given.

Dimensions: N tokens of the micro-batch, A answers in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ratchet.config import Loss, RlSettings
from ratchet.engine.advantages import AdvantageScale


@dataclass(frozen=True)
class TokenBatch:
    """Sampled tokens of whole answers, side by side without padding; an answer is never split over micro-batches.

    Log-probabilities are natural logs of the sampled tokens, temperature-scaled, and of one dtype.
    """

    logprobs: Tensor  # (N,) current policy; the only one that a gradient flows into
    old_logprobs: Tensor  # (N,) the policy that the step's ratios refer to
    reference_logprobs: Tensor | None  # (N,) the reference policy; needed only if beta > 0
    advantages: Tensor  # (A,) one per answer
    answer_index: Tensor  # (N,) int64: which answer (0..A-1) a token belongs to, in any order
    importance: Tensor | None = None  # (N,) constants that the surrogate, not the KL, is multiplied by


@dataclass(frozen=True)
class StepTotals:
    """What a whole optimizer step is averaged over, groups without signal left out."""

    answers: int
    tokens: int
    max_answer_tokens: int  # the setting, not the longest that occurred


@dataclass(frozen=True)
class LossStats:
    """What the tokens of a micro-batch went through; ``+`` joins micro-batches and ``LossStats()`` is its zero.

    A token counts as clipped when the clip decides its part of the loss. For the clipped ratios that is when the
    bounded branch is the smaller one (ratio too high with a positive advantage, too low with a negative one): such
    a token adds no gradient. For gspo all tokens of a clipped answer count. For cispo it is when the weight was
    lowered to the bound and the advantage is not 0: such a token still adds a gradient.

    Ratios are those that enter the loss: for gspo, each token counts with the ratio of its answer.
    """

    tokens: int = 0
    clipped_tokens: int = 0
    kl_sum: float | None = None  # k3 summed over the tokens; None when beta is 0, since it is not computed then
    ratio_sum: float = 0.0
    ratio_min: float = inf
    ratio_max: float = -inf

    def __add__(self, other: "LossStats") -> "LossStats":
        kl_sums = [part.kl_sum for part in (self, other) if part.kl_sum is not None]
        return LossStats(
            tokens=self.tokens + other.tokens,
            clipped_tokens=self.clipped_tokens + other.clipped_tokens,
            kl_sum=sum(kl_sums) if kl_sums else None,
            ratio_sum=self.ratio_sum + other.ratio_sum,
            ratio_min=min(self.ratio_min, other.ratio_min),
            ratio_max=max(self.ratio_max, other.ratio_max),
        )


class Surrogate(NamedTuple):
    """One surrogate, token by token."""

    loss: Tensor  # (N,) before weighting
    ratios: Tensor  # (N,)
    is_clipped: Tensor  # (N,) bool


class Clip(NamedTuple):
    """Resolved clip settings, both at least 0."""

    low: float
    high: float


@dataclass(frozen=True)
class LossRule:
    """What one loss consists of, and the advantages it is defined with."""

    surrogate: Callable[[TokenBatch, Clip], Surrogate]
    weights: Callable[[TokenBatch, StepTotals], Tensor]  # (N,), equal within an answer
    advantage_scale: AdvantageScale
    importance: Callable[[Tensor, TokenBatch], Tensor] = lambda importance, batch: importance  # (N,) to (N,)


def policy_loss(batch: TokenBatch, totals: StepTotals, settings: RlSettings) -> tuple[Tensor, LossStats]:
    """The share of one micro-batch in the loss of its optimizer step, to be minimised.

    Shares add up: the sum over the micro-batches of a step is the step's loss, and so for gradients.

    Args:
        batch: N >= 1 tokens of whole answers.
        totals: Counts of the whole step, this micro-batch included.
        settings: With both clips resolved (``RunConfig.resolved``).

    Returns:
        () loss with gradient into ``batch.logprobs`` alone, in their dtype; and what happened to the tokens.

    Raises:
        ValueError: The tensors do not fit together, the clips are not resolved, or beta > 0 without a reference.
            Each is our bug.
    """
    _check(batch)
    if settings.clip_low is None or settings.clip_high is None:
        raise ValueError("clip_low or clip_high is not resolved: pass the settings of a resolved RunConfig")
    rule = LOSSES[settings.loss]
    surrogate = rule.surrogate(batch, Clip(settings.clip_low, settings.clip_high))
    loss, kl_sum = surrogate.loss, None
    if batch.importance is not None:
        loss = loss * rule.importance(batch.importance.detach(), batch)
    if settings.beta > 0:
        kl = k3(batch)  # (N,)
        loss = loss + settings.beta * kl
        kl_sum = kl.detach().sum().item()
    stats = LossStats(
        tokens=len(batch.logprobs),
        clipped_tokens=int(surrogate.is_clipped.sum()),
        kl_sum=kl_sum,
        ratio_sum=surrogate.ratios.sum().item(),
        ratio_min=surrogate.ratios.min().item(),
        ratio_max=surrogate.ratios.max().item(),
    )
    return (rule.weights(batch, totals) * loss).sum(), stats


def clipped_token_ratio(batch: TokenBatch, clip: Clip) -> Surrogate:
    """PPO's clipped surrogate with one ratio a token, as in GRPO, DAPO and Dr. GRPO.

    ``-min(r * A, clamp(r, 1 - low, 1 + high) * A)`` with ``r = exp(logp - old)``. Schulman et al. 2017,
    arXiv:1707.06347, equation 7; Shao et al. 2024, arXiv:2402.03300, equation 3; separate bounds are DAPO's
    clip-higher (Yu et al. 2025, arXiv:2503.14476, section 3.1).
    """
    return _clipped(torch.exp(batch.logprobs - batch.old_logprobs.detach()), batch, clip)


def clipped_answer_ratio(batch: TokenBatch, clip: Clip) -> Surrogate:
    """PPO's clipped surrogate with one ratio an answer, as in GSPO.

    ``-min(s * A, clamp(s, 1 - low, 1 + high) * A)`` with ``s = exp(mean over the answer of (logp - old))``. Zheng et
    al. 2025, arXiv:2507.18071, equations 5 and 7. Written as their GSPO-token (section 4.3): every token has the
    value of ``s`` and its own gradient, which within an answer of one advantage is the same loss with the same
    gradient, and leaves no sum over an answer in the backward pass.
    """
    current = batch.logprobs.detach()
    log_ratios = _mean_per_answer(current - batch.old_logprobs.detach(), batch)  # (A,)
    return _clipped(torch.exp(log_ratios[batch.answer_index] + (batch.logprobs - current)), batch, clip)


def bounded_weight(batch: TokenBatch, clip: Clip) -> Surrogate:
    """REINFORCE with a bounded importance weight, as in CISPO: no token loses its gradient.

    ``-stop_gradient(min(r, high)) * A * logp``. MiniMax 2025, arXiv:2506.13585, equations 4 and 5, who bound the
    weight from above only. ``high`` is the bound itself, as in TRL 1.16 and Khatri et al. 2025, arXiv:2510.13786
    (their epsilon_max), while MiniMax write the bound as ``1 + epsilon_high``. ``low`` is not used.
    """
    advantages = batch.advantages[batch.answer_index]  # (N,)
    ratios = torch.exp(batch.logprobs.detach() - batch.old_logprobs.detach())  # (N,)
    loss = -ratios.clamp(max=clip.high) * advantages * batch.logprobs
    return Surrogate(loss, ratios, (ratios > clip.high) & (advantages != 0))


def k3(batch: TokenBatch) -> Tensor:
    """Estimate the KL divergence of the policy from the reference at each token, (N,): never negative, low variance.

    ``exp(d) - d - 1`` with ``d = reference - logp``, estimator k3 of Schulman 2020
    (http://joschu.net/blog/kl-approx.html); Shao et al. 2024, arXiv:2402.03300, equation 4. Its gradient is that of
    the written formula, as in TRL, not of the divergence itself.

    Raises:
        ValueError: There are no reference log-probabilities.
    """
    if batch.reference_logprobs is None:
        raise ValueError("beta is above 0, but the micro-batch has no reference log-probabilities")
    difference = batch.reference_logprobs.detach() - batch.logprobs
    return torch.expm1(difference) - difference  # expm1: in float32, exp(d) - 1 has no digits left for a small d


def per_answer(batch: TokenBatch, totals: StepTotals) -> Tensor:
    """Weigh answers alike: a mean over each answer's tokens, then over the answers of the step. (N,)."""
    return 1.0 / (totals.answers * _lengths(batch)[batch.answer_index].to(batch.logprobs.dtype))


def per_token(batch: TokenBatch, totals: StepTotals) -> Tensor:
    """Weigh tokens alike: a mean over all tokens of the step. (N,)."""
    return torch.full_like(batch.logprobs, 1.0 / totals.tokens)


def per_longest_answer(batch: TokenBatch, totals: StepTotals) -> Tensor:
    """Weigh tokens alike by a constant that does not depend on lengths: answers times the longest allowed. (N,)."""
    return torch.full_like(batch.logprobs, 1.0 / (totals.answers * totals.max_answer_tokens))


def mean_importance(importance: Tensor, batch: TokenBatch) -> Tensor:
    """Give each token the mean importance of its answer: where an answer has one ratio it has one weight. (N,).

    The value is the same as with a weight a token; the gradient is then that of the value, as in TRL.
    """
    return _mean_per_answer(importance, batch)[batch.answer_index]


LOSSES: Mapping[Loss, LossRule] = {
    "grpo": LossRule(clipped_token_ratio, per_answer, "group_std"),
    "dapo": LossRule(clipped_token_ratio, per_token, "group_std"),
    "dr_grpo": LossRule(clipped_token_ratio, per_longest_answer, "none"),
    "gspo": LossRule(clipped_answer_ratio, per_answer, "group_std", mean_importance),
    "cispo": LossRule(bounded_weight, per_token, "group_std"),
}


def _clipped(ratios: Tensor, batch: TokenBatch, clip: Clip) -> Surrogate:
    """Apply PPO's pessimistic bound to (N,) ratios."""
    advantages = batch.advantages[batch.answer_index]  # (N,)
    free = ratios * advantages
    bounded = ratios.clamp(1 - clip.low, 1 + clip.high) * advantages
    return Surrogate(-torch.minimum(free, bounded), ratios, bounded < free)


def _mean_per_answer(values: Tensor, batch: TokenBatch) -> Tensor:
    """Average (N,) values over each answer, in the same order each time. (A,).

    ``index_add_`` would add in any order on a GPU, and the same run must give the same bytes.
    """
    lengths = _lengths(batch)
    order = torch.argsort(batch.answer_index, stable=True)  # (N,)
    answers = values[order].split_with_sizes(lengths.tolist())
    rows = pad_sequence(list(answers), batch_first=True)  # (A, longest)
    return rows.sum(dim=1) / lengths


def _lengths(batch: TokenBatch) -> Tensor:
    """Count the tokens of each answer, at least one. (A,) int64."""
    return torch.bincount(batch.answer_index)


def _check(batch: TokenBatch) -> None:
    """Refuse tensors that would broadcast into a wrong loss instead of failing."""
    shape = batch.logprobs.shape
    if batch.logprobs.ndim != 1 or not len(batch.logprobs):
        raise ValueError(f"logprobs must be (tokens >= 1,), got {tuple(shape)}")
    for name in ("old_logprobs", "reference_logprobs", "answer_index", "importance"):
        tensor = getattr(batch, name)
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must be {tuple(shape)} like logprobs, got {tuple(tensor.shape)}")
    if batch.advantages.ndim != 1:
        raise ValueError(f"advantages must be (answers,), got {tuple(batch.advantages.shape)}")


# Of a log-ratio, for what is reported: beyond it the exponential is no number that a file can hold.
_LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True)
class ImportanceStats:
    """How far trainer and sampler were apart; ``+`` joins micro-batches and ``ImportanceStats()`` is its zero.

    Ratios are those before the cap. Tokens whose log-probabilities are not finite are left out: the step that holds
    them is skipped.
    """

    tokens: int = 0
    gap_sum: float = 0.0
    ratio_sum: float = 0.0
    ratio_max: float = 0.0
    capped_tokens: int = 0

    def __add__(self, other: "ImportanceStats") -> "ImportanceStats":
        return ImportanceStats(
            tokens=self.tokens + other.tokens,
            gap_sum=self.gap_sum + other.gap_sum,
            ratio_sum=self.ratio_sum + other.ratio_sum,
            ratio_max=max(self.ratio_max, other.ratio_max),
            capped_tokens=self.capped_tokens + other.capped_tokens,
        )


def truncated_importance(trainer: Tensor, sampler: Tensor, cap: float) -> tuple[Tensor, ImportanceStats]:
    """Weigh each token by truncated importance sampling, for a sampler that is not quite the policy it trains.

    An engine of its own (other kernels, another precision) gives the same weights slightly other probabilities, so the
    answers are drawn from ``mu``, not from the policy ``pi`` at the round's start. Each token's surrogate is multiplied
    by ``min(exp(log pi - log mu), cap)``, a constant. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You
    Off-Policy RL Training" (https://fengyao.notion.site/off-policy-rl), who cap at 2; ``token_truncate`` of TRL 1.16,
    whose cap is 3 and whose default masks whole answers instead. Like with like: where top-k or top-p truncate, both
    logs are under the truncated distribution, the taken token kept on both sides.

    Args:
        trainer: (N,) log-probabilities of the sampled tokens under the policy at the round's start.
        sampler: (N,) those that the sampler reported, under the same distribution.
        cap: The largest weight, at least 1.

    Returns:
        (N,) weights without gradient, in (0, cap]; NaN where a log-probability is not finite.
    """
    log_ratios = trainer.detach() - sampler.detach()
    known = log_ratios[log_ratios.isfinite()].double()
    ratios = known.clamp(max=_LARGEST_LOG_RATIO).exp()
    stats = ImportanceStats(
        tokens=len(known),
        gap_sum=float(known.abs().sum()),
        ratio_sum=float(ratios.sum()),
        ratio_max=float(ratios.max()) if len(known) else 0.0,
        capped_tokens=int((ratios > cap).sum()),
    )
    # Not a number, rather than the cap or 0: a damaged number must stop the step, not weigh in it.
    weights = torch.exp(log_ratios).clamp(max=cap).masked_fill(~log_ratios.isfinite(), torch.nan)
    return weights, stats
