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
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from math import isfinite
from typing import Any, Literal

from ratchet.verifiers.base import Building, Example, Grade, Kind, KnownAnswers, PartVerifier, Prompt
from ratchet.verifiers.known_texts import with_separators, written
from ratchet.verifiers.settings import KindSettings, kind_setting, setting

_MAX_CHARACTERS = 1_000  # more digits than any answer; bounds the arithmetic
_NUMBER = re.compile(
    "([-+\N{MINUS SIGN}]?)"
    "((?:[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?:[\u00a0\u202f][0-9]{3})+)|[0-9]+)(?:\\.[0-9]*)?|\\.[0-9]+)"
    "(?:[eE]([-+\N{MINUS SIGN}]?[0-9]+))?"
)
# What is smaller differs from 0 by its sign alone: 1e-999999999 as a fraction would not fit into memory. A ground truth
# that small is refused, so nothing compares otherwise for it.
_SMALLEST_EXPONENT, _SMALLEST_TRUTH_EXPONENT = -1_000, -400
_SMALLEST = Fraction(1, 10**-_SMALLEST_EXPONENT)
_UNPARSEABLE = Grade(0.0, "unparseable", parts={"numeric_accuracy": 0.0})


class NumericVerifier(KindSettings):
    """The answer must be one number and nothing else, equal to the reference within the tolerances."""

    kind: Literal["numeric"] = kind_setting(
        "numeric", "the answer must be one number and nothing else, within tolerances of the reference."
    )
    absolute_tolerance: float = setting(
        0.0,
        ge=0,
        label="Absolute tolerance",
        help="Largest difference from the reference that still counts as correct. 0: it must be equal.",
    )
    relative_tolerance: float = setting(
        0.0,
        ge=0,
        label="Relative tolerance",
        help="Largest difference that still counts as correct, as a share of the larger number: 0.01 is 1%.",
    )


class Numeric(PartVerifier):
    """Grades 1 when the answer is a number close enough to the expected one, else 0."""

    def __init__(self, settings: NumericVerifier, building: Building) -> None:
        super().__init__(settings, building)
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
        part = self.part(text)
        answered = None if part is None else read_number(part)
        expected = read_number(prompt.ground_truth)
        if answered is None or expected is None:
            return _UNPARSEABLE
        allowed = max(self._relative * max(abs(answered), abs(expected)), self._absolute)
        correctness = float(abs(answered - expected) <= allowed)
        return Grade(correctness, "graded", parts={"numeric_accuracy": correctness})


def read_number(text: str) -> Fraction | None:
    """The number that a text consists of, or None if it is not one finite number."""
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


def _known_answers(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    """Write a number that is the whole text; the wrong one lies beyond both tolerances."""
    right = prompt.ground_truth.strip()
    try:
        value = Decimal(right)
    except InvalidOperation:
        return KnownAnswers()
    if not value.is_finite():
        return KnownAnswers()
    absolute = Decimal(str(getattr(settings, "absolute_tolerance", None) or 0))
    far = abs(value) + 1 + 2 * absolute
    # On the other side of zero the difference is larger than either number, so no share of them covers it.
    wrong = written(far if value < 0 else -far)
    zero = {name: text for name, text in with_separators(value).items() if name == "trailing_zero"}
    return KnownAnswers(
        right=right,
        wrong=wrong,
        variants={"white_space": f"\n  {right}  \n", **zero},
        mistakes={"many_answers": f"{right} {wrong}", "beside_another": f"{right} or {wrong}"},
        empty_forms=("\\boxed{}",),
    )


KIND = Kind(
    settings=NumericVerifier,
    build=Numeric,
    metrics={"numeric_accuracy": "The answer is one number, within the tolerances of the reference."},
    example=lambda: Example(
        NumericVerifier(absolute_tolerance=0.5, relative_tolerance=0.1), "7", right="7.5", wrong="9"
    ),
    known_answers=_known_answers,
)
