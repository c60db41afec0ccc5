"""Verifier: a metric of the user's own, ``score(answer, reference)``, run in the sandbox.

Its number is the correctness. What it fails on is counted by kind and never taken for a wrong answer: load, execution,
result, time, memory, output. A machine on which the sandbox does not work raises SandboxUnavailable instead, which is
no failure of the metric.
"""

from typing import Literal

from ratchet.errors import InvalidSetting, MetricRefused, SandboxUnavailable
from ratchet.sandbox.metric_pool import MetricPool
from ratchet.sandbox.metric_process import MOST_REFERENCE_CHARACTERS, MetricLimits
from ratchet.sandbox.probe import probe
from ratchet.verifiers.base import Building, Example, Grade, Kind, PartVerifier, Prompt
from ratchet.verifiers.known_texts import as_given
from ratchet.verifiers.settings import METRIC_LABEL, KindSettings, kind_setting, setting

_FAILED = {
    "load": "it did not load",
    "execution": "it failed",
    "result": "its result cannot be used",
    "time": "it took longer than {limit:g} s",
    "memory": "it used too much memory",
    "output": "it printed more than 64 KB",
}


class CustomVerifier(KindSettings):
    """A metric of the user's own, ``score(answer, reference)`` from 0 to 1, run in the sandbox.

    The source is stored with the run, which so keeps the version that it was saved with.
    """

    kind: Literal["custom"] = kind_setting("custom", "a metric of your own, run in the sandbox.")
    metric: str = setting(
        "", max_length=200, label=METRIC_LABEL, help="custom: the name of your metric, also as NAME@VERSION."
    )
    version: int | None = setting(
        None,
        ge=1,
        label="Metric version",
        help="custom: version of the metric. Empty: the newest when the run is saved.",
    )
    source: str = setting(
        "",
        typed=False,
        label="Metric source",
        help="custom: the metric's Python source, which defines score(answer, reference); filled in when the run is "
        "saved.",
    )
    limit_seconds: float = setting(
        1.0,
        span=(0.1, 60),
        label="Limit per answer",
        unit="seconds",
        help="An answer that takes the metric longer, on the clock or of the processor, is counted as failed; the next "
        "ones are graded.",
    )

    @property
    def title(self) -> str:
        """How messages call it."""
        return f"Metric {self.metric}" + ("" if self.version is None else f" version {self.version}")


class Custom(PartVerifier):
    """Grades with a metric version. Safe to call from several threads."""

    def __init__(self, settings: CustomVerifier, building: Building) -> None:
        if not settings.source.strip():
            lacking = f"{settings.title} has no source with this run" if settings.metric else "No metric is named"
            raise InvalidSetting(
                f"{lacking}. Give verifier.metric, the name of a kept one (ratchet metric list), or in a file "
                "verifier.source, Python that defines score(answer, reference).",
                field="verifier.metric",
            )
        super().__init__(settings, building)
        self._limit_seconds = settings.limit_seconds
        self._title = settings.title
        self._pool = MetricPool(
            settings.source,
            name=settings.metric,
            version=settings.version,
            limits=MetricLimits(answer_seconds=settings.limit_seconds),
        )

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse what is longer than a metric gets to see; only the metric knows what else it can grade."""
        length = len(prompt.ground_truth)
        if length > MOST_REFERENCE_CHARACTERS:
            return f"it has {length:,} characters; the limit for a metric is {MOST_REFERENCE_CHARACTERS:,}"
        return None

    def load(self) -> None:
        """Load the metric and look at its function."""
        self._pool.check()

    def trial(self, prompt: Prompt) -> str:
        """Load the metric and grade a ground truth against itself, after another look at the machine."""
        probe(refresh=True)
        self._pool.check()
        score = self._pool.score(prompt.ground_truth, prompt.ground_truth)
        if score.failure:
            why = _FAILED[score.failure].format(limit=self._limit_seconds) + (
                f" ({score.detail})" if score.detail else ""
            )
            refused = f"tried on the reference of row {prompt.id} as the answer, {why}"
            if self._pool.engine == "monty":
                found = probe()
                raise SandboxUnavailable(found.reason, f"{found.remedy} pydantic-monty cannot stand in: {refused}.")
            raise MetricRefused(f"{self._title} is refused: {refused}.")
        return (
            f"{self._title} grades by {self._pool.engine}; the reference of row {prompt.id} scores {score.value:g} "
            "as its own answer."
        )

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Grade the part of the answer that is read.

        Raises:
            SandboxUnavailable: the machine cannot run the metric any more.
        """
        part = self.part(text)
        if part is None:
            return Grade(correctness=0.0, outcome="unparseable")
        score = self._pool.score(part, prompt.ground_truth)
        if score.value is None:
            return Grade(correctness=0.0, outcome="failed", failure=score.failure)
        return Grade(correctness=score.value, outcome="graded")

    def close(self) -> None:
        """End the metric's processes."""
        self._pool.close()


KIND = Kind(
    settings=CustomVerifier,
    build=Custom,
    metrics={"score": "What your metric returns."},
    example=lambda: Example(
        CustomVerifier(metric="equal", source="def score(answer, reference):\n    return float(answer == reference)\n"),
        "7",
        right="7",
        wrong="8",
    ),
    known_answers=as_given,
)
