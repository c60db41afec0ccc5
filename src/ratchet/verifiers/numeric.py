r"""Verifier: is the answer one number, within the tolerances of the expected one?

The whole trimmed text must be a finite number as written in plain text: ``42``, ``-3.50``, ``+.5``, ``1,234.5``,
``6.02e23``; the minus sign may be U+2212, and thousands may also be set apart by a no-break space. Units, currency,
Markdown, hexadecimal digits, underscores, ``inf`` and ``nan`` make the answer unparseable, and so does 1e400, which
no double holds: searching a number in a text is what ``final_number`` does.

Compared exactly, as fractions, by the rule of ``math.isclose``: right if the difference is at most the absolute
tolerance, or at most the relative one times the larger of the two sizes. The tolerances count as they are written, so
1.3 is within 0.3 of 1.
"""

import re
from decimal import Decimal
from fractions import Fraction
from math import isfinite

from ratchet.config import NumericVerifier
from ratchet.run.records import Grade, Prompt
from ratchet.verifiers.reading import part_to_read

_MAX_CHARACTERS = 1_000  # more digits than any answer; bounds the arithmetic
_NUMBER = re.compile(
    "([-+\N{MINUS SIGN}]?)"
    "((?:[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?:[\u00a0\u202f][0-9]{3})+)|[0-9]+)(?:\\.[0-9]*)?|\\.[0-9]+)"
    "(?:[eE]([-+\N{MINUS SIGN}]?[0-9]+))?"
)
# What is smaller is told from 0 by its sign alone: 1e-999999999 as a fraction would not fit into memory. A ground truth
# that small is refused, so nothing compares otherwise for it.
_SMALLEST_EXPONENT, _SMALLEST_TRUTH_EXPONENT = -1_000, -400
_SMALLEST = Fraction(1, 10**-_SMALLEST_EXPONENT)
_UNPARSEABLE = Grade(0.0, "unparseable", parts={"numeric_accuracy": 0.0})


class Numeric:
    """Grades 1 when the answer is a number close enough to the expected one, else 0."""

    def __init__(self, settings: NumericVerifier, *, prefer_answer_tag: bool = False) -> None:
        self._read = settings.read
        self._prefer_answer_tag = prefer_answer_tag
        self._absolute = Fraction(repr(settings.absolute_tolerance))
        self._relative = Fraction(repr(settings.relative_tolerance))

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse a reference that is not one finite number."""
        number = read_number(prompt.ground_truth)
        if number is None:
            return "is not one finite number (final_number and math search a text for one)"
        if 0 < abs(number) < Fraction(1, 10**-_SMALLEST_TRUTH_EXPONENT):
            return f"is smaller than 1e{_SMALLEST_TRUTH_EXPONENT}"
        return None

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Compare the answer's number with the ground truth."""
        part = part_to_read(text, self._read, prefer_answer_tag=self._prefer_answer_tag)
        answered = None if part is None else read_number(part)
        expected = read_number(prompt.ground_truth)
        if answered is None or expected is None:
            return _UNPARSEABLE
        allowed = max(self._relative * max(abs(answered), abs(expected)), self._absolute)
        correctness = float(abs(answered - expected) <= allowed)
        return Grade(correctness, "graded", parts={"numeric_accuracy": correctness})

    def close(self) -> None:
        """Release nothing: there are no processes."""


def read_number(text: str) -> Fraction | None:
    """Return the number that a text consists of, or None if it is not one finite number."""
    text = text.strip()
    found = _NUMBER.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
    if found is None:
        return None
    sign, digits, exponent = found[1], re.sub("[,\u00a0\u202f]", "", found[2]), found[3] or "0"
    mantissa = Decimal(digits)
    power = int(exponent.replace("\N{MINUS SIGN}", "-"))
    if mantissa == 0:
        return Fraction(0)
    if mantissa.adjusted() + power < _SMALLEST_EXPONENT:
        value = _SMALLEST
    elif not isfinite(float(f"{digits}e{power}")):
        return None
    else:
        value = Fraction(mantissa) * Fraction(10) ** power
    return -value if sign in ("-", "\N{MINUS SIGN}") else value
