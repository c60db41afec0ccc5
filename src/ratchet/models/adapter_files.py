"""An adapter folder in PEFT layout, read without torch: checksum, settings, and the names and shapes of its tensors.

Says in words what is missing, damaged, or of a kind that training here cannot continue exactly. Knows nothing of
the run that made the adapter (``ancestry.py``); ``engine/starting_adapter.py`` loads what was read here.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.errors import Conflict, ModelUnavailable, NotFound
from ratchet.files import damage_as_error

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
_PATTERNS = ("rank_pattern", "alpha_pattern")
# What decides which layers an adapter is on and how it acts: handed to PEFT as it is.
SHAPING = (
    "target_modules",
    "target_parameters",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "use_rslora",
    "fan_in_fan_out",
    *_PATTERNS,
)
# What says nothing of how a stored adapter acts: where it comes from, how its first weights were made, and dropout,
# which training here does without. Their sizes have checks of their own.
_WITHOUT_EFFECT = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "inference_mode",
    "init_lora_weights",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "task_type",
}
# First weights that leave the base model as it is. The others (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA) take a part out of
# its weights, so that the adapter belongs to a base model that is in no file.
_PLAIN_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
_PREFIX = "base_model.model."
_OUTPUT_LAYERS = ("lm_head", "embed_out")
_WHOLE_MODEL = "Ratchet continues from plain LoRA adapters on linear layers."


class FactorPair(NamedTuple):
    """The shapes of an adapter's two factors on one layer: (r, k) and (n, r)."""

    down: tuple[int, ...]
    up: tuple[int, ...]


@dataclass(frozen=True)
class AdapterFiles:
    """What an adapter folder holds: its adapter_config.json, and the shapes of its tensors by name."""

    path: Path
    sha256: str
    settings: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def rank(self) -> int:
        """Rank of the adapter."""
        return int(self.settings["r"])

    @property
    def alpha(self) -> int:
        """What scales the adapter, divided by the rank."""
        return int(self.settings["lora_alpha"])

    def pairs(self) -> dict[str, FactorPair]:
        """Layer -> the shapes of its two factors, by the layer's name in the base model.

        Raises:
            ModelUnavailable: a factor has no counterpart, or a tensor is none.
        """
        halves: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, shape in self.shapes.items():
            layer, _, half = name.removesuffix(".weight").rpartition(".")
            if half not in ("lora_A", "lora_B") or len(shape) != 2 or not layer.startswith(_PREFIX):
                raise ModelUnavailable(
                    f"The adapter {self.path} holds the tensor {name} {list(shape)}, which is no factor of a LoRA "
                    f"adapter on a linear layer. {_WHOLE_MODEL}"
                )
            halves.setdefault(layer.removeprefix(_PREFIX), {})[half] = shape
        alone = [layer for layer, found in halves.items() if len(found) < 2]
        if alone or not halves:
            what = f"only one of the two factors of {alone[0]}" if alone else "no tensors"
            raise ModelUnavailable(f"The adapter {self.path} holds {what}. Copy it again.")
        return {layer: FactorPair(found["lora_A"], found["lora_B"]) for layer, found in halves.items()}


def holds_adapter(path: Path) -> bool:
    """Whether a folder looks like an adapter in PEFT layout."""
    return (path / ADAPTER_CONFIG).is_file()


def read_adapter(path: Path) -> AdapterFiles:
    """Read an adapter folder.

    Raises:
        NotFound: a file is missing.
        Conflict: a file is damaged.
    """
    for name in ADAPTER_FILES:
        if not (path / name).is_file():
            pickled = (path / "adapter_model.bin").is_file()
            reason = " Its weights are pickled; save them as safetensors." if pickled else ""
            raise NotFound(f"The adapter folder {path} has no {name}.{reason}")
    with damage_as_error(path / ADAPTER_CONFIG):
        settings = json.loads((path / ADAPTER_CONFIG).read_bytes())
        if not isinstance(settings, dict):
            raise ValueError("no settings")
    return AdapterFiles(path, weights_sha256(path), settings, _shapes(path / ADAPTER_WEIGHTS))


