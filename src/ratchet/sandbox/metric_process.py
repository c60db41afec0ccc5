"""The host's side of one sandbox that holds one metric: start it, give it answers, believe only what has the form.

A process that breaks the protocol, ends or is late is not asked again. What it had reported keeps its score, the answer
it was at fails, and the others are given back, to be graded by its successor.

Also what grading by a metric is made of: its limits, a score or a failure, and the sentence of a refusal.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ratchet.errors import MetricRefused
from ratchet.sandbox.launcher import Limits, Sandbox
from ratchet.sandbox.probe import Broken, start_worker

FailureKind = Literal["load", "execution", "result", "time", "memory", "output"]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)

MOST_SOURCE_CHARACTERS = 32_000
MOST_ANSWER_CHARACTERS = 1_000_000
MOST_REFERENCE_CHARACTERS = 32_000
# How much longer than the limit the host waits: the process inside ends what is late by itself, unless it was stopped.
GRACE_SECONDS = 1.0
_DETAIL_CHARACTERS = 300


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
    most_of_each = ("answer", answer, MOST_ANSWER_CHARACTERS), ("reference", reference, MOST_REFERENCE_CHARACTERS)
    for what, text, most in most_of_each:
        if len(text) > most:
            return MetricScore(None, "memory", f"the {what} has {len(text):,} characters; the limit is {most:,}")
    return None


class LoadFailed(Exception):
    """The metric did not load; the text says how."""


class MetricProcess:
    """One running metric. Used by one thread, the one that made it; only ``stop`` may come from another.

    Args:
        metric: What to load.
        limits: For loading and for each answer.
        check: Whether to look at the metric first, in a child that is watched: how it loads, and its function.
        watch: Receives the sandbox as soon as there is one, to be able to stop it.

    Raises:
        SandboxUnavailable: the sandbox does not start.
        MetricRefused: ``check`` found that the metric cannot be used.
        LoadFailed: it did not load, though a check may have passed before.
    """

    def __init__(
        self,
        metric: MetricSource,
        limits: MetricLimits,
        *,
        check: bool,
        watch: Callable[[Sandbox], None] = lambda s: None,
    ) -> None:
        self._metric, self._limits = metric, limits
        self._batch = 0
        self.is_usable = True
        self._sandbox, self._channel = start_worker(
            "metric_worker.py", Limits(address_space=limits.memory_bytes), watch
        )
        try:
            self._load(check)
        except BaseException:
            self.kill()
            raise

    def work(self, pairs: Sequence[tuple[str, str]], report: Callable[[MetricScore], None]) -> None:
        """Grade up to a batch of (answer, reference), and report the scores in their order.

        Fewer than all are reported when the process ended or was ended: then ``is_usable`` is False.
        """
        self._batch += 1
        for index, (answer, reference) in enumerate(pairs):
            self._channel.send({"batch": self._batch, "index": index, "answer": answer, "reference": reference})
        for index in range(len(pairs)):
            try:
                reply = self._channel.receive(self._limits.answer_seconds + GRACE_SECONDS)
                score = _score(reply, self._batch, index)
            except TimeoutError:
                score = MetricScore(None, "time")
                self.is_usable = False
            except Broken as broken:
                score = MetricScore(None, "execution", f"the metric's process failed: {broken}")
                self.is_usable = False
            report(score)
            if not self.is_usable:
                self.kill()
                return

    def kill(self) -> None:
        """End it and wait until it is gone."""
        self.is_usable = False
        self._sandbox.kill()

    def _load(self, check: bool) -> None:
        seconds = self._limits.load_seconds
        self._channel.send(
            {
                "source": self._metric.source,
                "check": check,
                "answer_seconds": self._limits.answer_seconds,
                "load_seconds": seconds,
            }
        )
        if check and (why := self._reply(seconds).get("checked", "")) is not None:
            raise self._metric.refused(str(why)[:_DETAIL_CHARACTERS] or "it did not load")
        # A metric could write "loaded" itself while it loads, and then hang; only one that did load answers this.
        ping = secrets.token_hex(8)
        self._channel.send({"ping": ping})
        loaded = self._reply(seconds)
        if loaded.get("loaded") is not True:
            raise LoadFailed(str(loaded.get("detail", "it did not load"))[:_DETAIL_CHARACTERS])
        if self._reply(seconds) != {"pong": ping}:
            raise LoadFailed("it wrote where only results go while loading")

    def _reply(self, seconds: float) -> dict[str, Any]:
        try:
            return self._channel.receive(seconds + GRACE_SECONDS)
        except TimeoutError:
            raise LoadFailed(f"it took longer than {seconds:g} s to load") from None
        except Broken:
            raise LoadFailed("it ended the process while loading") from None


def _score(reply: dict[str, Any], batch: int, index: int) -> MetricScore:
    """The score that a reply tells, if it is the one that must come next.

    Raises:
        Broken: it is another's, or has another form.
    """
    if reply.get("batch") != batch or reply.get("index") != index or type(reply["index"]) is not int:
        raise Broken("a reply is out of order")
    if reply.keys() == {"batch", "index", "value"}:
        value = reply["value"]
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise Broken("a score is no number from 0 to 1")
        return MetricScore(float(value))
    kind = reply.get("failure")
    if reply.keys() != {"batch", "index", "failure", "detail"} or not isinstance(reply["detail"], str):
        raise Broken("a reply is no score")
    known: FailureKind = next((known for known in FAILURE_KINDS if known == kind), "execution")
    return MetricScore(None, known, reply["detail"][:_DETAIL_CHARACTERS])
