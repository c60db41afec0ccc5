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
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from ratchet.verifiers.base import Building, Example, Grade, Kind, KnownAnswers, Prompt, Tried, Verifier
from ratchet.verifiers.custom import CustomVerifier
from ratchet.verifiers.kinds import PLAIN_KINDS, PlainVerifierSettings
from ratchet.verifiers.qa import QaVerifier
from ratchet.verifiers.settings import KindSettings, Read, Settings, kind_setting, setting


class CompositePart(Settings):
    """One verifier of several, with its weight against the others."""

    verifier: PlainVerifierSettings = Field(
        ..., title="Verifier of a part", description="Any kind but composite, with its settings."
    )
    weight: float = setting(1.0, gt=0, le=1_000_000, label="Weight", help="Weight of the part in the reward.")


class CompositeVerifier(KindSettings):
    """Several verifiers on the same answer: their weighted mean is trained on, one of them is correctness."""

    kind: Literal["composite"] = kind_setting("composite", "several verifiers on the same answer.")
    parts: Annotated[tuple[CompositePart, ...], Field(min_length=2, max_length=8)] = setting(
        ...,
        label="Parts",
        help="2 to 8 of {verifier: {kind: ...}, weight: 1}. A part without Extract answer from takes the composite's.",
    )
    correctness_from: int = setting(
        0,
        span=(0, 7),
        label="Correctness from",
        help="Which part counts as correctness (accuracy, target, best round), counted from 0.",
    )

    @property
    def title(self) -> str:
        """How messages call it: with the user's own metrics in it, which are what usually fails."""
        own = [part.verifier.title for part in self.parts if isinstance(part.verifier, CustomVerifier)]
        return f"Verifier composite ({', '.join(own)})" if own else super().title

    def resolved(self, *, read: Read, boxed_data: bool) -> Self:
        """Fill in what was left out. The parts take the composite's own part of the answer."""
        read = self.read or read
        parts = tuple(
            part.model_copy(update={"verifier": part.verifier.resolved(read=read, boxed_data=boxed_data)})
            for part in self.parts
        )
        return self.model_copy(update={"read": read, "parts": parts})

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.correctness_from >= len(self.parts):
            raise ValueError(
                f"Correctness from is {self.correctness_from}, but there are {len(self.parts)} parts, counted from 0. "
                f"Choose 0 to {len(self.parts) - 1}."
            )
        if sum(part.verifier.kind == "python" for part in self.parts) > 1:
            raise ValueError("Parts has two Python functions, but a run takes one. Combine them into one function.")
        return self


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
                return f"{reason} (part {name})"
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
    """What a part adds to the mean: 0 where it could not read the answer."""
    if grade.outcome != "graded":
        return 0.0
    return grade.correctness if grade.score is None else grade.score


def part_names(kinds: Sequence[str]) -> list[str]:
    """A name for each part: its kind, numbered from the second one on."""
    seen = Counter[str]()
    names = []
    for kind in kinds:
        seen[kind] += 1
        names.append(kind if seen[kind] == 1 else f"{kind}_{seen[kind]}")
    return names


def correctness_part(settings: KindSettings) -> KindSettings:
    """Settings of the part of a composite that stands for correctness; any other verifier is its own."""
    return settings.parts[settings.correctness_from].verifier if isinstance(settings, CompositeVerifier) else settings


def _build(settings: CompositeVerifier, building: Building) -> Composite:
    parts = []
    for part in settings.parts:
        of_part = part.verifier.model_copy(update={"read": part.verifier.read or settings.read})
        parts.append(Part(of_part.kind, PLAIN_KINDS[of_part.kind].build(of_part, building), part.weight))
    return Composite(parts, correctness_from=settings.correctness_from)


def _known_answers(settings: CompositeVerifier, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    stated = correctness_part(settings)  # the other parts may ask for more
    return PLAIN_KINDS[stated.kind].known_answers(stated, prompt, others)


KIND = Kind(
    settings=CompositeVerifier,
    build=_build,
    metrics={"correctness": "Correctness of the part that counts; all parts are reported beside it."},
    example=lambda: Example(
        CompositeVerifier(
            parts=(
                CompositePart(verifier=QaVerifier(), weight=2.0),
                CompositePart(verifier=QaVerifier(metric="token_f1")),
            ),
        ),
        "the red house",
        right="Red house.",
        wrong="the blue house",
    ),
    known_answers=_known_answers,
)
