r"""Verifier: is the last number of the answer the expected one?

Accepts ``**73.**``, ``$1,234.50``, ``1{,}234``, ``73km``, ``+73``, ``-$73`` and ``2.5e-3``; compares by value, so
73.0 is 73 and 72.9999999 is not. Reads inside the only ``<answer>`` tag when there is one. Never evaluates anything:
``3/4`` ends in the number 4 and ``9**9**9`` in the number 9; use the ``math`` verifier for expressions.

Takes the *last* number, not any number, because a policy that lists every candidate would otherwise be paid for
guessing. A last number of more than 40 digits, or one that is part of a larger one (``73²``, ``√73``, ``73k``,
``73 million``), is no result: skipping it would let noise hide behind an earlier number. Time is linear in the text.
"""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from ratchet.verifiers.base import Example, Grade, Kind, KnownAnswers, PartVerifier, Prompt
from ratchet.verifiers.known_texts import LAST_VALUE_COUNTS, with_separators, written
from ratchet.verifiers.settings import KindSettings, kind_setting

_MAX_DIGITS = 40
_MAX_EXPONENT_DIGITS = 4  # 1e9999 is beyond any answer; Decimal compares it without writing it out
# Between groups of three: commas, also as LaTeX writes them (1,234  1{,}234  1,\!234  1\,234), and no-break spaces.
_SEPARATOR = re.compile(r"\{,\}|,\\!|\\,|,|[\u00a0\u202f]")
# Digits with what may stand between them. Not inside a name or an index (x2, H2O, x_2, x_{2}), though Markdown's
# _73_ and __73__ are numbers: only an underscore after a letter or digit makes an index.
_DIGITS = re.compile(
    r"(?<![^\W_])(?<![^\W_]_)(?<![^\W_]_\{)(?<![0-9]\.)"
    r"(\.?[0-9]+(?:(?:\.|,\\!|,|\{,\}|\\,|[\u00a0\u202f](?=[0-9]{3}(?![0-9])))[0-9]+)*)"
    r"([eE][-+]?[0-9]+(?![^\W_]))?"
)
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_MINUS = "-\N{MINUS SIGN}"
# A sign belongs to the number unless it joins two operands (10-3) or is a hyphen (COVID-19). Between the sign and the
# number a currency sign may stand; blanks only after an equals sign, since "- 73" is a list item elsewhere.
_SIGN = re.compile(rf"(?:(?<![^\W_])(?<![)\]}}%])([-+{_MINUS[1]}])(?:\\?[$€£¥])?|=\s*([-{_MINUS[1]}])\s*)\Z")
_SIGN_REACH = 24
# What makes a number part of a larger one: a radical before it; after it a raised or lowered digit, a vulgar fraction,
# or a word that multiplies it (also 73k, but not 273 K).
_RADICAL_BEFORE = re.compile(r"[\u221a-\u221c][ ({]*\Z")
_MORE_AFTER = re.compile(
    r"[\u00b9\u00b2\u00b3\u2070-\u208e]|[ \u00a0\u202f]?[\u00bc-\u00be\u2150-\u215f\u2189]|[kK](?![^\W_])| k(?![^\W_])"
    r"|[ \u00a0\u202f*_~$-]{0,4}(?:\\(?:text|mathrm)\s?\{\s?)?"
    r"(?i:dozens?|(?:hundred|thousand|million|billion|trillion)(?:s|ths?)?)(?![^\W_])"
)
# Nothing but digits, LaTeX commands and operators: a ground truth like that is an expression, not a worked solution.
_ONLY_SYMBOLS = re.compile(r"(?:\\[A-Za-z]+|[^A-Za-z])*")


class FinalNumberVerifier(KindSettings):
    """The last number of the answer must equal the reference."""

    kind: Literal["final_number"] = kind_setting(
        "final_number", "the last number of the answer must equal the reference."
    )


class FoundNumber(NamedTuple):
    """A number in a text: its value, and how it is written. The value is None where it cannot be read.

    It cannot be when it has too many digits or is part of something larger (73², 73 million).
    """

    value: Decimal | None
    written: str


def last_number(text: str) -> FoundNumber | None:
    """The last number in a text, or None if there is none."""
    found = None
    for found in _numbers(text):  # noqa: B007 - the last one is wanted
        pass
    return found


