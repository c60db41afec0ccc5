"""Verifier: several verifiers on the same answer and ground truth, with weights.

    score         the weighted mean of what the parts find, divided by the weights' sum: this is trained on. A part that
                  cannot read the answer counts 0; where the stated part cannot, the answer is unparseable and scores 0
    correctness   what the stated part finds, the first one unless the settings say otherwise; so is the outcome
    parts         each part by its kind (``qa``, the next one ``qa_2``), and below it the part's own numbers
                  (``qa.token_f1``)

An answer on which one part fails is failed as a whole: a mean over what is left would be another measure.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ratchet.run.records import Grade, Prompt
from ratchet.verifiers.base import Tried, Verifier


class Part(NamedTuple):
    """One verifier of a composite."""

    kind: str
    verifier: Verifier
    weight: float


class Composite:
    """Grades with all of its parts. ``correctness_from`` counts them from 0."""

    def __init__(self, parts: Sequence[Part], *, correctness_from: int) -> None:
        self._names = part_names([part.kind for part in parts])
        self._parts = tuple(parts)
        self._correctness_from = correctness_from

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse a reference that one of the parts cannot check."""
        for name, part in zip(self._names, self._parts, strict=True):
            if reason := part.verifier.check_ground_truth(prompt):
                return f"{reason} (says the part {name})"
        return None

    def load(self) -> None:
        """Load the parts that are the user's own."""
        for part in self._parts:
            if isinstance(part.verifier, Tried):
                part.verifier.load()

    def trial(self, prompt: Prompt) -> str:
        """Try the parts that are the user's own; return their notes, empty where there are none."""
        return " ".join(part.verifier.trial(prompt) for part in self._parts if isinstance(part.verifier, Tried))

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Grade with every part and put their findings together."""
        grades = [part.verifier.grade(text, prompt) for part in self._parts]
        if failed := next((grade for grade in grades if grade.outcome == "failed"), None):
            return Grade(0.0, "failed", failure=failed.failure)
        found = [_found(grade) for grade in grades]
        weights = [part.weight for part in self._parts]
        mean = sum(weight * number for weight, number in zip(weights, found, strict=True)) / sum(weights)
        numbers = {}
        for name, grade, number in zip(self._names, grades, found, strict=True):
            numbers[name] = number
            numbers |= {f"{name}.{inner}": value for inner, value in grade.parts.items()}
        stated = grades[self._correctness_from]
        score = min(mean, 1.0) if stated.outcome == "graded" else 0.0  # sums of weights may round to above 1
        return Grade(stated.correctness, stated.outcome, numbers, score=score)

    def close(self) -> None:
        """Close the parts."""
        for part in self._parts:
            part.verifier.close()


def _found(grade: Grade) -> float:
    """Return what a part adds to the mean: 0 where it could not read the answer."""
    if grade.outcome != "graded":
        return 0.0
    return grade.correctness if grade.score is None else grade.score


def part_names(kinds: Sequence[str]) -> list[str]:
    """Return a name for each part: its kind, numbered from the second one on."""
    seen = Counter[str]()
    names = []
    for kind in kinds:
        seen[kind] += 1
        names.append(kind if seen[kind] == 1 else f"{kind}_{seen[kind]}")
    return names
