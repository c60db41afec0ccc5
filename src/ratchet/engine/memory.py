"""Memory: what budgets fit this device, and telling "out of memory" from other faults.

Budgets are estimates made once, before the first round, and stored with the run: they decide what is in a batch, so
a resumed run must use the same ones.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ratchet.errors import OutOfMemory, Stage

# Without a GPU larger rows only cost: attention grows with the square of a row, also between its unrelated groups.
# Measured on two cores (dev/LOG.md): the tiny model's update is fastest at 256 to 512 tokens, SmolLM2-135M's takes the
# same time at 512 and 1,024.
_CPU_MICRO_BATCH_TOKENS = 512
_CPU_SAMPLING_BYTES = 4 << 30

_ADVICE: dict[Stage, str] = {
    "sampling": "Choose fewer Answers per prompt, a shorter Longest answer, a smaller Sampling budget, or a device "
    "with more memory.",
    "update": "Choose a smaller Micro batch, a shorter Longest answer, or a device with more memory.",
    "validation": "Choose a shorter Longest answer, a smaller Sampling budget, or a device with more memory.",
    "loading": "Choose a smaller model or a device with more memory.",
}

# PyTorch has an error type of its own for CUDA's allocator alone. These texts are the only mark of the allocators for
# main memory and Apple GPUs, and of CUDA's libraries, which allocate for themselves.
_OUT_OF_MEMORY_MARKS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


@dataclass(frozen=True)
class Budgets:
    """What a run may hold at a time, in tokens: per pass of the update, and in the sampler's cache."""

    micro_batch_tokens: int
    sampling_tokens: int


def free_bytes(device: torch.device) -> int:
    """Return the memory that can be had now on the device, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fitted_budgets(config: Any, device: torch.device, dtype: torch.dtype, merged_bytes: int) -> Budgets:
    """Estimate budgets for a model of this transformers configuration, after it was loaded.

    A token of the cache holds keys and values of every layer. A token of the update holds, in the worst case, about
    40 hidden-sized activations a layer and three float32 rows of logits. While sampling, the weights that the adapter
    adds to are there twice, merged and as they were: ``merged_bytes``.
    """
    text = config.get_text_config(decoder=True)
    layers, hidden, vocabulary = text.num_hidden_layers, text.hidden_size, text.vocab_size
    width = torch.empty((), dtype=dtype).element_size()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_width = getattr(text, "head_dim", None) or hidden // text.num_attention_heads
    cache_bytes = 2 * layers * heads * head_width * width
    update_bytes = 40 * layers * hidden * width + 12 * vocabulary
    if device.type == "cpu":
        # Fixed amounts, so that what else runs on the machine changes nothing; a quarter of a small machine's memory.
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        sampling_bytes = min(_CPU_SAMPLING_BYTES, total // 4)
        return Budgets(_CPU_MICRO_BATCH_TOKENS, _between(sampling_bytes // cache_bytes, 4096, 1 << 20))
    free = free_bytes(device)
    return Budgets(
        micro_batch_tokens=_between(int(free * 0.5) // update_bytes, 512, 16_384),
        sampling_tokens=_between(int((free - merged_bytes) * 0.5) // cache_bytes, 4096, 1 << 22),
    )


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
