"""Rows into splits: duplicates, shares, and the rows and sample that the user asked for.

Every choice is made by the data seed, and all splits keep the order of the file. Sources that are read for one run are
split in two; what is imported as a version of a dataset gets a test split too, by the same rule.
"""

import hashlib
import random
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ratchet.config import BoxedData, DatasetData, DeepMathData, Gsm8kData
from ratchet.datasets.rows import converted
from ratchet.datasets.tables import Wanted, open_tables
from ratchet.errors import IncompatibleData
from ratchet.run.records import Message, Prompt

PathData = Gsm8kData | BoxedData | DeepMathData
RowsData = PathData | DatasetData

# A split that a source lacks gets a tenth of its rows, and at most so many.
SHARE_DIVISOR = 10
MOST_ROWS_SET_ASIDE = 1_000


class Splits(NamedTuple):
    """The prompts to train on, the validation sample, and what the user should know about both."""

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    notes: tuple[str, ...]


class Repeats:
    """Tells repeated prompts from first ones, remembering of each prompt no more than two short hashes."""

    def __init__(self) -> None:
        self._truths: dict[bytes, int] = {}
        self._repeats = 0
        self._contradictions = 0

    def is_first(self, messages: Sequence[Message], ground_truth: str) -> bool:
        """Whether no earlier prompt was the same but for case and spacing."""
        before, truth = len(self._truths), hash(ground_truth)
        earlier = self._truths.setdefault(key(messages), truth)
        is_first = len(self._truths) > before
        self._repeats += not is_first
        self._contradictions += earlier != truth
        return is_first

    def notes(self) -> list[str]:
        """A note on how many repeats were left out, if any."""
        if not self._repeats:
            return []
        note = f"{_rows(self._repeats)} left out because an earlier row has the same prompt"
        if self._contradictions:
            note += f", {self._contradictions:,} of them with another ground truth"
        return [f"{note}."]


def key(messages: Sequence[Message]) -> bytes:
    """The key that duplicates share: a hash of the messages but for case and spacing."""
    digest = hashlib.blake2b(digest_size=16)
    for message in messages:
        text = unicodedata.normalize("NFC", f"{message['role']} {message['content']}").casefold()
        digest.update(" ".join(text.split()).encode() + b"\0")
    return digest.digest()


def set_aside(count: int, seed: int, splits: Sequence[str]) -> dict[str, set[int]]:
    """Draw the places of the rows that each of ``splits`` gets; all others stay in train.

    Each gets a tenth of the rows, at least one and at most 1,000, as long as one row is left to train on.

    Args:
        count: How many rows there are, all different.
        seed: The data seed.
        splits: Such as ("validation", "test").
    """
    size = min(max(1, count // SHARE_DIVISOR), MOST_ROWS_SET_ASIDE)
    drawn: dict[str, set[int]] = {}
    left = list(range(count))
    for split in splits:
        chosen = set(random.Random(f"{split} split {seed}").sample(left, size if len(left) > size else 0))
        left = [place for place in left if place not in chosen]
        drawn[split] = chosen
    return drawn


def read_splits(data: PathData, validation_prompts: int, convert: Callable[[int, Mapping[str, Any]], Prompt]) -> Splits:
    """Read the source's rows, turn each into a prompt with ``convert``, and split them.

    Raises:
        IncompatibleData: the data is not there, has rows that cannot be used, or nothing is left to train on.
    """
    tables = open_tables(data.path, Wanted(revision=data.revision))
    if tables.train is None:
        raise IncompatibleData(f"{data.path} has no split named train: it holds no train.jsonl or the like.")
    train = list(converted(tables.train, convert))
    given = None if tables.validation is None else list(converted(tables.validation, convert))
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
    train = without_repeats(rows, notes)
    if given is None:
        chosen = set_aside(len(train), data.seed, ("validation",))["validation"]
        validation = [prompt for place, prompt in enumerate(train) if place in chosen]
        train = [prompt for place, prompt in enumerate(train) if place not in chosen]
    else:
        train, validation = without_leaks(train, given, notes), given
    if not train or not validation:
        raise IncompatibleData(
            f"Of {_rows(len(rows))} none is left to train on: at least two different prompts are needed, one of them "
            "for validation, and prompts of the validation split are not trained on."
        )
    return Splits(
        train=tuple(_picked(train, data, notes)),
        validation=tuple(validation_sample(validation, validation_prompts, data.seed, notes)),
        notes=tuple(notes),
    )


def without_leaks(train: list[Prompt], validation: Sequence[Prompt], notes: list[str]) -> list[Prompt]:
    """The training prompts that are not among the validation prompts; a note counts those left out."""
    keys = {key(prompt.messages) for prompt in validation}
    kept = [prompt for prompt in train if key(prompt.messages) not in keys]
    if leaks := len(train) - len(kept):
        notes.append(f"{_rows(leaks)} left out of training because the validation split has the same prompt.")
    return kept


def without_repeats(rows: Sequence[Prompt], notes: list[str]) -> list[Prompt]:
    """The first prompt of those that are the same; a note counts the repeats."""
    repeats = Repeats()
    kept = [prompt for prompt in rows if repeats.is_first(prompt.messages, prompt.ground_truth)]
    notes += repeats.notes()
    return kept


def _picked(train: list[Prompt], data: RowsData, notes: list[str]) -> Sequence[Prompt]:
    if data.rows is None:
        return train
    if data.rows > len(train):
        notes.append(f"Rows used is {data.rows:,}, but only {len(train):,} are there to train on: all are used.")
    return train[: data.rows] if data.pick == "first" else _sample(train, data.rows, f"rows {data.seed}")


def validation_sample(validation: Sequence[Prompt], count: int, seed: int, notes: list[str]) -> Sequence[Prompt]:
    """The fixed validation sample."""
    if count > len(validation):
        there = f"{_rows(len(validation))} {'exists' if len(validation) == 1 else 'exist'}"
        notes.append(f"Validation sample is {count:,}, but only {there} for it: all are used.")
    return _sample(validation, count, f"validation sample {seed}")


def _sample(rows: Sequence[Prompt], count: int, stream: str) -> list[Prompt]:
    """At most ``count`` rows drawn at random, in their original order."""
    places = random.Random(stream).sample(range(len(rows)), min(count, len(rows)))
    return [rows[place] for place in sorted(places)]


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
