"""Memory on the device at hand: budgets of a run, what it took at most, gradient checkpointing, and faults of memory.

Budgets are estimates made once, before the first round, and stored with the run: they decide what is in a batch, so
a resumed run must use the same ones. The arithmetic is in ``ratchet/models/footprint.py``; here is what torch knows:
the shape of a loaded model, how much is free, and what a failed allocation looks like.
"""

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from ratchet.config import RlSettings
from ratchet.errors import InvalidSetting, OutOfMemory, Stage
from ratchet.models.footprint import (
    Budgets,
    Load,
    Shape,
    fitted,
    host_memory,
)
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


def budget_memory(device: torch.device) -> int:
    """What budgets are a share of: all of the machine's memory for a CPU, else what is free on the device."""
    return host_memory() if device.type == "cpu" else free_bytes(device)


def fitted_budgets(load: Load, device: torch.device, rl: RlSettings) -> Budgets:
    """Estimate the budgets that the settings leave open, after the model was loaded."""
    return fitted(load, rl, budget_memory(device), on_cpu=device.type == "cpu")


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
def out_of_memory_as(stage: Stage, message: str = "") -> Iterator[None]:
    """Turn a failed allocation inside the block into OutOfMemory with a message, else with the stage's remedies."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        what = {"sampling": "Sampling", "update": "The update", "validation": "Validation", "loading": "The model"}
        usual = f"{what[stage]} does not fit in this device's memory. {less_memory(stage)}"
        raise OutOfMemory(message or usual, stage) from error


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
    """Keep only each layer's input, and compute the layer again in the backward pass; loss and gradients stay the same.

    Gradient checkpointing: Chen et al. 2016, arXiv:1604.06174, section 4.1. Not by transformers' own switch, which acts
    in training mode alone, where dropout acts too. torch's form without re-entry needs no input that wants gradients,
    of which a model with an adapter has none.
    """
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.forward = partial(_recomputed, module.forward)


def _recomputed(forward: Callable[..., Any], *inputs: Any, **keywords: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **keywords)
    # No random numbers are drawn in a layer that is not in training mode.
    return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **keywords)


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Peak:
    """The most that was held, in bytes; None where it is not known."""

    host: int | None
    device: int | None
    device_reserved: int | None


class MemoryMeter:
    """How much a process held at most since ``begin``: of the host above ``base``, what it held first, and of CUDA.

    Linux keeps the largest resident set of a process (VmHWM) and lets it be set back (clear_refs, since 4.0); where it
    does not, as in some containers, a peak is the largest so far. ``ru_maxrss`` is of no use: a process starts with its
    parent's. Elsewhere than on Linux the host's numbers are not known.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self.base = _status("VmRSS")

    def begin(self) -> None:
        """Forget the peaks so far."""
        with suppress(OSError):  # peaks only rise then
            _CLEAR.write_text("5")
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)

    def peak(self) -> Peak:
        """Return the most that was held since ``begin``."""
        top = _status("VmHWM")
        host = None if top is None or self.base is None else max(0, top - self.base)
        if self._cuda is None:
            return Peak(host, None, None)
        allocated = torch.cuda.max_memory_allocated(self._cuda)
        return Peak(host, int(allocated), int(torch.cuda.max_memory_reserved(self._cuda)))


def _status(name: str) -> int | None:
    """Return a size from the process's status in bytes."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def device_limit(device: torch.device) -> int | None:
    """How much memory a CUDA device has."""
    return int(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else None
