"""Reading a transformers model with its LoRA adapter as plain tensors: for architectures of the Llama family.

Layers that read the same input are stacked into one matrix, and the model's own weights become views of it, so
nothing is held twice. ``decoder_weights`` returns None for everything it does not know to the last detail; whether
what it read is right is checked by numbers at the start of each run (``engine/logprobs.py``).

Products of activations with a frozen weight are here too, by the fastest routine there is on this processor, without
gradients. For float32 on the CPU oneDNN's, which torch keeps for its compiler, was measured 5 to 50 percent faster than
the one behind ``torch.nn.functional.linear`` (dev/LOG.md); for weights laid out for it up to twice as fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor
from torch.nn import Linear, Parameter

from ratchet.engine.decoder.attention import Heads
from ratchet.models.anatomy import OWN_DECODER_TYPES

# Decoders with rotary positions, root mean square norms and a gated SiLU network, and what sets them apart: nothing,
# biases, norms of queries and keys. Each reads it from the modules themselves.
_FAMILY = {f"{kind.capitalize()}ForCausalLM" for kind in OWN_DECODER_TYPES}
# Kinds of rotary positions whose angles depend on the position alone.
_STEADY_ROPE = {"default", "linear", "llama3", "yarn"}


@dataclass(frozen=True)
class Factors:
    """A LoRA adapter's two factors on one linear layer, (r, k) and (n, r), and what their product is scaled by."""

    down: Parameter
    up: Parameter
    scale: float


@dataclass
class Stacked:
    """Linear layers that read the same input, as one: weight (n, k), bias (n,), and each one's adapter in order."""

    weight: Tensor
    bias: Tensor | None
    adapters: tuple[Factors, ...]
    _versions: tuple[tuple[int, int], ...] = ()
    _joint: tuple[Tensor, Tensor] | None = field(default=None, repr=False)

    @property
    def parameters(self) -> list[Parameter]:
        """The adapters' factors: down and up of each."""
        return [factor for adapter in self.adapters for factor in (adapter.down, adapter.up)]

    def joint_factors(self) -> tuple[Tensor, Tensor]:
        """Return all adapters as one pair of factors: (R, k), and (n, R) scaled, zero outside its blocks."""
        # A reference policy puts other tensors into the same parameters, which leaves their versions as they are.
        versions = tuple((parameter._version, parameter.data_ptr()) for parameter in self.parameters)
        if self._joint is None or versions != self._versions:
            down = torch.cat([adapter.down.detach() for adapter in self.adapters])
            ups = [adapter.up.detach() * adapter.scale for adapter in self.adapters]
            up = torch.block_diag(*ups)  # type: ignore[no-untyped-call] # torch's own functions carry no types
            self._joint, self._versions = (down, up.contiguous()), versions
        return self._joint

    def merged(self) -> Tensor:
        """Return the weight with the adapters added to it, a new (n, k)."""
        down, up = self.joint_factors()
        return torch.addmm(self.weight, up, down)


@dataclass(frozen=True)
class Layer:
    """One decoder layer. Norms are (width,) weights; those of queries and keys are there in Qwen 3 alone."""

    attention_norm: Tensor
    joint: Stacked  # queries, keys, values
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Stacked
    network_norm: Tensor
    gate_up: Stacked
    down: Stacked

    @property
    def stacks(self) -> tuple[Stacked, Stacked, Stacked, Stacked]:
        """All linear layers, in the order in which they run."""
        return self.joint, self.output, self.gate_up, self.down

    @property
    def parameters(self) -> list[Parameter]:
        """The adapter's factors in this layer, in a fixed order."""
        return [parameter for stack in self.stacks for parameter in stack.parameters]


