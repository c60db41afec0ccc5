"""Verifier: is the answer the right one of a few labels?

The answer's text, trimmed and case-folded, must equal a label; nothing is searched for in it. Any other text, a
sentence that holds the label and a list of all labels among them, is unparseable: a policy must commit itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ratchet.verifiers.base import Building, Example, Grade, Kind, KnownAnswers, PartVerifier, Prompt
from ratchet.verifiers.known_texts import as_given, other_case
from ratchet.verifiers.settings import KindSettings, Name, kind_setting, setting


class ClassificationVerifier(KindSettings):
    """The answer must be one of the labels and nothing else, and the right one."""

    kind: Literal["classification"] = kind_setting(
        "classification", "the answer must be one of the labels and nothing else, and the right one."
    )
    labels: Annotated[tuple[Name, ...], Field(min_length=2, max_length=1_000)] = setting(
        ...,
        label="Labels",
        help="The texts an answer may be, 2 to 1,000 of them. Case and surrounding whitespace are ignored.",
    )

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        folded = [label.strip().casefold() for label in self.labels]
        for number, label in enumerate(folded, start=1):
            if not label:
                raise ValueError(f"Labels, entry {number} is blank. Remove it.")
            if (first := folded.index(label) + 1) != number:
                raise ValueError(
                    f"Labels, entries {first} and {number} are the same label apart from case and "
                    "surrounding whitespace. Remove one of them."
                )
        return self


class Classification(PartVerifier):
    """Grades 1 for the label of the ground truth, 0 for another label."""

    def __init__(self, settings: ClassificationVerifier, building: Building) -> None:
        super().__init__(settings, building)
        self._labels = frozenset(_folded(label) for label in settings.labels)

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse a reference that is not one of the labels."""
        return None if _folded(prompt.ground_truth) in self._labels else f"is none of the {len(self._labels)} labels"

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Compare the answer's label with that of the ground truth."""
        part = self.part(text)
        label = None if part is None else _folded(part)
        if label not in self._labels:
            return Grade(0.0, "unparseable", parts={"label_accuracy": 0.0})
        correctness = float(label == _folded(prompt.ground_truth))
        return Grade(correctness, "graded", parts={"label_accuracy": correctness})


def _folded(text: str) -> str:
    return text.strip().casefold()


def _known_answers(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    labels = [str(label) for label in getattr(settings, "labels", None) or ()]
    right = prompt.ground_truth.strip()
    known = replace(as_given(settings, prompt, labels), reads_all=True)
    if known.right is None:
        return known
    mistakes = {"all_labels": ", ".join(labels), "many_answers": "\n".join(labels)} if len(labels) > 1 else {}
    return replace(known, variants={**known.variants, **other_case(right)}, mistakes=mistakes)


KIND = Kind(
    settings=ClassificationVerifier,
    build=Classification,
    metrics={"label_accuracy": "The answer is the right label."},
    example=lambda: Example(ClassificationVerifier(labels=("yes", "no")), "yes", right=" Yes", wrong="no"),
    known_answers=_known_answers,
)
