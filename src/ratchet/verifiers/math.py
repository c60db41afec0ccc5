r"""Verifier: is the answer's expression equal to the reference, as mathematics?

Reads ``\boxed{...}``, or without a box the last expression; ``math_reading`` says what that is. Several boxes must
agree, else the answer is unparseable: a policy cannot list its guesses. ``math-verify`` compares, in processes of
their own (``math_pool``): sympy needs seconds or gigabytes for some of what a policy writes, and its own time limit
works on the main thread alone. Such an answer is *failed*, not wrong: it says nothing about the policy's mathematics.

Equal means equal: 0.333 is not 1/3, and 3.14159 is not pi. A unit after a number is left out where the other side has
none, and two different units differ; a percentage equals the number with and without its sign. What ``math-verify``
lets through beyond that is listed in ``math_equality``.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal, Self

from ratchet.verifiers.base import Building, Example, Grade, Kind, KnownAnswers, PartVerifier, Prompt
from ratchet.verifiers.exact_number import read_exact
from ratchet.verifiers.known_texts import LAST_VALUE_COUNTS, with_separators
from ratchet.verifiers.math_pool import MathPool
from ratchet.verifiers.math_reading import read_ground_truth
from ratchet.verifiers.settings import KindSettings, Read, kind_setting, setting

# What is worth reading in an answer; a longer one is read at its end, where the result stands.
_MAX_CHARACTERS = 200_000
# Terms to which 1 can be added: numbers, letters, roots, fractions and pi, without relations, commas, sets or words.
_SUM_DIFFERS = re.compile(r"(?:[0-9a-z+\-*/^(){} .]|\\(?:sqrt|d?frac|pi|cdot|times|left|right))+")


class MathVerifier(KindSettings):
    """The boxed or last expression must equal the reference symbolically."""

    kind: Literal["math"] = kind_setting(
        "math", "the boxed or last expression must equal the reference, as mathematics."
    )
    require_boxed: bool | None = setting(
        None,
        label="Require a box",
        help="Whether an answer without \\boxed{} is unparseable. Empty: yes for boxed datasets, else no.",
    )
    limit_seconds: float = setting(
        5.0,
        gt=0,
        le=60,
        label="Limit per answer",
        unit="seconds",
        help="An answer whose check takes longer is counted as failed; the checking process is killed.",
    )

    def resolved(self, *, read: Read, boxed_data: bool) -> Self:
        """Fill in what was left out: data whose instruction asks for a box require one."""
        require_boxed = boxed_data if self.require_boxed is None else self.require_boxed
        return super().resolved(read=read, boxed_data=boxed_data).model_copy(update={"require_boxed": require_boxed})


class Math(PartVerifier):
    """Grades 1 when the answer's expression equals the ground truth, else 0."""

    def __init__(self, settings: MathVerifier, building: Building) -> None:
        super().__init__(settings, building)
        self._require_boxed = bool(settings.require_boxed)
        self._pool = MathPool(limit_seconds=settings.limit_seconds)

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse a reference that, given as the answer, would not be graded as right."""
        expression = read_ground_truth(prompt.ground_truth) or ""
        finding = self._pool.find(f"\\boxed{{{expression}}}", prompt.ground_truth, require_boxed=True)
        if finding.get("failure") == "time":
            return "takes longer to compare with itself than the limit per answer"
        if "failure" in finding:
            return "crashes the checking process (or the process could not start: see the log)"
        if finding["outcome"] == "graded" and finding["is_correct"]:
            return None
        return "is not an expression that can be compared (write it as LaTeX, without a sentence around it)"

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Compare the answer's expression with the ground truth."""
        part = self.part(text)
        if part is None:
            return Grade(correctness=0.0, outcome="unparseable")
        finding = self._pool.find(part[-_MAX_CHARACTERS:], prompt.ground_truth, require_boxed=self._require_boxed)
        if "failure" in finding:
            return Grade(correctness=0.0, outcome="failed", failure=finding["failure"])
        if finding["outcome"] != "graded":
            return Grade(correctness=0.0, outcome="unparseable")
        return Grade(correctness=float(finding["is_correct"]), outcome="graded")

    def close(self) -> None:
        """Kill the worker processes."""
        self._pool.close()


def _known_answers(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    right = read_ground_truth(prompt.ground_truth)
    if right is None:
        return KnownAnswers()
    wrong = _wrong_expression(right)
    variants = {
        "white_space": f"\n\\boxed{{ {right} }}\n",
        "full_stop": f"The answer is \\boxed{{{right}}}.",
        "bold": f"**\\boxed{{{right}}}**",
        "dollars": f"$\\boxed{{{right}}}$",
    }
    exact = read_exact(right)
    if exact is not None and not exact.is_percent and exact.value.denominator == 1 and right.isdecimal():
        variants["units"] = f"\\boxed{{{right}\\text{{ cm}}}}"
        variants |= {name: f"\\boxed{{{text}}}" for name, text in with_separators(Decimal(right)).items()}
    mistakes = {}
    if wrong is not None:
        mistakes["many_boxes"] = " ".join(f"\\boxed{{{one}}}" for one in (wrong, right, *_small_numbers(right)))
        mistakes["beside_another"] = f"\\boxed{{{right}}} or perhaps \\boxed{{{wrong}}}"
    return KnownAnswers(
        right=f"\\boxed{{{right}}}",
        wrong=None if wrong is None else f"\\boxed{{{wrong}}}",
        variants=variants,
        mistakes=mistakes,
        empty_forms=("\\boxed{}", "$$ $$"),
        reads_all=False,
        left_out=LAST_VALUE_COUNTS,
    )


def _small_numbers(right: str) -> list[str]:
    return [str(number) for number in range(10) if str(number) != right]


def _wrong_expression(right: str) -> str | None:
    """An expression of another value; None where none is sure to differ, as with words, sets and infinity."""
    exact = read_exact(right)
    if exact is None:
        return f"{right} + 1" if _SUM_DIFFERS.fullmatch(right) else None
    more = exact.value + 1
    written = str(more) if more.denominator == 1 else f"\\frac{{{more.numerator}}}{{{more.denominator}}}"
    return written + ("\\%" if exact.is_percent else "")


KIND = Kind(
    settings=MathVerifier,
    build=Math,
    metrics={"accuracy": "The boxed or last expression equals the reference, as mathematics."},
    example=lambda: Example(MathVerifier(), r"\frac{1}{2}", right=r"\boxed{\frac{2}{4}}", wrong=r"\boxed{0.6}"),
    known_answers=_known_answers,
    usual_format="boxed",
)
