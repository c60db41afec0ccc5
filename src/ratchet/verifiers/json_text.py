r"""JSON as answers write it: one document, read strictly and exactly, and compared as JSON Schema compares.

Strict: no duplicate keys, no NaN or Infinity, nothing before or after the document. Exact: whole numbers are ``int``
(also 1.0 and 1e3), all others ``Decimal``, so 0.1 is 0.1 and large integers keep every digit.

Bounded, since policies write what they like: at most 1,000,000 characters, 64 levels of nesting, and numbers that are 0
or between 1e-400 and the largest double in size, of at most 1,000 characters. Anything beyond is no JSON here.
"""

import json
import re
import time
from collections.abc import Hashable
from contextvars import ContextVar
from decimal import Decimal
from math import isfinite
from typing import Any, NoReturn

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 64
_MAX_NUMBER_CHARACTERS = 1_000
_SMALLEST_EXPONENT, _LARGEST_EXPONENT = -400, 308

_FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*[A-Za-z0-9_+-]*[ \t]*\r?\n(.*)\n[ \t]*\1", re.DOTALL)


deadline: ContextVar[float] = ContextVar("deadline")  # of a check, in seconds of this thread's processor time


class NotJson(ValueError):
    """A text is not a JSON document, or one beyond the bounds."""


class BadSchema(ValueError):
    """A schema cannot be used. The text completes "... that "; ``detail`` may quote the schema, the text never does."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class OutOfTime(Exception):
    """A document's check takes too long."""


def seconds_left() -> float:
    """Processor time left for the check that this thread is at. Raises OutOfTime when there is none."""
    left = deadline.get() - time.thread_time()
    if left <= 0:
        raise OutOfTime
    return left


def read_json(text: str) -> Any:
    """The document that a text consists of.

    Raises:
        NotJson: It is none.
    """
    if len(text) > MAX_CHARACTERS:
        raise NotJson(f"longer than {MAX_CHARACTERS:,} characters")
    try:
        document = json.loads(
            text.strip(), object_pairs_hook=_object, parse_int=_number, parse_float=_number, parse_constant=_refuse
        )
    except NotJson:
        raise
    except RecursionError:
        raise NotJson(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        raise NotJson("not one JSON document") from None
    if not _is_shallow(document, MAX_DEPTH):
        raise NotJson(f"nested deeper than {MAX_DEPTH} levels")
    return document


def read_json_answer(text: str) -> Any:
    """The document that an answer consists of; one Markdown code fence around it is allowed.

    Raises:
        NotJson: It is none.
    """
    if len(text) > MAX_CHARACTERS:
        raise NotJson(f"longer than {MAX_CHARACTERS:,} characters")
    fenced = _FENCE.fullmatch(text.strip())
    return read_json(fenced[2] if fenced else text)


def canonical(document: Any) -> Hashable:
    """A value that is equal for equal documents alone, as JSON Schema (2020-12 core, section 4.2.2) has it.

    Numbers are equal by value, true is not 1, the order of keys does not matter and that of an array does.
    """
    if isinstance(document, dict):
        return ("object", frozenset((key, canonical(value)) for key, value in document.items()))
    if isinstance(document, list):
        return ("array", tuple(canonical(value) for value in document))
    return (type(document) is bool, document)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise NotJson("an object has a duplicate key")
    return members


def _number(text: str) -> int | Decimal:
    if len(text) > _MAX_NUMBER_CHARACTERS:
        raise NotJson("a number is too long")
    try:
        number = Decimal(text)
    except ArithmeticError:  # an exponent of more than 18 digits
        raise NotJson("a number is too large or too small") from None
    if number == 0:
        return 0
    if not _SMALLEST_EXPONENT <= number.adjusted() <= _LARGEST_EXPONENT or not isfinite(float(number)):
        raise NotJson("a number is too large or too small")
    return int(number) if number == number.to_integral_value() else number


def _refuse(constant: str) -> NoReturn:
    raise NotJson(f"{constant} is not JSON")


def _is_shallow(document: Any, levels: int) -> bool:
    """Whether no more than so many objects and arrays stand within one another."""
    if not isinstance(document, dict | list):
        return True
    inner = document.values() if isinstance(document, dict) else document
    return levels > 0 and all(_is_shallow(value, levels - 1) for value in inner)
