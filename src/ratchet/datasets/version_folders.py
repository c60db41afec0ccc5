"""The folders of dataset versions: rows that never change, found by the hash of what is in them.

    RATCHET_HOME/datasets/HASH/
      version.json            format, and for each split its rows, the hash of its file, and how long its texts are
      train.jsonl             the rows as ``canonical.py`` has them; likewise validation.jsonl and test.jsonl

The content hash is the SHA-256 of the format and of the hash of each split's file. So a reader of train and validation
can prove that both are what the version had without opening the test rows.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.datasets.canonical import Format
from ratchet.datasets.content_folders import changed, place
from ratchet.datasets.tables import SPLITS
from ratchet.errors import Conflict, NotFound
from ratchet.files import ratchet_home, write_atomically


class Lengths(BaseModel):
    """How long texts are, in characters."""

    model_config = ConfigDict(frozen=True)

    shortest: int
    median: int
    mean: float
    longest: int


class SplitRecord(BaseModel):
    """What is known of a split's file."""

    model_config = ConfigDict(frozen=True)

    rows: int
    sha256: str
    prompt: Lengths
    ground_truth: Lengths


class Manifest(BaseModel):
    """What ``version.json`` holds."""

    model_config = ConfigDict(frozen=True)

    format: Format
    splits: dict[str, SplitRecord]

    @property
    def content_hash(self) -> str:
        """The hash that identifies the version."""
        parts = {"format": self.format, "splits": {name: split.sha256 for name, split in self.splits.items()}}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def versions_home() -> Path:
    """The folder of all versions."""
    return ratchet_home() / "datasets"


def split_file(folder: Path, split: str) -> Path:
    """The file of a split in a version's folder."""
    return folder / f"{split}.jsonl"


def keep(folder: Path, manifest: Manifest) -> str:
    """Make a staged folder the version of its content, and return its hash. One that is there and whole stays."""
    content_hash = manifest.content_hash
    write_atomically(folder / "version.json", manifest.model_dump_json(indent=2).encode())
    place(folder, content_hash, lambda: _is_whole(content_hash))
    return content_hash


def read_manifest(content_hash: str) -> Manifest:
    """The record of a version, without its rows.

    Raises:
        NotFound: its folder is not here.
        Conflict: its record was changed.
    """
    file = versions_home() / content_hash / "version.json"
    try:
        manifest = Manifest.model_validate_json(file.read_bytes())
    except FileNotFoundError as error:
        raise NotFound(
            f"The rows of the dataset version {content_hash[:12]} are not in {versions_home()}. Add the data again, or "
            "set RATCHET_HOME to where it was added."
        ) from error
    except (OSError, ValidationError) as error:
        raise changed(file, "data") from error
    if manifest.content_hash != content_hash:
        raise changed(file, "data")
    return manifest


def read_rows(content_hash: str, split: str) -> Iterator[dict[str, Any]]:
    """Yield the stored rows of a split, after proving that its file is the one that was imported.

    Raises:
        NotFound: the version, or that split of it, is not here.
        Conflict: the file was changed or removed.
    """
    manifest = read_manifest(content_hash)
    if split not in manifest.splits:
        raise NotFound(f"The dataset version {content_hash[:12]} has no {split} rows.")
    file = split_file(versions_home() / content_hash, split)
    try:
        with file.open("rb") as lines:
            if hashlib.file_digest(lines, "sha256").hexdigest() != manifest.splits[split].sha256:
                raise changed(file, "data")
            lines.seek(0)
            for line in lines:
                yield json.loads(line)
    except (OSError, ValueError) as error:
        raise changed(file, "data") from error


def usability(rows: Mapping[str, int]) -> list[str]:
    """What a version with so many rows in each split cannot be used for, as sentences."""
    lacking = [split for split in ("train", "validation") if not rows.get(split)]
    notes = []
    if lacking:
        notes.append(f"It has no {' and no '.join(lacking)} rows, so it cannot be trained on.")
    if not rows.get("test"):
        notes.append("It has no test rows, so no model can be scored on it.")
    return notes


def _is_whole(content_hash: str) -> bool:
    folder = versions_home() / content_hash
    try:
        manifest = read_manifest(content_hash)
        for split in SPLITS:
            if split in manifest.splits:
                with split_file(folder, split).open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != manifest.splits[split].sha256:
                        return False
    except (OSError, NotFound, Conflict):
        return False
    return True
