"""Memory on the device at hand: budgets of a run, and telling "out of memory" from other faults.

Budgets are estimates made once, before the first round, and stored with the run: they decide what is in a batch, so
a resumed run must use the same ones. The arithmetic is in ``ratchet/models/footprint.py``; here is what torch knows:
the shape of a loaded model, how much is free, and what a failed allocation looks like.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ratchet.config import RlSettings
from ratchet.errors import OutOfMemory, Stage
from ratchet.models.footprint import (
    Budgets,
    Load,
    Shape,
    cpu_sampling_tokens,
    cpu_update_room,
    fitted,
    gpu_sampling_tokens,
    gpu_update_room,
)
from ratchet.models.host_memory import host_memory
from ratchet.run.diagnosis import less_memory

# PyTorch has an error type of its own for CUDA's allocator alone. These texts are the only mark of the allocators for
# main memory and Apple GPUs, and of CUDA's libraries, which allocate for themselves.
_OUT_OF_MEMORY_MARKS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


# Less is not worth walking through all of the allocator's memory.
_WORTH_GIVING_BACK = 8 << 20


def shape_of(config: Any, dtype: torch.dtype, *, own_decoder: bool = False) -> Shape:
    """Read a model's shape from a transformers configuration."""
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    return Shape(
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        inner=max(inner) if isinstance(inner, list | tuple) else inner,
        vocabulary=text.vocab_size,
        cached=2 * heads * head_width,
        attended=text.num_attention_heads * head_width,
        width=torch.empty((), dtype=dtype).element_size(),
        own_decoder=own_decoder,
    )


def free_bytes(device: torch.device) -> int:
    """Return the memory that can be had now on the device, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def update_room(load: Load, device: torch.device) -> int:
    """How many bytes the activations of the update may take; below 0 where not even the adapter fits."""
    if device.type == "cpu":
        return cpu_update_room(load, host_memory())
    return gpu_update_room(load, free_bytes(device))


def fitted_budgets(load: Load, device: torch.device, rl: RlSettings) -> Budgets:
    """Estimate the budgets that the settings leave open, after the model was loaded."""
    on_cpu = device.type == "cpu"
    tokens = cpu_sampling_tokens(load, host_memory()) if on_cpu else gpu_sampling_tokens(load, free_bytes(device))
    return fitted(load, rl, room=update_room(load, device), sampling_tokens=tokens, on_cpu=on_cpu)


def give_back(freed_bytes: int) -> None:
    """Have glibc return free memory to the system, after so much was freed at once; it keeps most of it otherwise.

    Holes between tensors of many sizes add up from round to round. Takes a tenth of a second for a gigabyte, so small
    amounts are left to it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if freed_bytes >= _WORTH_GIVING_BACK else None
    if trim is not None:
        trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that an allocation failed, on a GPU or in main memory."""
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
        message = f"{what[stage]} does not fit in this device's memory. {less_memory(stage)}"
        raise OutOfMemory(message, stage) from error