@dataclass(frozen=True)
class DecoderWeights:
    """A whole decoder: V tokens, hidden width H."""

    embedding: Tensor  # (V, H)
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor  # (V, H)
    heads: Heads
    epsilon: float
    scale: float
    rotary: Any  # transformers' module: angles of positions

    def angles(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of positions (T,), as (T, 1, d / 2) each."""
        cosine, sine = self.rotary(self.embedding[:1], position_ids[None])
        half = cosine.shape[-1] // 2
        return cosine[0, :, None, :half].contiguous(), sine[0, :, None, :half].contiguous()


def decoder_weights(model: Any) -> DecoderWeights | None:
    """Read a PEFT model, or return None where it is not of the family, not in one float dtype, or not on the CPU."""
    base = model.get_base_model()
    config = base.config
    rope = getattr(config, "rope_parameters", None) or {}
    if (
        type(base).__name__ not in _FAMILY
        or getattr(config, "hidden_act", None) != "silu"
        or set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}
        or (type(base).__name__ == "MistralForCausalLM" and config.sliding_window)
        or rope.get("rope_type", "default") not in _STEADY_ROPE
        or rope.get("partial_rotary_factor", 1.0) != 1.0
    ):
        return None
    tensors = list(base.parameters())
    if {tensor.dtype for tensor in tensors} not in ({torch.float32}, {torch.float64}):
        return None
    if any(tensor.device.type != "cpu" for tensor in tensors) or base.lm_head.bias is not None:
        return None
    layers = [_layer(layer) for layer in base.model.layers]
    if any(layer is None for layer in layers):
        return None
    attention = base.model.layers[0].self_attn
    return DecoderWeights(
        embedding=base.model.embed_tokens.weight.detach(),
        layers=tuple(layer for layer in layers if layer is not None),
        norm=base.model.norm.weight.detach(),
        head=base.lm_head.weight.detach(),
        heads=Heads(config.num_attention_heads, config.num_key_value_heads),
        epsilon=base.model.norm.variance_epsilon,
        scale=attention.scaling,
        rotary=base.model.rotary_emb,
    )


def _layer(layer: Any) -> Layer | None:
    attention, network = layer.self_attn, layer.mlp
    stacks = [
        _stacked([attention.q_proj, attention.k_proj, attention.v_proj]),
        _stacked([attention.o_proj]),
        _stacked([network.gate_proj, network.up_proj]),
        _stacked([network.down_proj]),
    ]
    if any(stack is None for stack in stacks):
        return None
    joint, output, gate_up, down = (stack for stack in stacks if stack is not None)
    if any(stack.bias is not None for stack in (output, gate_up, down)):
        return None
    query_norm, key_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return Layer(
        attention_norm=layer.input_layernorm.weight.detach(),
        joint=joint,
        query_norm=None if query_norm is None else query_norm.weight.detach(),
        key_norm=None if key_norm is None else key_norm.weight.detach(),
        output=output,
        network_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=gate_up,
        down=down,
    )


def _stacked(layers: Sequence[Any]) -> Stacked | None:
    """Stack linear layers that carry a plain LoRA adapter each; their weights become views of the stack."""
    if any(type(layer) is not LoraLinear or type(layer.get_base_layer()) is not Linear for layer in layers):
        return None
    name = layers[0].active_adapters[0]
    if any(layer.active_adapters != [name] or layer.use_dora.get(name) for layer in layers):
        return None
    if any(not isinstance(layer.lora_dropout[name], torch.nn.Identity) for layer in layers):
        return None
    if any(layer.lora_B[name].bias is not None for layer in layers):
        return None
    bases = [layer.get_base_layer() for layer in layers]
    biases = [base.bias for base in bases]
    if len({bias is None for bias in biases}) > 1:
        return None
    weight, bias = bases[0].weight.data, None if biases[0] is None else biases[0].data
    if len(bases) > 1:
        weight = torch.cat([base.weight.data for base in bases])
        bias = None if bias is None else torch.cat([one.data for one in biases])
        start = 0
        for base in bases:
            end = start + base.weight.shape[0]
            base.weight.data = weight[start:end]
            if bias is not None:
                base.bias.data = bias[start:end]
            start = end
    factors = [Factors(layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name]) for layer in layers]
    return Stacked(weight, bias, tuple(factors))


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
