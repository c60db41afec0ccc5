"""Rows of a JSONL file, a folder or a hub dataset, and how bad ones are reported.

Knows nothing of columns: what a row must hold is in ``columns.py`` and in each source. A row's number counts the rows
from 1; blank lines are no rows. A split named test is never read.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.errors import IncompatibleData
from ratchet.records import Prompt

VALIDATION_NAMES = ("validation", "valid", "val", "dev")
MOST_NAMED_ROWS = 20

# Hub datasets that cannot be loaded without naming one of their configurations.
_HUB_CONFIGS = {"openai/gsm8k": "main", "gsm8k": "main"}
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_NO_TEXT = re.compile(r"\b(Image|Audio|Video)\(")  # in the features' text; reading such a row would need its decoder
_BOM = b"\xef\xbb\xbf"


class BadRow(Exception):
    """A row cannot be used. The text completes "row 3: ..." and never quotes the row."""


class Table(NamedTuple):
    """The rows of one split: lines of a file, or objects. ``name`` is what messages call it."""

    name: str
    rows: Iterable[bytes | Mapping[str, Any]]


class Tables(NamedTuple):
    """What a path offers. Without a given validation split that is None."""

    train: Table
    validation: Table | None


def open_tables(path: str) -> Tables:
    """Find the splits behind a path: a file, a folder that holds train.jsonl, or a hub id.

    A path that exists is local. One that does not exist is taken for a hub id unless it is written like a file.

    Raises:
        IncompatibleData: there is nothing of that name, or the hub could not be asked.
    """
    local = os.path.expanduser(path)
    if os.path.isdir(local):
        return _folder(Path(local), path)
    if os.path.exists(local):
        return Tables(_file(Path(local)), None)
    if path.startswith((".", "/", "~")) or path.endswith((".jsonl", ".json")):
        raise IncompatibleData(f"There is no file or folder {path}. Correct the path of the dataset.")
    if _HUB_ID.fullmatch(path) is None:
        raise IncompatibleData(f"{path} is neither an existing file or folder nor a hub id such as openai/gsm8k.")
    return _hub(path)


def prompts(table: Table, convert: Callable[[int, Mapping[str, Any]], Prompt]) -> list[Prompt]:
    """Turn every row into a prompt with ``convert``, which is given the row's number and raises ``BadRow``.

    Raises:
        IncompatibleData: there are no rows, or bad ones; up to 20 of them are named by number.
    """
    found: list[Prompt] = []
    faults: list[tuple[int, str]] = []
    number = 0
    for number, raw in enumerate(table.rows, start=1):
        try:
            found.append(convert(number, _decoded(raw) if isinstance(raw, bytes) else raw))
        except BadRow as bad:
            faults.append((number, str(bad)))
    if faults:
        raise IncompatibleData(_report(table.name, faults))
    if not number:
        raise IncompatibleData(f"{table.name} holds no rows.")
    return found


def _folder(folder: Path, path: str) -> Tables:
    train = folder / "train.jsonl"
    if not train.is_file():
        raise IncompatibleData(f"The folder {path} holds no train.jsonl. Give a folder that does, or one JSONL file.")
    given = (folder / f"{name}.jsonl" for name in VALIDATION_NAMES)
    validation = next((file for file in given if file.is_file()), None)
    return Tables(_file(train), _file(validation) if validation else None)


def _file(file: Path) -> Table:
    return Table(str(file), _lines(file))


def _lines(file: Path) -> Iterator[bytes]:
    """Yield the lines that are not blank. Only a line feed ends a line: JSON text may hold other separators."""
    try:
        with file.open("rb") as lines:
            for index, line in enumerate(lines):
                stripped = (line.removeprefix(_BOM) if index == 0 else line).strip()
                if stripped:
                    yield stripped
    except OSError as error:
        raise IncompatibleData(f"{file} cannot be read ({type(error).__name__}).") from error


def _hub(path: str) -> Tables:
    """Load a hub dataset. It is downloaded into the cache of the Hugging Face library."""
    import datasets

    try:
        splits = datasets.load_dataset(path, _HUB_CONFIGS.get(path))
    except Exception as error:  # the library raises errors of many kinds, all of them meaning: not loaded
        raise IncompatibleData(
            f"The dataset {path} could not be loaded from the Hugging Face hub ({type(error).__name__}), and there is "
            "no file or folder of that name. Check the name and the connection, or give a local folder that holds "
            "train.jsonl."
        ) from error
    if "train" not in splits:
        raise IncompatibleData(f"The dataset {path} has no split named train.")
    if _NO_TEXT.search(repr(splits["train"].features)):
        raise IncompatibleData(f"The dataset {path} holds images, sound or video, and only text can be trained on.")
    validation = next((name for name in VALIDATION_NAMES if name in splits), None)
    return Tables(
        Table(f"{path} (train)", splits["train"]),
        Table(f"{path} ({validation})", splits[validation]) if validation else None,
    )


def _decoded(line: bytes) -> Mapping[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRow("not valid UTF-8") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadRow("not valid JSON") from None
    if not isinstance(value, dict):
        raise BadRow("not a JSON object")
    return value


def _report(name: str, faults: list[tuple[int, str]]) -> str:
    """Say in one line what is wrong with which rows, gathered by reason."""
    by_reason: dict[str, list[int]] = {}
    for number, reason in faults[:MOST_NAMED_ROWS]:
        by_reason.setdefault(reason, []).append(number)
    parts = [
        f"{'row' if len(numbers) == 1 else 'rows'} {', '.join(map(str, numbers))}: {reason}"
        for reason, numbers in by_reason.items()
    ]
    if len(faults) > MOST_NAMED_ROWS:
        parts.append(f"and {len(faults) - MOST_NAMED_ROWS:,} more")
    count = "1 row" if len(faults) == 1 else f"{len(faults):,} rows"
    return f"{name} has {count} that cannot be used: {'; '.join(parts)}. Correct or remove them."
