r"""Plain numbers as LaTeX writes them, read exactly: no float and no rounding stands between 0.333 and 1/3.

Reads integers, thousands separators, decimals, powers of ten (``1.5e3``, ``1.5 \times 10^3``), fractions (``3/4``,
``\frac34``, mixed ``2\frac12``), repeating decimals (``0.\overline{3}``) and percentages. Anything else, also a sum
of two numbers, is None: the symbolic comparison takes over.
"""

import re
from fractions import Fraction
from typing import NamedTuple

_MAX_DIGITS = 400  # of a whole number; more are left to the symbolic comparison
_THOUSANDS = re.compile(r"(?<![0-9,.])([1-9][0-9]{0,2}(?:,[0-9]{3})+)(?![0-9,])")
_SPACED_THOUSANDS = re.compile(r"(?<![0-9,.] )\b([1-9][0-9]{0,2}(?: [0-9]{3})+)(?![0-9_/])")
_DECIMAL = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]*)(?:"
    rf"(?P<whole>[0-9]+)?\\frac(?P<top>\{{[-+]?{_DECIMAL}\}}|[0-9])(?P<bottom>\{{[-+]?{_DECIMAL}\}}|[0-9])"
    rf"|(?P<mixed>[0-9]+ )?(?P<over>{_DECIMAL})/(?P<under>{_DECIMAL})"
    rf"|(?P<start>[0-9]*\.[0-9]*)\\overline\{{(?P<cycle>[0-9]+)\}}"
    rf"|(?P<decimal>{_DECIMAL})(?:(?:[eE]|(?:\\times|\\cdot|\*)10\^)(?P<power>\{{[-+]?[0-9]{{1,3}}\}}|[-+]?[0-9]{{1,3}}))?"
    rf")(?P<percent>\\?%)?"
)


class ExactNumber(NamedTuple):
    """A rational number; of a percentage, the number before the sign."""

    value: Fraction
    is_percent: bool = False


def read_exact(latex: str) -> ExactNumber | None:
    """The number an expression consists of, or None if it is not one plain number."""
    plain = _THOUSANDS.sub(lambda found: found[1].replace(",", ""), latex.strip())
    plain = without_blanks(join_thousands(plain))
    found = _NUMBER.fullmatch(plain)
    if found is None or len(plain) > _MAX_DIGITS:
        return None
    try:
        value = _value(found)
    except ZeroDivisionError:
        return None
    return ExactNumber(-value if found["sign"].count("-") % 2 else value, is_percent=found["percent"] is not None)


def same_number(a: ExactNumber, b: ExactNumber) -> bool:
    """Compare by value. 50% is 50% and 0.5, and also 50, since many references leave the sign out."""
    if a.is_percent == b.is_percent:
        return a.value == b.value
    percent, number = (a, b) if a.is_percent else (b, a)
    return number.value in (percent.value, percent.value / 100)


def join_thousands(latex: str) -> str:
    """Remove the blanks that separate thousands, as in 10 000."""
    return _SPACED_THOUSANDS.sub(lambda found: found[1].replace(" ", ""), latex)


def without_blanks(latex: str) -> str:
    """Remove blanks, except between two numbers: 2 1/2 is a mixed number and 5 6 none at all."""
    return re.sub(r"(?<![0-9]) +| +(?![0-9])", "", latex)


def _value(found: re.Match[str]) -> Fraction:
    """The unsigned value of a match of ``_NUMBER``."""
    if found["top"]:
        fraction = Fraction(_ungrouped(found["top"])) / Fraction(_ungrouped(found["bottom"]))
        return Fraction(found["whole"] or 0) + fraction
    if found["over"]:
        return Fraction(found["mixed"] or 0) + Fraction(found["over"]) / Fraction(found["under"])
    if found["cycle"]:
        whole, _, decimals = found["start"].partition(".")
        start = Fraction(f"{whole or 0}.{decimals or 0}")
        return start + Fraction(int(found["cycle"]), (10 ** len(found["cycle"]) - 1) * 10 ** len(decimals))
    return Fraction(found["decimal"]) * Fraction(10) ** int(_ungrouped(found["power"] or "0"))


def _ungrouped(text: str) -> str:
    return text.strip("{}")
