"""The adapter that a run starts from, loaded: its weights as they are in its file, and its settings for PEFT.

Whether a run may start from it was checked before (``readiness/start_adapter.py``); here it must still be the same, and
fit the model as it was loaded.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ratchet.config import StartSettings
from ratchet.errors import Conflict, ModelUnavailable
from ratchet.files import damage_as_error
from ratchet.models.adapter_files import ADAPTER_WEIGHTS, SHAPING, read_adapter, refuse_unsupported
from ratchet.run.ancestry import refuse_changed

_NAMED = 3


@dataclass(frozen=True)
class StartAdapter:
    """An adapter to start from. ``state`` holds its tensors under PEFT's names, on the CPU."""

    path: Path
    settings: LoraConfig
    state: Mapping[str, Tensor]

    def refuse_misfit(self, own: Mapping[str, Tensor]) -> None:
        """Refuse an adapter that is not made of the tensors that PEFT has for it on this model.

        Raises:
            ModelUnavailable: it is of another model.
        """
        here = {name: tensor.shape for name, tensor in own.items()}
        there = {name: tensor.shape for name, tensor in self.state.items()}
        if here == there:
            return
        apart = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        named = ", ".join(apart[:_NAMED]) + (" and others" if len(apart) > _NAMED else "")
        raise ModelUnavailable(
            f"The adapter {self.path} does not fit the base model: {len(apart)} of its weights are missing there, or "
            f"of another shape: {named}. Choose the model that it was made for."
        )


def read_start(start: StartSettings) -> StartAdapter | None:
    """Read the adapter of a run's settings, None where that is a new one.

    Raises:
        NotFound: its folder is gone.
        Conflict: it is not, or no longer, the one that the settings name by its checksum.
        ModelUnavailable: it is of a kind that cannot be continued, or holds a number that is not finite.
    """
    if start.adapter is None:
        return None
    path = Path(start.adapter)
    adapter = read_adapter(path)
    refuse_unsupported(adapter)
    with damage_as_error(path / ADAPTER_WEIGHTS):
        content = (path / ADAPTER_WEIGHTS).read_bytes()
    refuse_changed(path, hashlib.sha256(content).hexdigest(), start.sha256)
    try:
        state = {name: tensor.float() for name, tensor in load(content).items()}
    except SafetensorError as error:
        raise Conflict(f"The weights of the adapter {path} cannot be read: {error}.") from error
    if not all(bool(torch.isfinite(tensor).all()) for tensor in state.values()):
        raise ModelUnavailable(f"The adapter {path} holds a number that is not finite. Start from another one.")
    shaping: dict[str, Any] = {name: adapter.settings[name] for name in SHAPING if name in adapter.settings}
    settings = LoraConfig(r=adapter.rank, lora_alpha=adapter.alpha, lora_dropout=0.0, task_type="CAUSAL_LM", **shaping)
    return StartAdapter(path, settings, state)
