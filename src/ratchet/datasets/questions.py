"""Questions of benchmarks: read from where they are kept, as prompts that nobody trains on.

A dataset version's test rows, the held-out share of Math Pairs, the test split of GSM8K, MATH-500, or any table with a
map of columns. What asks them and what checks their answers is in ``benchmark.py``; a user's bundle is in
``bundle.py``. How a right answer is written where a row says so (``completion``) is the prompt's demonstration.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ratchet.config import MathPairsData
from ratchet.datasets import gsm8k, math_pairs_source, row_columns
from ratchet.datasets.canonical import RowLayout, canonical, layout_of, line_of, prompt_of
from ratchet.datasets.readers import Table
from ratchet.datasets.rows import converted
from ratchet.datasets.tables import Wanted, hub_commit, is_hub_id, open_tables
from ratchet.datasets.version_folders import read_manifest, read_rows
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.evaluation.benchmark import DifficultyKind
from ratchet.run.records import Prompt

GSM8K, MATH_500 = "openai/gsm8k", "HuggingFaceH4/MATH-500"
_LEVEL = re.compile(r"(?:Level )?([0-9]+)")  # MATH itself has "Level 5", MATH-500 has 5
_LARGEST_WHOLE = 2**53  # above it not every whole number is a float

Convert = Callable[[int, Mapping[str, Any]], Prompt]


@dataclass(frozen=True)
class Questions:
    """Questions with where they are from, in words that find them again, and what their difficulty is like."""

    prompts: tuple[Prompt, ...]
    origin: str
    difficulty: DifficultyKind

    @classmethod
    def of(cls, prompts: Iterable[Prompt], origin: str) -> "Questions":
        """Take prompts as questions; difficulties are made numbers where every one can be read as such."""
        known, kind = _with_difficulty(tuple(prompts))
        return cls(known, origin, kind)


def of_dataset(content_hash: str, origin: str) -> Questions:
    """The test rows of a dataset's version.

    Raises:
        IncompatibleData: it has none.
        NotFound: its folder is not here.
        Conflict: its rows were changed.
    """
    manifest = read_manifest(content_hash)
    if "test" not in manifest.splits:
        raise IncompatibleData(
            f"{origin} has no test rows, so no benchmark can be made of it. Add it again with --set-aside test."
        )
    return Questions.of((prompt_of(row) for row in read_rows(content_hash, "test")), origin)


def of_math_pairs(data: MathPairsData) -> Questions:
    """The held-out problems, those that a run with the same numbers and seed sets aside.

    Raises:
        InvalidSetting: none were asked for, or the numbers make too few problems.
    """
    if data.heldout < 1:
        raise InvalidSetting("Held-out prompts is 0, which leaves no questions. Choose 1 or more.", "data.heldout")
    heldout = math_pairs_source.load(data, validation_prompts=1, format_kind="off").heldout
    return Questions.of((replace(prompt, demonstration=None) for prompt in heldout), math_pairs_origin(data))


def math_pairs_origin(data: MathPairsData) -> str:
    """Settings of Math Pairs problems, in words."""
    return f"math_pairs: {data.pairs} pairs of numbers from {data.smallest} to {data.largest}, seed {data.seed}"


def of_gsm8k(path: str = GSM8K, revision: str | None = None) -> Questions:
    """The test rows of GSM8K: a hub id, a folder with test.jsonl, or one file.

    Raises:
        IncompatibleData: they are not there, or some cannot be used.
    """
    return _of_path(path, revision, lambda number, row: gsm8k.prompt(number, row, "off"))


def of_math_500(path: str = MATH_500, revision: str | None = None) -> Questions:
    """The problems of MATH-500, likewise; columns problem, answer and, as difficulty, level."""
    return _of_path(path, revision, _math_prompt)


def of_table(table: Table, mapped: Mapping[str, str], origin: str) -> Questions:
    """The rows of a table as questions.

    Args:
        table: To be gone through once.
        mapped: Our column -> the table's; as of ``canonical.layout_of``.
        origin: As of ``Questions``.

    Raises:
        IncompatibleData: rows cannot be used, named by number.
        InvalidSetting: something is mapped to what is no column of ours.
    """
    layout: RowLayout | None = None

    def convert(number: int, row: Mapping[str, Any]) -> Prompt:
        nonlocal layout
        layout = layout or layout_of(row, mapped, table.name)
        stored = canonical(layout, number, row)
        line_of(stored)  # reports what cannot be written with the row's number
        return prompt_of(stored)

    return Questions.of(converted(table, convert), origin)


def stored_row(number: int, prompt: Prompt) -> dict[str, Any]:
    """A question in the form that rows are stored in, by its number in the benchmark."""
    return {
        "row": number,
        "prompt": list(prompt.messages),
        "ground_truth": prompt.ground_truth,
        **row_columns.extras(prompt.extras),
    }


def _of_path(path: str, revision: str | None, convert: Convert) -> Questions:
    """Read the test split of a hub dataset or a folder, or the one file that a path names."""
    is_hub = is_hub_id(path)
    commit = (hub_commit(path, revision) or revision) if is_hub else revision
    tables = open_tables(path, Wanted(revision=commit))
    table = tables.train if Path(os.path.expanduser(path)).is_file() else tables.test
    if table is None:
        raise IncompatibleData(f"{path} has no split named test. Give a folder with test.jsonl, or the file itself.")
    origin = f"{path} at {commit}" if is_hub and commit else path if is_hub else absolute(path)
    prompts = (replace(prompt, demonstration=None) for prompt in converted(table, convert))
    return Questions.of(prompts, origin)


def absolute(path: str) -> str:
    """A local path as origins have it."""
    return os.path.abspath(os.path.expanduser(path))


def _math_prompt(number: int, row: Mapping[str, Any]) -> Prompt:
    level = row.get("level")
    found = _LEVEL.fullmatch(level) if isinstance(level, str) else None
    own = {"id": row.get("unique_id"), "difficulty": found[1] if found else level}
    return Prompt(
        id=number,
        messages=({"role": "user", "content": row_columns.text(row, "problem")},),
        ground_truth=row_columns.ground_truth(row, "answer"),
        extras=row_columns.extras(own),
    )


def _with_difficulty(prompts: tuple[Prompt, ...]) -> tuple[tuple[Prompt, ...], DifficultyKind]:
    """The prompts with difficulties that are all numbers or all words, and which.

    What is neither number nor text is no difficulty that could be sorted into bands: it is left out of all rows.
    """
    given = {prompt.id: value for prompt in prompts if (value := prompt.extras.get("difficulty")) not in (None, "")}
    if not given:
        return tuple(_with(prompt, None) for prompt in prompts), "none"
    if any(isinstance(value, bool) or not isinstance(value, str | int | float) for value in given.values()):
        return tuple(_with(prompt, None) for prompt in prompts), "none"
    numbers = {row: _as_number(value) for row, value in given.items()}
    if all(number is not None for number in numbers.values()):
        return tuple(_with(prompt, numbers.get(prompt.id)) for prompt in prompts), "number"
    words = {row: str(value).strip() for row, value in given.items()}
    return tuple(_with(prompt, words.get(prompt.id) or None) for prompt in prompts), "label"


def _as_number(value: str | int | float) -> float | None:
    """A finite number, also one in a text as CSV has it."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < _LARGEST_WHOLE else number


def _with(prompt: Prompt, difficulty: float | str | None) -> Prompt:
    extras = {name: value for name, value in prompt.extras.items() if name != "difficulty"}
    if difficulty is not None:
        extras["difficulty"] = difficulty
    return replace(prompt, extras=extras)
