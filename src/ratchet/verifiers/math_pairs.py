"""Verifier: is the last number the product of the sums?

Reads and compares like ``final_number``. The part ``accuracy_strict`` also asks that the number is written exactly as
in the ground truth: 56.0, 056, +56 and 5.6e1 are right and not strict. It is reported, never trained on.
"""

from typing import Literal

from ratchet.verifiers.base import Example, Grade, Kind, PartVerifier, Prompt
from ratchet.verifiers.final_number import ground_truth_problem, known_answers, numbers_to_compare
from ratchet.verifiers.settings import KindSettings, kind_setting


class MathPairsVerifier(KindSettings):
    """The last number must equal the product of the sums."""

    kind: Literal["math_pairs"] = kind_setting("math_pairs", "the last number must equal the product of the sums.")


class MathPairs(PartVerifier):
    """Grades 1 when the last number has the expected value, else 0."""

    always_prefers_answer_tag = True

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse a reference without a readable number."""
        return ground_truth_problem(prompt.ground_truth)

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Compare the last number with the ground truth, by value and as written."""
        numbers = numbers_to_compare(self.part(text), prompt)
        if numbers is None:
            return Grade(correctness=0.0, outcome="unparseable", parts={"accuracy_strict": 0.0})
        answered, expected = numbers
        is_right = answered.value == expected.value
        is_strict = is_right and answered.written == prompt.ground_truth.strip()
        return Grade(float(is_right), "graded", parts={"accuracy_strict": float(is_strict)})


KIND = Kind(
    settings=MathPairsVerifier,
    build=MathPairs,
    metrics={
        "accuracy": "The last number has the expected value.",
        "accuracy_strict": "It is also written exactly as in the reference.",
    },
    example=lambda: Example(MathPairsVerifier(), "7", right="so 7.", wrong="8"),
    known_answers=known_answers,
    usual_format="tags",
)
