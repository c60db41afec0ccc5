"""Building blocks of answers whose verdict is known, shared by the kinds of verifiers. Strings only, no grading.

A kind says how a right answer is written, which differences in writing it ignores by its definition, and how a wrong
one looks. A kind without such a form (the user's own metric or function, a task of another package) has its ground
truth as the right answer.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from ratchet.verifiers.base import KnownAnswers, Prompt

LAST_VALUE_COUNTS = {"negated": "this kind reads the last value, whatever the words around it say"}
_LEAST_WITH_SEPARATOR = 1000
_LONGEST_PLAIN_NUMBER = 15  # digits; longer ones are not written out with separators here


def as_given(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    """Take the ground truth for the right answer. Only whitespace around it is sure to mean nothing."""
    right = prompt.ground_truth
    if not right.strip():
        return KnownAnswers(left_out={"right": "the ground truth is empty, so no right answer is known"})
    wrong = other_ground_truth(right, others)
    return KnownAnswers(right=right, wrong=wrong, variants={"white_space": f"\n  {right}  \n"})


def other_ground_truth(right: str, others: Sequence[str]) -> str | None:
    """Another prompt's ground truth that is not just the same one in another spelling."""
    own = _plain(right)
    return next((other for other in others if _plain(other) and _plain(other) != own), None)


def _plain(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum() or c in "+-.")


def other_case(text: str) -> dict[str, str]:
    """A text in other case, where that is the same text but for case: of some letters it is not."""
    other = text.swapcase()
    return {"case": other} if other.lower() == text.lower() != other else {}


def written(value: Decimal) -> str:
    """A number in digits, or with an exponent where it is long."""
    return format(value, "f") if abs(value.adjusted()) <= _LONGEST_PLAIN_NUMBER else str(value)


def with_separators(value: Decimal) -> dict[str, str]:
    """A whole number of four digits or more with thousands separators, and any whole number with a decimal of zero."""
    if value != value.to_integral_value() or len(str(abs(value))) > _LONGEST_PLAIN_NUMBER:
        return {}
    whole = int(value)
    zero = {"trailing_zero": f"{whole}.0"}
    return {"thousands": f"{whole:,}", **zero} if abs(whole) >= _LEAST_WITH_SEPARATOR else zero


def altered(value: Any) -> Any:
    """A JSON value of the same kind that differs."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1 if value + 1 != value else -value
        case str():
            return f"not {value}"
        case list():
            return [*value, value[-1]] if value else ["nothing"]
        case dict() if value:
            return {key: altered(inner) for key, inner in value.items()}
        case _:
            return "nothing"


def with_keys_reversed(value: Any) -> Any:
    """The same JSON value with the keys of every object in the opposite order."""
    if isinstance(value, dict):
        return {key: with_keys_reversed(value[key]) for key in reversed(list(value))}
    return [with_keys_reversed(inner) for inner in value] if isinstance(value, list) else value
