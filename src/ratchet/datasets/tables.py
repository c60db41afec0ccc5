"""Where rows come from: a file, a folder or a hub dataset, as up to three splits that are read one row at a time.

Local files are JSONL, CSV, TSV or Parquet by their names; how each is read is in ``readers.py``. A split is opened when
its first row is asked for and not before: who takes train and validation alone never touches the test rows.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.datasets import readers
from ratchet.datasets.readers import Raw, Table
from ratchet.errors import IncompatibleData, InvalidSetting

SPLITS = ("train", "validation", "test")
# What a split may be called; the first name that is there counts.
_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}

# Hub datasets that cannot be loaded without naming one of their configurations.
_HUB_CONFIGS = {"openai/gsm8k": "main", "gsm8k": "main"}
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_NO_TEXT = re.compile(r"\b(Image|Audio|Video)\(")  # in the features' text; reading such a row would need its decoder
_SHARD = r"(-[0-9]+-of-[0-9]+)?"


class Tables(NamedTuple):
    """What a path offers: a table for each split that is there. A single file or an unnamed split is train."""

    train: Table | None
    validation: Table | None
    test: Table | None


class Wanted(NamedTuple):
    """What to take of a path: which configuration and revision of a hub dataset, and what its splits are called."""

    config: str | None = None
    revision: str | None = None
    splits: Mapping[str, str] = {}  # our name of a split -> the source's


def open_tables(path: str, wanted: Wanted | None = None) -> Tables:
    """Find the splits behind a path: a file, a folder that holds train.jsonl and the like, or a hub id.

    A path that exists is local. One that does not exist is taken for a hub id unless it is written like a file.

    Raises:
        IncompatibleData: there is nothing of that name, or the hub could not be asked.
        InvalidSetting: what is wanted does not go with what is there.
    """
    wanted = wanted or Wanted()
    local = os.path.expanduser(path)
    if is_hub_id(path):
        return _hub(path, wanted)
    if wanted.revision is not None:
        raise InvalidSetting(
            f"Revision is {wanted.revision}, but {path} is no hub dataset. Leave it out.", "data.revision"
        )
    if os.path.isdir(local):
        return _folder(Path(local), path, wanted)
    if wanted.splits or wanted.config:
        raise InvalidSetting(f"{path} is a file: it has neither splits nor configurations to choose from.")
    if not (os.path.isfile(local) or Path(local).is_fifo()):
        raise IncompatibleData(f"{path} is neither a file nor a folder, but a device or a socket. Give a file of rows.")
    return Tables(readers.table([Path(local)]), None, None)


def is_hub_id(path: str) -> bool:
    """Whether a path means a hub dataset: nothing local has that name, and it is not written like a file.

    Raises:
        IncompatibleData: it is neither.
    """
    if os.path.exists(os.path.expanduser(path)):
        return False
    if path.startswith((".", "/", "~")) or path.lower().endswith(readers.SUFFIXES):
        raise IncompatibleData(f"There is no file or folder {path}. Correct the path of the dataset.")
    if _HUB_ID.fullmatch(path) is None:
        raise IncompatibleData(f"{path} is neither an existing file or folder nor a hub id such as openai/gsm8k.")
    return True


def hub_commit(path: str, revision: str | None) -> str | None:
    """The commit of a hub dataset's revision (the newest for None); None where the hub does not say."""
    from huggingface_hub import HfApi

    try:
        commit: str | None = HfApi().dataset_info(path, revision=revision).sha
    except Exception:  # no connection, no such dataset: loading it will tell, or it is in the cache
        return None
    return commit


def _folder(folder: Path, path: str, wanted: Wanted) -> Tables:
    """Find the files of the splits: in the folder, or in its ``data`` folder, or in the configuration's."""
    places = [folder / wanted.config] if wanted.config else [folder, folder / "data"]
    for place in places:
        if not place.is_dir():
            continue
        found = {split: _files(place, _names(split, wanted)) for split in SPLITS}
        _refuse_missing(path, wanted, {split for split in SPLITS if found[split]})
        if any(found.values()):
            return Tables(*(readers.table(found[split]) if found[split] else None for split in SPLITS))
    where = f"The folder {path}" if not wanted.config else f"The folder {folder / wanted.config}"
    raise IncompatibleData(
        f"{where} holds no train.jsonl, validation.jsonl or test.jsonl (or .csv, .tsv, .parquet). Give a folder that "
        "does, or one file."
    )


def _names(split: str, wanted: Wanted) -> Sequence[str]:
    return (wanted.splits[split],) if split in wanted.splits else _NAMES[split]


def _files(place: Path, names: Sequence[str]) -> list[Path]:
    """The file of a split, or its parts in order; nothing if there is none."""
    endings = "|".join(re.escape(ending) for ending in readers.SUFFIXES)
    entries = sorted(entry for entry in place.iterdir() if entry.is_file())
    for name in names:
        found = [file for file in entries if re.fullmatch(rf"{re.escape(name)}{_SHARD}({endings})", file.name)]
        if len({re.sub(rf"{_SHARD}({endings})$", "", file.name) + file.suffix for file in found}) > 1:
            raise IncompatibleData(
                f"{place} holds {' and '.join(file.name for file in found[:4])}: leave the one that is meant."
            )
        if found:
            return found
    return []


def _refuse_missing(path: str, wanted: Wanted, found: set[str]) -> None:
    for split, name in wanted.splits.items():
        if split not in found:
            raise IncompatibleData(f"{path} has no split named {name}, which was asked for as {split}.")


def _hub(path: str, wanted: Wanted) -> Tables:
    """Load a hub dataset. It is downloaded into the cache of the Hugging Face library."""
    import datasets

    config = wanted.config or _HUB_CONFIGS.get(path)
    try:
        splits = datasets.load_dataset(path, config, revision=wanted.revision)
    except Exception as error:  # the library raises errors of many kinds, all of them meaning: not loaded
        if "onfig name is missing" in str(error):
            raise IncompatibleData(
                f"The dataset {path} has several configurations. Add one with ratchet data add {path} --config NAME."
            ) from error
        at = f" at revision {wanted.revision}" if wanted.revision else ""
        raise IncompatibleData(
            f"The dataset {path} could not be loaded from the Hugging Face hub{at} ({type(error).__name__}), and there "
            "is no file or folder of that name. Check the name and the connection, or give a local folder that holds "
            "train.jsonl."
        ) from error
    chosen = {split: next((name for name in _names(split, wanted) if name in splits), None) for split in SPLITS}
    _refuse_missing(path, wanted, {split for split, name in chosen.items() if name})
    if not any(chosen.values()):
        raise IncompatibleData(
            f"The dataset {path} has no split named train, validation or test, but {', '.join(map(str, splits))}. Say "
            "which is which, such as --split train=NAME."
        )
    return Tables(*(_hub_split(path, name, splits[name]) if name else None for name in chosen.values()))


def _hub_split(path: str, name: str, rows: Any) -> Table:
    if _NO_TEXT.search(repr(rows.features)):
        raise IncompatibleData(f"The dataset {path} holds images, sound or video, and only text can be trained on.")

    def read(table: Table) -> Iterator[Raw]:
        for row in rows:
            table.position += 1
            yield row

    return Table(f"{path} ({name})", read, total=len(rows))
