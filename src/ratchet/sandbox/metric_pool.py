"""Grading with a user's own metric: the one door, whichever engine grades.

Processes in sandboxes (``metric_process``) wherever the sandbox works. Where it does not, metrics are refused, unless
the optional package pydantic-monty is installed and the metric loads in it (``monty_pool``). Nothing is ever run
without either.
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from ratchet.errors import MetricRefused, SandboxUnavailable
from ratchet.sandbox import monty_pool
from ratchet.sandbox.metric_process import LoadFailed, MetricProcess, check_metric
from ratchet.sandbox.metric_score import MetricLimits, MetricScore, MetricSource, too_long
from ratchet.sandbox.monty_pool import MontyPool
from ratchet.sandbox.probe import metric_packages, probe
from ratchet.sandbox.worker_pool import CannotWork, Stoppable, WorkerKind, WorkerPool

Engine = Literal["bubblewrap", "monty"]
_MOST_WORKERS = 2  # grading runs beside the sampler: more would take its cores
_BATCH = 8
_CLOSED = MetricScore(None, "execution", "the pool was closed")


class _Grading(Protocol):
    def check(self) -> None: ...

    def score_many(self, pairs: Sequence[tuple[str, str]]) -> list[MetricScore]: ...

    def close(self) -> None: ...


class SandboxPool:
    """Grades with a metric in up to ``workers`` sandboxes, which start when they are first needed."""

    def __init__(self, metric: MetricSource, limits: MetricLimits, workers: int) -> None:
        def start(watch: Callable[[Stoppable], None]) -> MetricProcess:
            try:
                return MetricProcess(metric, limits, check=False, watch=watch)
            except LoadFailed as error:
                raise CannotWork(MetricScore(None, "load", str(error))) from None

        kind = WorkerKind[tuple[str, str], MetricScore](
            start, closed=_CLOSED, is_failure=lambda score: score.failure is not None, batch=_BATCH, name="metric"
        )
        self._metric, self._limits = metric, limits
        self._pool = WorkerPool(kind, workers)

    def check(self) -> None:
        """Load the metric and look at its function; see ``check_metric``."""
        check_metric(self._metric, self._limits)

    def score_many(self, pairs: Sequence[tuple[str, str]]) -> list[MetricScore]:
        """Scores of (answer, reference) pairs, in their order.

        Raises:
            SandboxUnavailable: the sandbox does not start any more.
        """
        failures = [too_long(*pair) for pair in pairs]
        graded = self._pool.results([pair for pair, failure in zip(pairs, failures, strict=True) if not failure])
        scores = iter(graded)
        return [failure or next(scores) for failure in failures]

    def close(self) -> None:
        """End all processes and wait for them. Answers under way and later ones fail."""
        self._pool.close()


class MetricPool:
    """Grades answers with one version of a metric, called from any number of threads.

    Args:
        source: Python that defines ``score(answer, reference)``, returning a number from 0 to 1.
        name: What messages call the metric.
        version: Its version, if it has one.
        limits: What loading it and each answer may use.
        workers: How many processes grade; by default two, at most one less than there are cores.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str = "metric",
        version: int | None = None,
        limits: MetricLimits | None = None,
        workers: int | None = None,
    ) -> None:
        self.metric = MetricSource(source, name, version)
        self._limits = limits or MetricLimits()
        self._workers = workers or min(_MOST_WORKERS, max(1, (os.cpu_count() or 1) - 1))
        self._lock = threading.Lock()  # the race: the first call from two threads
        self._chosen: tuple[Engine, _Grading] | None = None

    @property
    def engine(self) -> Engine:
        """Which engine grades.

        Raises:
            SandboxUnavailable: the sandbox does not work here, and pydantic-monty cannot stand in.
        """
        return self._choose()[0]

    def check(self) -> None:
        """Load the metric and look at its function.

        Raises:
            MetricRefused: it cannot be used; the message is one sentence.
            SandboxUnavailable: the machine cannot run it. Says nothing of the metric.
        """
        self.metric.check_length()
        self._choose()[1].check()

    def score(self, answer: str, reference: str) -> MetricScore:
        """Grade one answer.

        Raises:
            SandboxUnavailable: the machine cannot, or cannot any more.
        """
        return self.score_many([(answer, reference)])[0]

    def score_many(self, pairs: Sequence[tuple[str, str]]) -> list[MetricScore]:
        """Grade (answer, reference) pairs; return their scores in the same order. Raises like ``score``."""
        return self._choose()[1].score_many(pairs)

    def close(self) -> None:
        """End all processes. Answers under way and later ones fail."""
        with self._lock:
            # Never used: whoever calls later gets a closed pool, which starts no process.
            unused: tuple[Engine, _Grading] = ("bubblewrap", SandboxPool(self.metric, self._limits, self._workers))
            self._chosen = chosen = self._chosen or unused
        chosen[1].close()

    def _choose(self) -> tuple[Engine, _Grading]:
        with self._lock:
            if self._chosen is None:
                self._chosen = self._first_that_works()
            return self._chosen

    def _first_that_works(self) -> tuple[Engine, _Grading]:
        metric_packages()  # a folder that is not there is the setting's fault: no other engine makes up for it
        found = probe()
        if found.ok:
            return "bubblewrap", SandboxPool(self.metric, self._limits, self._workers)
        if not monty_pool.is_installed():
            raise SandboxUnavailable(
                found.reason,
                f"{found.remedy} For simple metrics, pip install 'ratchet-rl[monty]' will do instead.".lstrip(),
            )
        pool = MontyPool(self.metric, self._limits, self._workers)
        try:
            pool.check()
        except MetricRefused as refused:
            pool.close()
            raise SandboxUnavailable(
                found.reason, f"{found.remedy} pydantic-monty cannot stand in: {refused}".lstrip()
            ) from None
        return "monty", pool
