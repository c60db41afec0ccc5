"""One decoder layer over a packed row, forward and backward by hand.

Keeps what the backward pass cannot cheaply compute again: the layer's input, queries, keys and values, the attention's
output, the hidden state between attention and network, and gate and up, 4 H + (kv heads' width) * 2 + 2 I numbers a
token where autograd over single operations keeps about three times as many. With ``recompute`` it keeps the input
alone (gradient checkpointing: Chen et al. 2016, arXiv:1604.06174).

Base weights are frozen and get no gradient; adapters' factors do. An adapter's product is never formed: it acts
through its two thin factors, as in PEFT.

Dimensions: T tokens, H hidden width, I inner width of the network, d width of a head.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ratchet.engine.decoder.attention import Attended, Layout, attend, attend_backward
from ratchet.engine.decoder.weights import DecoderWeights, Layer, Stacked, product


@dataclass(frozen=True)
class Pass:
    """What all layers of one pass over a row share."""

    weights: DecoderWeights
    layout: Layout
    cosine: Tensor  # (T, 1, d / 2)
    sine: Tensor
    with_adapter: bool
    recompute: bool = False


@dataclass
class _Kept:
    """What a layer keeps for its backward pass."""

    hidden: Tensor  # (T, H) the input
    inverse: Tensor  # (T, 1) of its root mean square
    joint: Tensor  # (T * heads.all, d) queries, keys, values
    raw: Tensor | None  # the same before their norms
    attended: Attended
    middle: Tensor  # (T, H)
    middle_inverse: Tensor
    gate_up: Tensor  # (T, 2 * I)


def run_layers(hidden: Tensor, run: Pass) -> Tensor:
    """Run all layers over (T, H) hidden states; return (T, H), before the last norm."""
    for number, layer in enumerate(run.weights.layers):
        if torch.is_grad_enabled():
            # torch's own functions carry no types.
            hidden = _LayerFunction.apply(hidden, layer, run, number == 0, *layer.parameters)  # type: ignore[no-untyped-call]
        else:
            hidden, _ = _forward(hidden, layer, run)
    return hidden


class _LayerFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, layer: Layer, run: Pass, is_first: bool, *factors: Tensor) -> Tensor:
        output, kept = _forward(hidden, layer, run)
        # Held by the context itself and not by save_for_backward: nothing here is an input or output that a user of
        # the graph could change in between but ``hidden``, which no one does.
        ctx.kept = None if run.recompute else kept
        ctx.hidden = hidden if run.recompute else None
        ctx.layer, ctx.run, ctx.is_first = layer, run, is_first
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        kept = ctx.kept if ctx.kept is not None else _forward(ctx.hidden, ctx.layer, ctx.run)[1]
        ctx.kept = ctx.hidden = None  # freed layer by layer, not when the whole graph is
        grad_hidden, factors = _backward(gradients[0], kept, ctx.layer, ctx.run, ctx.is_first)
        return grad_hidden, None, None, None, *factors


def _forward(hidden: Tensor, layer: Layer, run: Pass) -> tuple[Tensor, _Kept]:
    weights = run.weights
    inverse = inverse_rms(hidden, weights.epsilon)
    joint = _linear(normed(hidden, inverse, layer.attention_norm), layer.joint, run.with_adapter)
    joint = joint.view(-1, weights.heads.all, run.cosine.shape[-1] * 2)  # (T, heads, d)
    raw = None
    if layer.query_norm is not None:
        raw = joint
        joint = normed_heads(joint, layer, weights)
    rotate_(joint[:, : weights.heads.query + weights.heads.key], run.cosine, run.sine)
    rows = joint.view(-1, joint.shape[-1])
    attended = attend(rows, run.layout, weights.scale)
    outputs = attended.outputs.view(hidden.shape[0], -1)
    middle = _linear(outputs, layer.output, run.with_adapter).add_(hidden)
    middle_inverse = inverse_rms(middle, weights.epsilon)
    gate_up = _linear(normed(middle, middle_inverse, layer.network_norm), layer.gate_up, run.with_adapter)
    result = _linear(gated(gate_up), layer.down, run.with_adapter).add_(middle)
    return result, _Kept(hidden, inverse, rows, raw, attended, middle, middle_inverse, gate_up)


def _backward(
    gradient: Tensor, kept: _Kept, layer: Layer, run: Pass, is_first: bool
) -> tuple[Tensor | None, list[Tensor]]:
    """Return the gradient of the layer's input, None for the first layer, and of the adapters' factors in order."""
    weights = run.weights
    inner = kept.gate_up.shape[1] // 2
    gate, up = kept.gate_up[:, :inner], kept.gate_up[:, inner:]
    active = torch.nn.functional.silu(gate)
    grad_gated, down_factors = _linear_backward(gradient, active * up, layer.down)
    grad_gate_up = torch.empty_like(kept.gate_up)
    torch.mul(grad_gated, active, out=grad_gate_up[:, inner:])
    torch.ops.aten.silu_backward.grad_input(grad_gated.mul_(up), gate, grad_input=grad_gate_up[:, :inner])
    inner_inputs = normed(kept.middle, kept.middle_inverse, layer.network_norm)
    grad_normed, gate_up_factors = _linear_backward(grad_gate_up, inner_inputs, layer.gate_up)
    del grad_gate_up, active, inner_inputs
    grad_middle = _norm_backward(grad_normed, kept.middle, kept.middle_inverse, layer.network_norm).add_(gradient)

    outputs = kept.attended.outputs.view(kept.hidden.shape[0], -1)
    grad_outputs, output_factors = _linear_backward(grad_middle, outputs, layer.output)
    grad_rows = grad_outputs.view(kept.attended.outputs.shape)
    grad_rows = attend_backward(grad_rows, kept.joint, kept.attended, run.layout, weights.scale)
    grad_joint = grad_rows.view(-1, weights.heads.all, grad_rows.shape[-1])
    rotate_(grad_joint[:, : weights.heads.query + weights.heads.key], run.cosine, -run.sine)
    if kept.raw is not None:
        _heads_norm_backward_(grad_joint, kept.raw, layer, weights)
    inputs = normed(kept.hidden, kept.inverse, layer.attention_norm)
    flat = grad_joint.view(kept.hidden.shape[0], -1)
    grad_normed, joint_factors = _linear_backward(flat, inputs, layer.joint, needs_input=not is_first)
    factors = [*joint_factors, *output_factors, *gate_up_factors, *down_factors]
    if grad_normed is None:
        return None, factors
    return _norm_backward(grad_normed, kept.hidden, kept.inverse, layer.attention_norm).add_(grad_middle), factors


def inverse_rms(hidden: Tensor, epsilon: float) -> Tensor:
    """Return one over the root mean square of each (..., width) vector, (..., 1)."""
    return hidden.square().mean(dim=-1, keepdim=True).add_(epsilon).rsqrt_()


def normed(hidden: Tensor, inverse: Tensor, weight: Tensor) -> Tensor:
    """Scale to a root mean square of 1, then by the weight (RMSNorm: Zhang and Sennrich 2019, arXiv:1910.07467)."""
    return (hidden * inverse).mul_(weight)


def _norm_backward(gradient: Tensor, hidden: Tensor, inverse: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of a norm's input; overwrites ``gradient``."""
    gradient = gradient.mul_(weight)
    mean = torch.linalg.vecdot(gradient, hidden)[..., None] / hidden.shape[-1]
    return gradient.mul_(inverse).addcmul_(hidden, mean.mul_(inverse.pow(3)), value=-1)


