"""Memory: what each phase of a run needs, what budgets fit this device, and telling "out of memory" from other faults.

Budgets are estimates made once, before the first round, and stored with the run: they decide what is in a batch, so
a resumed run must use the same ones. The estimates are pure functions of a model's shape; how far they are off was
measured (dev/LOG.md), and half of a device's memory is left for that.

Dimensions: T tokens of a row, N answer tokens of a row, h hidden size, i inner size of a layer, V vocabulary; width is
the bytes of one number.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ratchet.config import RlSettings
from ratchet.errors import OutOfMemory, Stage

# Without a GPU larger rows under a mask only cost: attention grows with the square of a row, also between its unrelated
# groups. Measured on two cores (dev/LOG.md): 512 tokens is about the best for small and larger models.
_CPU_MICRO_BATCH_TOKENS = 512
# Our own decoder has no such mask: larger rows share more, until they no longer fit the processor's caches. So many
# bytes of what the backward pass needs, and so many tokens at most.
_DECODER_KEPT_BYTES = 1 << 29
_DECODER_MICRO_BATCH_TOKENS = 2560
# Its logits, for a few tokens at a time, and what is made of them (``head.py``).
_DECODER_LOGITS_BYTES = 3 * 4 * (6 << 20)
_CPU_SAMPLING_BYTES = 1 << 30

_ADVICE: dict[Stage, str] = {
    "sampling": "Choose fewer Answers per prompt, a shorter Longest answer, a smaller Sampling budget, or a device "
    "with more memory.",
    "update": "Choose a smaller Micro batch, Gradient checkpointing on, a shorter Longest answer, or a device with "
    "more memory.",
    "validation": "Choose a shorter Longest answer, a smaller Sampling budget, or a device with more memory.",
    "loading": "Choose a smaller model or a device with more memory.",
}

# PyTorch has an error type of its own for CUDA's allocator alone. These texts are the only mark of the allocators for
# main memory and Apple GPUs, and of CUDA's libraries, which allocate for themselves.
_OUT_OF_MEMORY_MARKS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


# What a GPU computes at a time at most: more tokens bring nothing, and the mask grows with their square.
_GPU_MICRO_BATCH_TOKENS = 16_384
# Share of a device's memory that estimates may fill. glibc's allocator alone was measured to take twice what is in use.
_SHARE = 0.5
# Less is not worth walking through all of the allocator's memory.
_WORTH_GIVING_BACK = 8 << 20


@dataclass(frozen=True)
class Budgets:
    """What a run may hold at a time, in tokens: per pass of the update, and in the sampler's cache.

    With ``gradient_checkpointing`` the update keeps what goes into a layer alone (``recompute.py``).
    """

    micro_batch_tokens: int
    sampling_tokens: int
    gradient_checkpointing: bool = False


@dataclass(frozen=True)
class Shape:
    """What of a model decides how much memory a token takes. ``width`` is that of its weights and activations."""

    layers: int
    hidden: int
    inner: int
    vocabulary: int
    cached: int  # numbers that a token's keys and values have in a layer
    attended: int  # numbers that a token's queries, and what attention returns for them, have in a layer
    width: int
    own_decoder: bool = False  # the update runs through our own decoder (``decoder/layer.py``)

    @classmethod
    def of(cls, config: Any, dtype: torch.dtype, *, own_decoder: bool = False) -> "Shape":
        """Read it from a transformers configuration."""
        text = config.get_text_config(decoder=True)
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        head_width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
        return cls(
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            inner=max(inner) if isinstance(inner, list | tuple) else inner,
            vocabulary=text.vocab_size,
            cached=2 * heads * head_width,
            attended=text.num_attention_heads * head_width,
            width=torch.empty((), dtype=dtype).element_size(),
            own_decoder=own_decoder,
        )


@dataclass(frozen=True)
class Load:
    """What a run asks of a device, beside what every pass needs.

    Attributes:
        shape: Of the base model.
        weight_bytes: The base model as it is in memory, quantized or not.
        merged_bytes: The second copy of some weights while sampling.
        adapter_weights: How many numbers the adapter has.
        longest_prompt: Tokens of the run's longest prompt.
        longest_answer: Tokens that an answer may have.
    """

    shape: Shape
    weight_bytes: int
    merged_bytes: int
    adapter_weights: int
    longest_prompt: int
    longest_answer: int

    @property
    def longest_row(self) -> int:
        """Tokens of the longest prompt with one answer, which is never split."""
        return self.longest_prompt + self.longest_answer


def cache_bytes(shape: Shape, tokens: int) -> int:
    """Return what the sampler's cache takes: keys and values of every layer."""
    return tokens * shape.layers * shape.cached * shape.width


def adapter_bytes(weights: int) -> int:
    """Return what an adapter takes while it is trained: float32 weights, gradients and AdamW's two moments."""
    return 4 * 4 * weights


