"""What a base model is made of, as far as its config.json tells: how many numbers where, and what an adapter adds.

Covers decoders of the usual kind: attention with grouped heads, a network with or without a gate, experts. Left out:
latent attention (DeepSeek) and layers with a state, whose numbers come out too high.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ratchet.config import Quantization
from ratchet.models.footprint import Shape
from ratchet.models.model_files import experts_in, text_settings

# Models that our own decoder computes (``engine/decoder/weights.py``).
OWN_DECODER_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
# Models whose networks have no gate: two products in place of three.
_WITHOUT_GATE = frozenset({"gpt_neox", "gpt2", "gptj", "gpt_bigcode", "phi", "opt", "bloom", "falcon", "starcoder2"})
# Bytes a number of a weight in 4 bits: NF4, a scale of 8 bits for 64 numbers, and one of 32 bits for 256 of these
# (Dettmers et al. 2023, arXiv:2305.14314, section 3).
_FOUR_BITS = 0.5 + 1 / 64 + 4 / (64 * 256)


@dataclass(frozen=True)
class Anatomy:
    """How many numbers a model has where."""

    shape: Shape  # what decides how much a token takes
    linear: int  # in the trunk's linear layers, which get an adapter
    stacked: int  # of these, in queries, keys and values, gate and up, which our own decoder keeps stacked
    experts: int  # in the experts of a mixture and its routers, which get one too
    embedding: int  # in the token embeddings
    head: int  # in the output layer; 0 where it shares the embeddings
    rest: int  # in norms and biases
    rows: int  # output rows of the linear layers; a weight in 8 bits has a scale for each
    adapter_per_rank: int  # what an adapter has for each of its ranks
    experts_count: int  # experts that a layer chooses from
    decoder_fits: bool  # our own decoder can compute it on a CPU

    @property
    def parameters(self) -> int:
        """All numbers of the model."""
        return self.linear + self.experts + self.embedding + self.head + self.rest

    def weight_bytes(self, quantization: Quantization) -> int:
        """What the model takes in memory, where the numbers that are not quantized have the shape's width."""
        others = self.parameters - self.linear
        if quantization == "none":
            return self.parameters * self.shape.width
        quantized = self.linear + 4 * self.rows if quantization == "8bit" else int(self.linear * _FOUR_BITS)
        return quantized + others * self.shape.width


def anatomy_of(settings: Mapping[str, Any], width: int, parameters: int | None = None) -> Anatomy | None:
    """Read a model's anatomy from its config.json; None where that does not tell.

    ``width``: bytes of a number on the device. ``parameters``: numbers in the model's files, where they are at hand.
    """
    text = text_settings(settings)
    try:
        found = _read(text, settings, width)
    except (KeyError, TypeError, ZeroDivisionError):
        return None
    if parameters is None:
        return found
    return replace(found, rest=max(0, parameters - (found.parameters - found.rest)))


def _read(text: Mapping[str, Any], settings: Mapping[str, Any], width: int) -> Anatomy:
    hidden, layers, heads = text["hidden_size"], text["num_hidden_layers"], text["num_attention_heads"]
    key_heads = text.get("num_key_value_heads") or heads
    head_width = text.get("head_dim") or hidden // heads
    inner = text.get("intermediate_size") or 4 * hidden
    inner = max(inner) if isinstance(inner, list) else inner
    kind, experts = text.get("model_type", ""), experts_in(settings)
    attended, cached = heads * head_width, 2 * key_heads * head_width
    # (inputs, outputs) of each linear layer.
    attention = [(hidden, attended), (hidden, cached // 2), (hidden, cached // 2), (attended, hidden)]
    if kind in _WITHOUT_GATE:
        network = [(hidden, inner), (inner, hidden)]
    else:
        network = [(hidden, inner), (hidden, inner), (inner, hidden)]
    expert_inner = text.get("moe_intermediate_size") or inner
    shared = text.get("shared_expert_intermediate_size") or (text.get("n_shared_experts") or 0) * expert_inner
    if experts > 1:
        network = [(hidden, shared), (hidden, shared), (shared, hidden)] if shared else []
    linear = [*attention, *network]
    total = sum(inputs * outputs for inputs, outputs in linear)
    shape = Shape(layers, hidden, inner, text["vocab_size"], cached, attended, width)
    tied = text.get("tie_word_embeddings", settings.get("tie_word_embeddings", True))
    embedding = text["vocab_size"] * hidden
    adapter, mixture = sum(inputs + outputs for inputs, outputs in linear), 0
    if experts > 1:
        mixture = experts * 3 * hidden * expert_inner + hidden * experts
        # PEFT gives gate and up, which are stored as one, twice the rank, and each expert factors of its own.
        adapter += experts * (2 * (hidden + 2 * expert_inner) + expert_inner + hidden) + hidden + experts
    return Anatomy(
        shape=shape,
        linear=layers * total,
        stacked=layers * (hidden * (attended + cached) + (2 * hidden * inner if experts <= 1 else 0)),
        experts=layers * mixture,
        embedding=embedding,
        head=0 if tied else embedding,
        rest=(2 * layers + 1) * hidden,
        rows=layers * sum(outputs for _, outputs in linear),
        adapter_per_rank=layers * adapter,
        experts_count=experts,
        decoder_fits=_decoder_fits(text, kind, head_width),
    )


def _decoder_fits(text: Mapping[str, Any], kind: str, head_width: int) -> bool:
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    layer_types = set(text.get("layer_types") or ["full_attention"])
    return (
        kind in OWN_DECODER_TYPES
        and text.get("hidden_act", "silu") == "silu"
        and layer_types == {"full_attention"}
        and not (kind == "mistral" and text.get("sliding_window"))
        and rope.get("rope_type", "default") in ("default", "linear", "llama3", "yarn")
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )
