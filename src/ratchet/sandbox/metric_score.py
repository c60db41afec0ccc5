"""What grading by a metric is made of: its limits, a score or a failure, and the sentence of a refusal."""

from dataclasses import dataclass
from typing import Literal, get_args

from ratchet.errors import MetricRefused

FailureKind = Literal["load", "execution", "result", "time", "memory", "output"]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)

MOST_SOURCE_CHARACTERS = 32_000
MOST_ANSWER_CHARACTERS = 1_000_000
MOST_REFERENCE_CHARACTERS = 32_000


@dataclass(frozen=True)
class MetricLimits:
    """What a metric may use. ``answer_seconds`` is wall time and processor time alike, each for itself."""

    answer_seconds: float = 1.0
    load_seconds: float = 5.0
    memory_bytes: int = 512 << 20


@dataclass(frozen=True)
class MetricScore:
    """What a metric made of one answer: a ``value`` in 0..1, or a ``failure`` by kind.

    ``detail`` says more of a failure and never holds text of the answer or the reference.
    """

    value: float | None
    failure: FailureKind | None = None
    detail: str = ""


@dataclass(frozen=True)
class MetricSource:
    """One version of a user's metric: Python that defines ``score(answer, reference)``."""

    source: str
    name: str = "metric"
    version: int | None = None

    @property
    def title(self) -> str:
        """How messages call it."""
        return f"Metric {self.name}" + ("" if self.version is None else f" version {self.version}")

    def refused(self, why: str) -> MetricRefused:
        """The fault that says why the metric cannot be used."""
        return MetricRefused(f"{self.title} is refused: {why.rstrip('.')}.")

    def check_length(self) -> None:
        """Raise MetricRefused if the source is too long."""
        if len(self.source) > MOST_SOURCE_CHARACTERS:
            raise self.refused(
                f"its source has {len(self.source):,} characters; the limit is {MOST_SOURCE_CHARACTERS:,}"
            )


def too_long(answer: str, reference: str) -> MetricScore | None:
    """The failure of an answer or a reference that is too long to be graded, None for the others."""
    for what, text, most in (
        ("answer", answer, MOST_ANSWER_CHARACTERS),
        ("reference", reference, MOST_REFERENCE_CHARACTERS),
    ):
        if len(text) > most:
            return MetricScore(None, "memory", f"the {what} has {len(text):,} characters; the limit is {most:,}")
    return None
