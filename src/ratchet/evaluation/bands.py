"""Questions sorted into bands by their column difficulty, easiest first. What a band scores is in ``scores.py``."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple
from unicodedata import decimal

# So many numbers are a scale whose steps people know, such as levels 1 to 5; more are measured and are cut into three.
MOST_LEVELS = 6
THIRDS = ("easy", "middle", "hard")
NO_DIFFICULTY = "no difficulty given"

# Words whose order the alphabet does not know. Labels are sorted by it where all of them are here.
_LADDER = (
    ("trivial", "very easy", "beginner"),
    ("easy", "simple", "low", "introductory"),
    ("medium", "middle", "moderate", "normal", "average", "intermediate", "interview"),
    ("hard", "difficult", "high", "advanced"),
    ("very hard", "very difficult", "expert", "extreme", "competition"),
)
_RUNG = {word: rung for rung, words in enumerate(_LADDER) for word in words}
_DIGITS = re.compile(r"(\d+)")


class Band(NamedTuple):
    """A band and the places, from 0 on, of its questions in the list that was sorted."""

    name: str
    places: list[int]


def bands_by_difficulty(difficulties: Sequence[float | str | None]) -> list[Band]:
    """Sort questions into bands; none where fewer than two would come out, which say nothing.

    Numbers: each its own band where there are at most six different ones, else three of about equal size, cut between
    different numbers and named with their range; a higher number is taken to be harder. Labels: each its own band, in
    the order of easy, medium and hard where all are such words, else by their letters and the numbers in them. A column
    of numbers written as text counts as numbers. Questions without a difficulty come last.

    Args:
        difficulties: One a question.
    """
    given = {place: value for place, value in enumerate(difficulties) if not _is_missing(value)}
    numbers = {place: number for place, value in given.items() if (number := _number(value)) is not None}
    if len(numbers) < len(given):
        bands = _by_label({place: str(value).strip() for place, value in given.items()})
    elif len(set(numbers.values())) <= MOST_LEVELS:
        bands = [Band(_shown(level), _places(numbers, level)) for level in sorted(set(numbers.values()))]
    else:
        bands = _by_thirds(numbers)
    missing = [place for place in range(len(difficulties)) if place not in given]
    if missing:
        bands.append(Band(NO_DIFFICULTY, missing))
    return bands if len(bands) > 1 else []


def _by_label(labels: dict[int, str]) -> list[Band]:
    distinct = set(labels.values())
    if all(label.casefold() in _RUNG for label in distinct):
        ordered = sorted(distinct, key=lambda label: (_RUNG[label.casefold()], label))
    else:
        ordered = sorted(distinct, key=_natural)
    return [Band(label, _places(labels, label)) for label in ordered]


def _by_thirds(numbers: dict[int, float]) -> list[Band]:
    """Cut where the rank passes a third: equal numbers have one rank, the middle of theirs, and stay together."""
    ordered = sorted(numbers.values())
    thirds = {}
    for number in set(ordered):
        middle = (bisect_left(ordered, number) + bisect_right(ordered, number)) / 2
        thirds[number] = int(3 * middle / len(ordered))
    bands = []
    for third, word in enumerate(THIRDS):
        levels = [number for number, of in thirds.items() if of == third]
        if levels:
            places = [place for place, number in numbers.items() if thirds[number] == third]
            low, high = _shown(min(levels)), _shown(max(levels))
            bands.append(Band(f"{word} ({low} to {high})" if low != high else f"{word} ({low})", places))
    return bands


def _places(values: dict[int, float] | dict[int, str], wanted: float | str) -> list[int]:
    return [place for place, value in values.items() if value == wanted]


def _natural(label: str) -> tuple[list[tuple[int, str, str]], str]:
    """A key that sorts level 2 before level 10; letters without regard to case.

    Python makes no number of more than 4,300 digits: of two without zeros in front, the one with more digits is larger.
    """
    key = []
    for index, part in enumerate(_DIGITS.split(label.casefold())):
        digits = "".join(str(decimal(digit)) for digit in part).lstrip("0") if index % 2 else ""
        key.append((len(digits), digits, part))
    return key, label


def _is_missing(value: float | str | None) -> bool:
    return value is None or (not value.strip() if isinstance(value, str) else not isfinite(value))


def _number(value: float | str | None) -> float | None:
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and isfinite(number) else None


def _shown(number: float) -> str:
    return f"{number:.12g}"