def last_norm(hidden: Tensor, weights: DecoderWeights) -> Tensor:
    """Apply the norm after the last layer to (n, H), with autograd's own gradient."""
    inverse = torch.rsqrt(hidden.square().mean(dim=-1, keepdim=True) + weights.epsilon)
    return hidden * inverse * weights.norm


def normed_heads(joint: Tensor, layer: Layer, weights: DecoderWeights) -> Tensor:
    """Return (T, heads, d) with the norms of queries and keys applied; values as they were."""
    if layer.query_norm is None or layer.key_norm is None:
        return joint
    query, key, value = joint.split_with_sizes(list(weights.heads.parts), dim=1)
    return torch.cat(
        [
            normed(query, inverse_rms(query, weights.epsilon), layer.query_norm),
            normed(key, inverse_rms(key, weights.epsilon), layer.key_norm),
            value,
        ],
        dim=1,
    )


def _heads_norm_backward_(gradient: Tensor, raw: Tensor, layer: Layer, weights: DecoderWeights) -> None:
    start = 0
    for weight, count in ((layer.query_norm, weights.heads.query), (layer.key_norm, weights.heads.key)):
        if weight is None:
            raise ValueError("a layer with a norm of queries has one of keys too")
        part, before = gradient[:, start : start + count], raw[:, start : start + count]
        part.copy_(_norm_backward(part, before, inverse_rms(before, weights.epsilon), weight))
        start += count


def rotate_(vectors: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """Rotate (T, heads, d) vectors by their positions' angles, in place (RoPE: Su et al. 2021, arXiv:2104.09864).

    Halves form the pairs, as transformers has them. With the sine negated this is its own inverse, and its gradient.
    """
    half = vectors.shape[-1] // 2
    first, second = vectors[..., :half], vectors[..., half:]
    before = first.clone()
    first.mul_(cosine).addcmul_(second, sine, value=-1)
    second.mul_(cosine).addcmul_(before, sine)


def gated(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up of (T, 2 * I), as (T, I)."""
    inner = gate_up.shape[1] // 2
    return torch.nn.functional.silu(gate_up[:, :inner]).mul_(gate_up[:, inner:])


def _linear(inputs: Tensor, stack: Stacked, with_adapter: bool) -> Tensor:
    result = product(inputs, stack.weight)
    if stack.bias is not None:
        result.add_(stack.bias)
    if with_adapter:
        down, up = stack.joint_factors()
        result.addmm_(inputs @ down.t(), up.t())
    return result


def _linear_backward(
    gradient: Tensor, inputs: Tensor, stack: Stacked, *, needs_input: bool = True
) -> tuple[Any, list[Tensor]]:
    """Gradients of a stack's inputs (T, k), None where not needed, and of its adapters' factors in order.

    ``gradient`` is that of the outputs, (T, n).
    """
    down, up = stack.joint_factors()
    through = gradient @ up  # (T, R), scaled
    grad_down = through.t() @ inputs  # (R, k)
    grad_up = gradient.t() @ (inputs @ down.t())  # (n, R)
    factors: list[Tensor] = []
    row = rank = 0
    for adapter in stack.adapters:
        height, width = adapter.up.shape
        factors.append(grad_down[rank : rank + width])
        factors.append(grad_up[row : row + height, rank : rank + width] * adapter.scale)
        row, rank = row + height, rank + width
    if not needs_input:
        return None, factors
    return product(gradient, stack.weight.t()).addmm_(through, down), factors