def activation_bytes(shape: Shape, tokens: int, answer_tokens: int, *, recomputed: bool) -> int:
    """Return what a forward and backward pass over one row takes at its peak, beside weights and adapter.

    Of a gated layer with an adapter on each of its seven products, float32 keeps 8h + 4i numbers a token: both inputs
    of the norms, both outputs, query, key, value and their result; gate, its activation, the other branch and the
    product. In 16 bits the norms and the adapter compute in float32 and keep copies of their own, 8h + i numbers, next
    to 4h + 3i in 16 bits. Recomputed, a layer keeps its input.

    The peak comes either at the logits, of which the loss and its gradient keep four float32 copies (in 16 bits also
    logits and gradient as they are), or in a layer's backward pass, which takes about as much again as the layer keeps
    and, recomputed, that as well.

    Our own decoder keeps less: the inputs of layer and network, queries and outputs of attention, keys and values, gate
    and up, about 4h + 2i numbers and those of the cache. It has no mask over the row, and few logits at a time.
    """
    h, i, width = shape.hidden, shape.inner, shape.width
    if shape.own_decoder:
        kept = tokens * shape.layers * (h * width if recomputed else _decoder_layer_bytes(shape))
        # In a layer's backward pass: gradients of gate and up, two products and the inputs of both norms.
        working = tokens * (4 * i + 4 * h) * width + (tokens * _decoder_layer_bytes(shape) if recomputed else 0)
        return kept + max(working, answer_tokens * h * width + _DECODER_LOGITS_BYTES)
    layer = tokens * (4 * (8 * h + 4 * i) if width >= 4 else 4 * (8 * h + i) + width * (4 * h + 3 * i))
    kept = shape.layers * (tokens * h * width if recomputed else layer)
    logits = answer_tokens * shape.vocabulary * (16 if width >= 4 else 16 + 2 * width)
    mask = tokens * tokens * width
    return kept + mask + max(logits, (2 if recomputed else 1) * layer)


def _decoder_layer_bytes(shape: Shape) -> int:
    """Return what our own decoder keeps of a token in a layer."""
    return (2 * shape.hidden + 2 * shape.attended + shape.cached + 2 * shape.inner) * shape.width


def free_bytes(device: torch.device) -> int:
    """Return the memory that can be had now on the device, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _total_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def update_room(load: Load, device: torch.device) -> int:
    """Return how many bytes the activations of the update may take; below 0 where not even the adapter fits.

    On a CPU a share of the machine's memory less the weights, so that what else runs on the machine changes nothing; on
    a GPU a share of what is free once the weights are there.
    """
    if device.type == "cpu":
        room = int(_total_bytes() * _SHARE) - load.weight_bytes
    else:
        room = int(free_bytes(device) * _SHARE)
    return room - adapter_bytes(load.adapter_weights)


def fitted_budgets(load: Load, device: torch.device, rl: RlSettings) -> Budgets:
    """Estimate the budgets that the settings leave open, after the model was loaded.

    What does not fit is first cut into smaller micro-batches, down to one answer each: that costs less time than
    computing layers twice. A micro-batch that was asked for stays as it is.
    """
    room = update_room(load, device)
    usual = _cpu_micro_batch(load.shape) if device.type == "cpu" else _GPU_MICRO_BATCH_TOKENS
    least = rl.micro_batch_tokens or load.longest_row
    recomputed = rl.gradient_checkpointing == "on" or (
        rl.gradient_checkpointing == "auto" and row_bytes(load, least, recomputed=False) > room
    )
    tokens = rl.micro_batch_tokens or usual
    while rl.micro_batch_tokens is None and tokens > least and row_bytes(load, tokens, recomputed=recomputed) > room:
        tokens = max(least, tokens // 2)
    return Budgets(tokens, rl.sampling_tokens or _sampling_tokens(load, device), recomputed)


def _cpu_micro_batch(shape: Shape) -> int:
    """Return how many tokens a pass of the update should have on a CPU, if memory is no question."""
    if not shape.own_decoder:
        return _CPU_MICRO_BATCH_TOKENS
    tokens = _DECODER_KEPT_BYTES // (shape.layers * _decoder_layer_bytes(shape))
    return _between(tokens, _CPU_MICRO_BATCH_TOKENS, _DECODER_MICRO_BATCH_TOKENS)


def row_bytes(load: Load, tokens: int, *, recomputed: bool) -> int:
    """Return ``activation_bytes`` of the largest row there may be under a micro-batch of so many tokens.

    One answer is never split, whatever the micro-batch. A longer row may be made of answers nearly alone.
    """
    if tokens <= load.longest_row:
        return activation_bytes(load.shape, load.longest_row, load.longest_answer, recomputed=recomputed)
    return activation_bytes(load.shape, tokens, tokens, recomputed=recomputed)


def _sampling_tokens(load: Load, device: torch.device) -> int:
    """Return how many tokens of the cache fit beside the merged copy of the weights."""
    token_bytes = cache_bytes(load.shape, 1)
    if device.type == "cpu":
        # Fixed amounts, so that what else runs on the machine changes nothing; a quarter of a small machine's memory.
        return _between(min(_CPU_SAMPLING_BYTES, _total_bytes() // 4) // token_bytes, 4096, 1 << 20)
    return _between(int((free_bytes(device) - load.merged_bytes) * _SHARE) // token_bytes, 4096, 1 << 22)


def give_back(freed_bytes: int) -> None:
    """Have glibc return free memory to the system, after so much was freed at once; it keeps most of it otherwise.

    Holes between tensors of many sizes add up from round to round. Takes a tenth of a second for a gigabyte, so small
    amounts are left to it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if freed_bytes >= _WORTH_GIVING_BACK else None
    if trim is not None:
        trim(0)


def _between(value: int, least: int, most: int) -> int:
    return max(least, min(most, value))


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception means that an allocation failed, on a GPU or in main memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in _OUT_OF_MEMORY_MARKS)


@contextmanager
def out_of_memory_as(stage: Stage) -> Iterator[None]:
    """Turn a failed allocation inside the block into OutOfMemory with the remedies of that stage."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        what = {"sampling": "Sampling", "update": "The update", "validation": "Validation", "loading": "The model"}
        message = f"{what[stage]} does not fit in this device's memory. {_ADVICE[stage]}"
        raise OutOfMemory(message, stage) from error
