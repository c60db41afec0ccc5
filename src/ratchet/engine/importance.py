"""Truncated importance sampling: correcting the update for a sampler that is not quite the policy it trains.

An engine of its own (other kernels, another precision) gives the same weights slightly other probabilities, so the
answers are drawn from ``mu``, not from the policy ``pi`` at the round's start. Each token's surrogate is multiplied by

    min(exp(log pi - log mu), cap)

a constant, one a token. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"
(https://fengyao.notion.site/off-policy-rl), who cap at 2; ``token_truncate`` of TRL 1.16, whose cap is 3 and whose
default masks whole answers instead. Like with like: where top-k or top-p truncate, both logs are under the truncated
distribution, the taken token kept on both sides.

Tensor arithmetic only.

Dimensions: N tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

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
    """Return the weight of each token and how large the correction was.

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
