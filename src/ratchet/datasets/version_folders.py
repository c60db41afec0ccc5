"""The folders of dataset versions: rows that never change, found by the hash of what is in them.

    RATCHET_HOME/datasets/HASH/
      version.json            format, and for each split its rows, the hash of its file, and how long its texts are
      train.jsonl             the rows as ``canonical.py`` has them; likewise validation.jsonl and test.jsonl

The content hash is the SHA-256 of the format and of the hash of each split's file. So a reader of train and validation
can prove that both are what the version had without opening the test rows. A folder is written under another name,
synced and renamed: it is there whole or not at all.
"""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.datasets.canonical import Format
from ratchet.datasets.tables import SPLITS
from ratchet.errors import Conflict, NotFound
from ratchet.files import disk_full_as_error, ratchet_home, unusable_as_error, write_atomically

_STAGING = ".import-"
_HOME_ADVICE = "Set RATCHET_HOME to a folder that can be written to."
_DISK_ADVICE = "Free some space, or set RATCHET_HOME to a folder on another disk."


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
    """Return the folder of all versions."""
    return ratchet_home() / "datasets"


def split_file(folder: Path, split: str) -> Path:
    """Return the file of a split in a version's folder."""
    return folder / f"{split}.jsonl"


@contextmanager
def staging(home: Path | None = None) -> Iterator[Path]:
    """Give a folder to write a version in. What is left of it is removed, also what killed imports left.

    ``home`` is where it is to be kept in the end, None for the versions of datasets.
    """
    home = home or versions_home()
    with unusable_as_error(home, _HOME_ADVICE), disk_full_as_error(home, _DISK_ADVICE):
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
        _remove_abandoned(home)
        folder, descriptor = _locked_folder(home)
    try:
        with disk_full_as_error(home, _DISK_ADVICE):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def keep(folder: Path, manifest: Manifest) -> str:
    """Make a staged folder the version of its content, and return its hash. One that is there and whole stays."""
    content_hash = manifest.content_hash
    target = versions_home() / content_hash
    if _is_whole(target, content_hash):
        return content_hash
    write_atomically(folder / "version.json", manifest.model_dump_json(indent=2).encode())
    if target.exists():  # damaged: these are the rows that it had
        os.rename(target, folder.with_name(f"{folder.name}-damaged"))
    try:
        os.rename(folder, target)
    except OSError:
        if not _is_whole(target, content_hash):  # else another process was first
            raise
    shutil.rmtree(folder.with_name(f"{folder.name}-damaged"), ignore_errors=True)
    _sync(versions_home())
    return content_hash


def read_manifest(content_hash: str) -> Manifest:
    """Return what is known of a version.

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
        raise _changed(file) from error
    if manifest.content_hash != content_hash:
        raise _changed(file)
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
                raise _changed(file)
            lines.seek(0)
            for line in lines:
                yield json.loads(line)
    except (OSError, ValueError) as error:
        raise _changed(file) from error


def usability(rows: Mapping[str, int]) -> list[str]:
    """Say what a version with so many rows in each split cannot be used for."""
    lacking = [split for split in ("train", "validation") if not rows.get(split)]
    notes = []
    if lacking:
        notes.append(f"It has no {' and no '.join(lacking)} rows, so it cannot be trained on.")
    if not rows.get("test"):
        notes.append("It has no test rows, so no model can be scored on it.")
    return notes


def _changed(file: Path) -> Conflict:
    return Conflict(
        f"{file} is not as it was when the data was added: changed, damaged or removed. Add the same data again to "
        "bring it back."
    )


def _is_whole(folder: Path, content_hash: str) -> bool:
    if not folder.exists():
        return False
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


def _locked_folder(home: Path) -> tuple[Path, int]:
    """Make a folder, and lock it for as long as this process lives: such a folder is not abandoned."""
    while True:
        folder = home / f"{_STAGING}{secrets.token_hex(4)}"
        folder.mkdir()
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                return folder, descriptor
            os.close(descriptor)
        # Another import took it for abandoned before it was locked.


def _remove_abandoned(home: Path) -> None:
    for folder in home.glob(f"{_STAGING}*"):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
