"""Verifier: is the answer the right one of a few labels?

The answer's text, trimmed and case-folded, must equal a label; nothing is searched for in it. Any other text, a
sentence that holds the label and a list of all labels among them, is unparseable: a policy must commit itself.
"""

from ratchet.config import ClassificationVerifier
from ratchet.run.records import Grade, Prompt
from ratchet.verifiers.reading import part_to_read


class Classification:
    """Grades 1 for the label of the ground truth, 0 for another label."""

    def __init__(self, settings: ClassificationVerifier, *, prefer_answer_tag: bool = False) -> None:
        self._read = settings.read
        self._prefer_answer_tag = prefer_answer_tag
        self._labels = frozenset(_folded(label) for label in settings.labels)

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse a reference that is not one of the labels."""
        return None if _folded(prompt.ground_truth) in self._labels else f"is none of the {len(self._labels)} labels"

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Compare the answer's label with that of the ground truth."""
        part = part_to_read(text, self._read, prefer_answer_tag=self._prefer_answer_tag)
        label = None if part is None else _folded(part)
        if label not in self._labels:
            return Grade(0.0, "unparseable", parts={"label_accuracy": 0.0})
        correctness = float(label == _folded(prompt.ground_truth))
        return Grade(correctness, "graded", parts={"label_accuracy": correctness})

    def close(self) -> None:
        """Release nothing: there are no processes."""


def _folded(text: str) -> str:
    return text.strip().casefold()
