"""Grading with a user's own metric: the one door, whichever engine grades.

Processes in sandboxes (``metric_process``) wherever the sandbox works. Where it does not, metrics are refused, unless
the optional package pydantic-monty is installed and the metric loads in it. Nothing is ever run without either.
"""

import os
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from ratchet.errors import MetricRefused, SandboxUnavailable
from ratchet.sandbox.metric_process import (
    FailureKind,
    LoadFailed,
    MetricLimits,
    MetricProcess,
    MetricScore,
    MetricSource,
    too_long,
)
from ratchet.sandbox.probe import metric_packages, probe
from ratchet.sandbox.worker_pool import CannotWork, Stoppable, WorkerKind, WorkerPool

if TYPE_CHECKING:
    from pydantic_monty import Monty

Engine = Literal["bubblewrap", "monty"]
_MOST_WORKERS = 2  # grading runs beside the sampler: more would take its cores
_BATCH = 8
_CLOSED = MetricScore(None, "execution", "the pool was closed")
_OUTPUT_CHARACTERS = 65_536
_GRACE_SECONDS = 1.0
_KINDS: dict[str, FailureKind] = {"TimeoutError": "time", "MemoryError": "memory"}


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
        """Load the metric in a process that is watched, and look at its function; as ``MetricPool.check``."""
        self._metric.check_length()
        try:
            process = MetricProcess(self._metric, self._limits, check=True)
        except LoadFailed as error:
            raise self._metric.refused(str(error)) from None
        process.kill()

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


class MontyPool:
    """Grades with a metric in up to ``workers`` processes of pydantic-monty, an interpreter for a part of Python.

    Only for machines on which the sandbox does not work, and only for metrics that run in it. It can reach nothing of
    the machine by construction, so it needs no kernel feature; its processes are its own and are replaced when they
    die. Regular expressions and floating-point details may differ from Python's, so a run records which of the two
    graded. Answers with characters that are no valid text (lone surrogates) fail here.
    """

    def __init__(self, metric: MetricSource, limits: MetricLimits, workers: int) -> None:
        self._metric, self._limits, self._workers = metric, limits, workers
        self._lock = threading.Lock()  # the race: the first call from two threads, and close
        self._monty: Monty | None = None
        self._is_closed = False

    def check(self) -> None:
        """Load the metric. What it takes can only be seen by calling it: that is left to the trial.

        Raises:
            MetricRefused: it does not load in this interpreter, or has no score.
        """
        self._metric.check_length()
        found = self._in_session("score", {})
        if isinstance(found, MetricScore):
            raise self._metric.refused(f"pydantic-monty cannot load it: {found.detail or found.failure}")

    def score_many(self, pairs: Sequence[tuple[str, str]]) -> list[MetricScore]:
        """Grade (answer, reference) pairs one after the other, each in a fresh session; return their scores."""
        return [too_long(*pair) or self._score(*pair) for pair in pairs]

    def close(self) -> None:
        """End the processes. Later answers fail."""
        with self._lock:
            self._is_closed = True
            if self._monty is not None:
                self._monty.__exit__(None, None, None)
                self._monty = None

    def _score(self, answer: str, reference: str) -> MetricScore:
        value = self._in_session("score(answer, reference)", {"answer": answer, "reference": reference})
        if isinstance(value, MetricScore):
            return value
        if type(value) not in (int, float):
            return MetricScore(None, "result", f"score returned {type(value).__name__}, not a number from 0 to 1")
        if not 0 <= value <= 1:
            return MetricScore(None, "result", "score returned a number that is not from 0 to 1")
        return MetricScore(float(value))

    def _in_session(self, expression: str, inputs: dict[str, str]) -> Any:
        """Load the metric, evaluate an expression; return its value, or the failure."""
        from pydantic_monty import MontyCrashedError, MontyError

        pool = self._opened()
        if pool is None:
            return MetricScore(None, "execution", "the pool was closed")
        # One limit for loading and for the answer: a metric that this interpreter can run loads in no time.
        limits: Any = {"max_memory": self._limits.memory_bytes, "max_feed_duration_secs": self._limits.answer_seconds}
        printed = _Counter()
        stage: FailureKind = "load"
        try:
            with pool.checkout(script_name="metric", limits=limits) as session:
                session.feed_run(self._metric.source, print_callback=printed)
                stage = "execution"
                value = session.feed_run(expression, inputs=inputs, print_callback=printed)
        except MontyCrashedError as error:
            return MetricScore(None, "time" if error.timed_out else "memory")
        except MontyError as error:
            name = type(error.exception()).__name__
            kind = "output" if printed.is_too_much else _KINDS.get(name, stage)
            return MetricScore(None, kind, name if kind in ("load", "execution") else "")
        return MetricScore(None, "output") if printed.is_too_much else value

    def _opened(self) -> "Monty | None":
        from pydantic_monty import Monty

        with self._lock:
            if self._monty is None and not self._is_closed:
                self._monty = Monty(max_processes=self._workers, feed_duration_limit_grace=_GRACE_SECONDS).__enter__()
            return self._monty


class _Counter:
    """Counts what a metric prints, and throws it away."""

    def __init__(self) -> None:
        self._characters = 0

    @property
    def is_too_much(self) -> bool:
        return self._characters > _OUTPUT_CHARACTERS

    def __call__(self, stream: str, text: str) -> None:
        self._characters += len(text)


_Grading = SandboxPool | MontyPool


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
        if find_spec("pydantic_monty") is None:
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