def weights_sha256(path: Path) -> str:
    """The checksum of the weights in an adapter folder.

    Raises:
        Conflict: they cannot be read.
    """
    with damage_as_error(path / ADAPTER_WEIGHTS), (path / ADAPTER_WEIGHTS).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    from huggingface_hub import parse_local_safetensors_file_metadata

    try:
        tensors = parse_local_safetensors_file_metadata(file).tensors
    except Exception as error:  # of the library's own kinds, all of them meaning damage
        raise Conflict(f"{file} cannot be read ({type(error).__name__}): it is damaged.") from error
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def refuse_unsupported(adapter: AdapterFiles) -> None:
    """Refuse an adapter that training here could not continue from exactly.

    Raises:
        ModelUnavailable: it is not plain LoRA on linear layers, with one rank and one alpha.
    """
    for reason in _obstacles(adapter):
        raise ModelUnavailable(f"Cannot continue from the adapter {adapter.path}: {reason}. {_WHOLE_MODEL}")
    rank, patterned = adapter.rank, bool(adapter.settings.get("target_parameters"))
    for layer, (down, up) in adapter.pairs().items():
        if layer.rpartition(".")[2] in _OUTPUT_LAYERS:
            raise ModelUnavailable(
                f"Cannot continue from the adapter {adapter.path}: it changes the output layer {layer}. {_WHOLE_MODEL}"
            )
        # The adapter of a mixture's stacked experts is as many times as wide as there are experts.
        fits = down[0] == up[1] and (down[0] % rank == 0 if patterned else down[0] == rank)
        if not fits:
            raise ModelUnavailable(
                f"The adapter {adapter.path} says that its rank is {rank}, but its factors of {layer} are "
                f"{list(down)} and {list(up)}. Copy it again."
            )


def _obstacles(adapter: AdapterFiles) -> list[str]:
    """What prevents training from continuing, according to an adapter's settings, as parts of a sentence."""
    settings = adapter.settings
    found = []
    if (kind := settings.get("peft_type")) != "LORA":
        found.append(f"its kind is {kind}")
    for name in ("r", "lora_alpha"):
        if not _is_whole(value := settings.get(name)):
            found.append(f"its {name} is {value}, and not a whole number above 0")
    if (bias := settings.get("bias", "none")) != "none":
        found.append(f"it also trained biases (bias is {bias})")
    if (start := settings.get("init_lora_weights")) not in _PLAIN_STARTS:
        found.append(f"its base model was changed when it was made (init_lora_weights is {start})")
    known = {*SHAPING, *_WITHOUT_EFFECT, "bias"}
    # PEFT itself gives the fused experts of a mixture a rank of their own. Elsewhere there is one rank and one alpha.
    if not settings.get("target_parameters"):
        known -= {*_PATTERNS}
    found += [f"it uses {name}" for name, value in sorted(settings.items()) if name not in known and value]
    return found


def _is_whole(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and value == int(value)


def refuse_misfit(adapter: AdapterFiles, model_shapes: Mapping[str, tuple[int, ...]], model: str) -> None:
    """Refuse an adapter whose tensors do not fit the base model's, ``model_shapes`` by name; empty: not known.

    A model whose files call none of the layers as the adapter does is left to the engine: transformers renames the
    weights of some as it loads them.

    Raises:
        ModelUnavailable: a layer is missing or of another shape.
    """
    pairs = adapter.pairs()
    known = {layer: model_shapes.get(f"{layer}.weight") for layer in pairs}
    if not any(known.values()) or adapter.settings.get("target_parameters"):
        return
    for layer, (down, up) in pairs.items():
        adapted, shape = (up[0], down[1]), known[layer]
        if adapter.settings.get("fan_in_fan_out"):
            adapted = adapted[::-1]
        if shape != adapted:
            there = "has no such layer" if shape is None else f"has it as {list(shape)}"
            raise ModelUnavailable(
                f"The adapter {adapter.path} does not fit the base model {model}: it changes {layer}, "
                f"{list(adapted)}, and the model {there}. Choose the model that it was trained on."
            )
