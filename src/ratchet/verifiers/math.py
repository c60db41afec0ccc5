r"""Verifier: is the answer's expression equal to the reference, as mathematics?

Reads ``\boxed{...}``, or without a box the last expression; ``math_reading`` says what that is. Several boxes must
agree, else the answer is unparseable: a policy cannot list its guesses. ``math-verify`` compares, in processes of
their own (``math_pool``): sympy needs seconds or gigabytes for some of what a policy writes, and its own time limit
works on the main thread alone. Such an answer is *failed*, not wrong: it says nothing about the policy's mathematics.

Equal means equal: 0.333 is not 1/3, and 3.14159 is not pi. A unit after a number is left out where the other side has
none, and two different units differ; a percentage equals the number with and without its sign. What ``math-verify``
lets through beyond that is listed in ``math_equality``.
"""

from ratchet.config import MathVerifier
from ratchet.run.records import Grade, Prompt
from ratchet.verifiers.math_pool import MathPool
from ratchet.verifiers.math_reading import read_ground_truth
from ratchet.verifiers.reading import part_to_read

# What is worth reading in an answer; a longer one is read at its end, where the result stands.
_MAX_CHARACTERS = 200_000


class Math:
    """Grades 1 when the answer's expression equals the ground truth, else 0."""

    def __init__(self, settings: MathVerifier, *, prefer_answer_tag: bool = False) -> None:
        self._read = settings.read
        self._require_boxed = bool(settings.require_boxed)
        self._prefer_answer_tag = prefer_answer_tag
        self._pool = MathPool(limit_seconds=settings.limit_seconds)

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse a reference that, given as the answer, would not be graded as right."""
        expression = read_ground_truth(prompt.ground_truth) or ""
        finding = self._pool.find(f"\\boxed{{{expression}}}", prompt.ground_truth, require_boxed=True)
        if finding.get("failure") == "time":
            return "takes longer to compare with itself than the limit per answer"
        if "failure" in finding:
            return "makes the checking process fail (or the process could not start: see the log)"
        if finding["outcome"] == "graded" and finding["is_correct"]:
            return None
        return "is not an expression that can be compared (write it as LaTeX, without a sentence around it)"

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Compare the answer's expression with the ground truth."""
        part = part_to_read(text, self._read, prefer_answer_tag=self._prefer_answer_tag)
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
