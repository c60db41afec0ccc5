"""Rows into a train and a validation split: duplicates, shares, and the rows and sample that the user asked for.

Every choice is made by the data seed, and both splits keep the order of the file.
"""

import random
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ratchet.config import BoxedData, DeepMathData, Gsm8kData
from ratchet.datasets.rows import open_tables, prompts
from ratchet.errors import IncompatibleData
from ratchet.records import Prompt

RowsData = Gsm8kData | BoxedData | DeepMathData

# Of the rows of a source without a validation split, a tenth and at most so many are set aside.
VALIDATION_DIVISOR = 10
MOST_VALIDATION_ROWS = 1_000


class Splits(NamedTuple):
    """The prompts to train on, the validation sample, and what the user should know about both."""

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    notes: tuple[str, ...]


def read_splits(data: RowsData, validation_prompts: int, convert: Callable[[int, Mapping[str, Any]], Prompt]) -> Splits:
    """Read the source's rows, turn each into a prompt with ``convert``, and split them.

    Raises:
        IncompatibleData: the data is not there, has rows that cannot be used, or nothing is left to train on.
    """
    tables = open_tables(data.path)
    train = prompts(tables.train, convert)
    given = None if tables.validation is None else prompts(tables.validation, convert)
    return split(train, given, data, validation_prompts)


def split(rows: list[Prompt], given: list[Prompt] | None, data: RowsData, validation_prompts: int) -> Splits:
    """Choose what to train on and what to validate with; no prompt is in both.

    Args:
        rows: All rows of the train split. Of rows with the same prompt the first is kept.
        given: The source's own validation split, kept as it is, or None to set rows aside for it.
        data: Says how many rows are used, and the seed.
        validation_prompts: Size of the validation sample.

    Raises:
        IncompatibleData: nothing is left to train on.
    """
    notes: list[str] = []
    train = _without_repeats(rows, notes)
    if given is None:
        train, validation = _set_aside(train, data.seed)
    else:
        train, validation = _without_leaks(train, given, notes), given
    if not train:
        raise IncompatibleData(
            f"Of {_rows(len(rows))} none is left to train on: at least two different prompts are needed, one of them "
            "for validation, and prompts of the validation split are not trained on."
        )
    return Splits(
        train=tuple(_picked(train, data, notes)),
        validation=tuple(_validation_sample(validation, validation_prompts, data.seed, notes)),
        notes=tuple(notes),
    )


def _key(prompt: Prompt) -> tuple[str, ...]:
    """Return what duplicates have in common: the messages but for case and spacing."""
    texts = (f"{message['role']} {message['content']}" for message in prompt.messages)
    return tuple(" ".join(unicodedata.normalize("NFC", text).casefold().split()) for text in texts)


def _without_repeats(rows: list[Prompt], notes: list[str]) -> list[Prompt]:
    first: dict[tuple[str, ...], Prompt] = {}
    contradictions = 0
    for prompt in rows:
        contradictions += first.setdefault(_key(prompt), prompt).ground_truth != prompt.ground_truth
    if repeats := len(rows) - len(first):
        note = f"{_rows(repeats)} left out because an earlier row has the same prompt"
        if contradictions:
            note += f", {contradictions:,} of them with another ground truth"
        notes.append(f"{note}.")
    return list(first.values())


def _without_leaks(train: list[Prompt], validation: list[Prompt], notes: list[str]) -> list[Prompt]:
    keys = {_key(prompt) for prompt in validation}
    kept = [prompt for prompt in train if _key(prompt) not in keys]
    if leaks := len(train) - len(kept):
        notes.append(f"{_rows(leaks)} left out of training because the validation split has the same prompt.")
    return kept


def _set_aside(rows: list[Prompt], seed: int) -> tuple[list[Prompt], list[Prompt]]:
    count = min(max(1, len(rows) // VALIDATION_DIVISOR), MOST_VALIDATION_ROWS)
    chosen = {prompt.id for prompt in _sample(rows, count, f"validation split {seed}")}
    return [one for one in rows if one.id not in chosen], [one for one in rows if one.id in chosen]


def _picked(train: list[Prompt], data: RowsData, notes: list[str]) -> Sequence[Prompt]:
    if data.rows is None:
        return train
    if data.rows > len(train):
        notes.append(f"Rows used is {data.rows:,}, but only {len(train):,} are there to train on: all are used.")
    return train[: data.rows] if data.pick == "first" else _sample(train, data.rows, f"rows {data.seed}")


def _validation_sample(validation: list[Prompt], count: int, seed: int, notes: list[str]) -> Sequence[Prompt]:
    if count > len(validation):
        notes.append(f"Validation sample is {count:,}, but only {_rows(len(validation))} exist for it: all are used.")
    return _sample(validation, count, f"validation sample {seed}")


def _sample(rows: list[Prompt], count: int, stream: str) -> list[Prompt]:
    """Return at most ``count`` rows drawn at random, in the order in which they stand."""
    places = random.Random(stream).sample(range(len(rows)), min(count, len(rows)))
    return [rows[place] for place in sorted(places)]


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
