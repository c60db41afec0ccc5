"""Gradient checkpointing: a layer keeps its input alone and is computed once more in the backward pass.

Chen et al. 2016, arXiv:1604.06174, section 4.1. Whether a run needs it is decided in ``memory.py``.

Not by transformers' own switch, which acts in training mode alone, where dropout acts too, and then computes another
loss. torch's form without re-entry needs no input that wants gradients, of which a model with an adapter has none.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from ratchet.config import RlSettings
from ratchet.errors import InvalidSetting


def possible_setting(rl: RlSettings, model: torch.nn.Module) -> RlSettings:
    """Return the settings with gradient checkpointing off where the model's layers are not known to allow it.

    Raises:
        InvalidSetting: it was asked for.
    """
    if any(isinstance(module, GradientCheckpointingLayer) for module in model.modules()):
        return rl
    if rl.gradient_checkpointing == "on":
        raise InvalidSetting(
            "Gradient checkpointing is on, but the layers of this base model are not made for it. Choose off, and a "
            "smaller Micro batch.",
            "rl.gradient_checkpointing",
        )
    return rl.model_copy(update={"gradient_checkpointing": "off"})


def recompute_layers(model: torch.nn.Module) -> None:
    """Have every layer of the trunk computed again in the backward pass; the loss and its gradients stay the same."""
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.forward = partial(_recomputed, module.forward)


def _recomputed(forward: Callable[..., Any], *inputs: Any, **keywords: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **keywords)
    # No random numbers are drawn in a layer that is not in training mode.
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **keywords)
