"""Advantages: how much better each completion did than the others of its group.

Tensor arithmetic only. Nothing here samples, grades, logs or touches a model.

Dimensions: P prompts in the round, G completions per prompt.
"""

from typing import Literal

import torch
from torch import Tensor

AdvantageScale = Literal["group_std", "none"]

# Rewards lie in [0, 1]; two that differ by no more than this differ by rounding, not by merit.
REWARD_RESOLUTION = 1e-6
# Added to the deviation, as in TRL 1.16, so that advantages compare with its runs. It also bounds them: without it
# rewards that differ by 1e-5 alone would count as much as right against wrong.
DEVIATION_OFFSET = 1e-4


def informative_groups(rewards: Tensor) -> Tensor:
    """Tell which groups can teach anything: those whose rewards are not all alike.

    ``std > 0`` would not do: in float32 the mean of fifteen rewards of 0.98 is not 0.98, and that residue over its
    equally tiny deviation is an advantage out of nothing.

    Args:
        rewards: (P, G) float, G >= 2, finite.

    Returns:
        (P,) bool.

    Raises:
        ValueError: ``rewards`` is not (P, G >= 2) or holds a NaN or an infinity.
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards must be (prompts, group size >= 2), got {tuple(rewards.shape)}")
    if not torch.isfinite(rewards).all():
        raise ValueError("rewards hold a NaN or an infinity: a verifier returned an unusable score")
    return rewards.amax(dim=1) - rewards.amin(dim=1) > REWARD_RESOLUTION


def group_advantages(rewards: Tensor, *, scale: AdvantageScale) -> Tensor:
    """Centre each group's rewards on the group mean and, for ``group_std``, divide by the group's deviation.

    ``group_std``: (reward - mean) / (std + 1e-4), the outcome-supervision advantage of GRPO (Shao et al. 2024,
    arXiv:2402.03300, section 4.1.2). The paper leaves the estimator open and has no offset; we take the sample
    standard deviation (n - 1) and TRL's offset. ``none``: reward - mean, the advantage of Dr. GRPO (Liu et al. 2025,
    arXiv:2503.20783, section 3.2), which drops the division because it favours prompts that are almost always or
    almost never solved.

    Args:
        rewards: (P, G) float32 or float64, G >= 2, finite.
        scale: What to divide by.

    Returns:
        (P, G) in the dtype of ``rewards``. Rows sum to zero up to rounding; uninformative rows are exactly zero.

    Raises:
        ValueError: ``rewards`` is not (P, G >= 2) or holds a NaN or an infinity.
    """
    is_informative = informative_groups(rewards)  # (P,)
    advantages = rewards - rewards.mean(dim=1, keepdim=True)  # (P, G)
    if scale == "group_std":
        advantages = advantages / (rewards.std(dim=1, keepdim=True) + DEVIATION_OFFSET)
    return torch.where(is_informative[:, None], advantages, 0.0)
