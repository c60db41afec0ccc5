"""Products of activations with a frozen weight, by the fastest routine there is on this processor.

For float32 on the CPU oneDNN's, which torch keeps for its compiler, was measured 5 to 50 percent faster than the one
behind ``torch.nn.functional.linear`` (dev/LOG.md); for weights laid out for it beforehand up to twice as fast. Where
this torch has none, torch's own. Nothing here has a gradient.
"""

from typing import Any

import torch
from torch import Tensor

_HAS_ONEDNN = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call] # torch carries no types
_onednn: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if _HAS_ONEDNN else None
_lay_out: Any = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None) if _onednn is not None else None

# Numbers of a weight below which torch's own product is taken, unless it was laid out.
_SMALL = 1 << 18


def product(inputs: Tensor, weight: Tensor) -> Tensor:
    """Return inputs (n, k) times the transpose of weight (m, k), as (n, m)."""
    # oneDNN prepares a routine for each new shape, half a millisecond or more, which small weights do not earn back.
    is_small = weight.layout == torch.strided and weight.numel() < _SMALL
    if is_small or not _fuses(inputs):
        return torch.nn.functional.linear(inputs, weight)
    result: Tensor = _onednn(inputs, weight, None, "none", [], "")
    return result


def silu_product(inputs: Tensor, weight: Tensor) -> Tensor:
    """Return silu of the product."""
    if not _fuses(inputs):
        return torch.nn.functional.silu(torch.nn.functional.linear(inputs, weight))
    result: Tensor = _onednn(inputs, weight, None, "swish", [], "")
    return result


def product_times(inputs: Tensor, weight: Tensor, other: Tensor) -> Tensor:
    """Return the product, each number times that of ``other`` (n, m)."""
    if not _fuses(inputs):
        return torch.nn.functional.linear(inputs, weight).mul_(other)
    result: Tensor = _onednn.binary(inputs, other, weight, None, "mul")
    return result


def product_plus(inputs: Tensor, weight: Tensor, other: Tensor) -> Tensor:
    """Return the product plus ``other`` (n, m)."""
    if not _fuses(inputs):
        return torch.nn.functional.linear(inputs, weight).add_(other)
    result: Tensor = _onednn.binary(inputs, other, weight, None, "add")
    return result


def _fuses(inputs: Tensor) -> bool:
    return _onednn is not None and inputs.dtype == torch.float32 and inputs.device.type == "cpu"


def laid_out(weight: Tensor, rows: int) -> Tensor:
    """Return a copy of a weight (m, k) that ``product`` is fastest with for about so many rows of inputs."""
    if _lay_out is None or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return weight
    result: Tensor = _lay_out(weight, rows)
    return result