def numbers_to_compare(part: str | None, prompt: Prompt) -> tuple[FoundNumber, FoundNumber] | None:
    """The last numbers of an answer's part and of the ground truth, or None if either cannot be read."""
    answered = last_number(part) if part is not None else None
    expected = last_number(prompt.ground_truth)
    if answered is None or answered.value is None or expected is None or expected.value is None:
        return None
    return answered, expected


class FinalNumber(PartVerifier):
    """Grades 1 when the last number has the expected value, else 0."""

    always_prefers_answer_tag = True

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse a reference without a readable number, or one that is an expression such as 3/4."""
        return ground_truth_problem(prompt.ground_truth)

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Compare the last number with the last number of the ground truth."""
        numbers = numbers_to_compare(self.part(text), prompt)
        if numbers is None:
            return Grade(correctness=0.0, outcome="unparseable")
        answered, expected = numbers
        return Grade(correctness=float(answered.value == expected.value), outcome="graded")


def ground_truth_problem(ground_truth: str) -> str | None:
    """Say why a ground truth cannot serve as the expected number, or None."""
    numbers = list(_numbers(ground_truth))
    if not numbers:
        return "contains no number"
    if numbers[-1].value is None:
        return f"ends in a number of more than {_MAX_DIGITS} digits, or in part of a larger number such as 73k"
    if len(numbers) > 1 and _ONLY_SYMBOLS.fullmatch(ground_truth) and "####" not in ground_truth:
        return "is an expression of several numbers, not one number (the math verifier reads expressions)"
    return None


def _numbers(text: str) -> Iterator[FoundNumber]:
    """Yield every number of a text in order."""
    for found in _DIGITS.finditer(text):
        digits, exponent = found[1], found[2] or ""
        plain = _SEPARATOR.sub(",", digits)
        start = found.start()
        if not _THOUSANDS.fullmatch(plain) and "," in plain:  # a list such as 1,2,3: each one counts
            *earlier, plain = plain.split(",")
            for piece in earlier:
                yield from _number("", piece, "", piece)
            start, sign = found.end(1) - len(plain), ""
        else:
            sign = _sign_before(text, start)
        written_sign = sign if start and text[start - 1] == sign else ""
        written = written_sign + text[start : found.end()]
        if _is_part_of_more(text, found.start(), found.end()):
            yield FoundNumber(None, written)
        else:
            yield from _number(sign, plain, exponent, written)


def _is_part_of_more(text: str, start: int, end: int) -> bool:
    """Whether what stands around a number makes another number of it."""
    before = text[max(0, start - _SIGN_REACH) : start]
    return _RADICAL_BEFORE.search(before) is not None or _MORE_AFTER.match(text, end) is not None


def _number(sign: str, digits: str, exponent: str, written: str) -> Iterator[FoundNumber]:
    """Yield the number made of these parts; nothing for version strings such as 3.1.4."""
    digits = digits.replace(",", "")
    if digits.count(".") > 1:
        return
    if len(digits) - digits.count(".") > _MAX_DIGITS or len(exponent.lstrip("eE+-")) > _MAX_EXPONENT_DIGITS:
        yield FoundNumber(None, written)
        return
    value = Decimal(digits + exponent)
    yield FoundNumber(value.copy_negate() if sign and sign in _MINUS else value, written)


def _sign_before(text: str, start: int) -> str:
    """The sign of the number that starts there, empty if it has none."""
    found = _SIGN.search(text[max(0, start - _SIGN_REACH) : start])
    return (found[1] or found[2]) if found else ""


def known_answers(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    """Write answers that end in a number."""
    found = last_number(prompt.ground_truth)
    if found is None or found.value is None:
        return KnownAnswers()
    right, wrong, further = found.written, written(found.value + 1), written(found.value + 2)
    variants = {
        "white_space": f"\n  {right}  \n",
        "full_stop": f"The answer is {right}.",
        "bold": f"**{right}**",
        "units": f"{right} apples",
        **with_separators(found.value),
    }
    return KnownAnswers(
        right=right,
        wrong=wrong,
        variants=variants,
        mistakes={
            "many_answers": " ".join([*map(str, range(10)), right, further, wrong]),
            "beside_another": f"It is {right}. No, it is {wrong}.",
        },
        empty_forms=("\\boxed{}",),
        reads_all=False,
        left_out=LAST_VALUE_COUNTS,
    )


KIND = Kind(
    settings=FinalNumberVerifier,
    build=FinalNumber,
    metrics={"accuracy": "The last number has the expected value."},
    example=lambda: Example(FinalNumberVerifier(), "7", right="so 7.", wrong="8"),
    known_answers=known_answers,
    usual_format="tags",
)
