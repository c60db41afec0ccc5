"""Metrics without the sandbox: graded by pydantic-monty, an interpreter of its own for a part of Python.

Only for machines on which the sandbox does not work, and only for metrics that run in it. It can reach nothing of the
machine by construction, so it needs no kernel feature; its processes are its own and are replaced when they die.
Regular expressions and floating-point details may differ from Python's, so a run records which of the two graded.

Answers with characters that are no valid text (lone surrogates) fail here.
"""

import threading
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ratchet.sandbox.metric_score import FailureKind, MetricLimits, MetricScore, MetricSource, too_long

if TYPE_CHECKING:
    from pydantic_monty import Monty

_OUTPUT_CHARACTERS = 65_536
_GRACE_SECONDS = 1.0
_KINDS: dict[str, FailureKind] = {"TimeoutError": "time", "MemoryError": "memory"}


def is_installed() -> bool:
    """Whether the optional package is there."""
    return find_spec("pydantic_monty") is not None


class MontyPool:
    """Grades with a metric in up to ``workers`` processes of pydantic-monty. Any number of threads may call."""

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
        printed = _Counter()
        stage: FailureKind = "load"
        try:
            with pool.checkout(script_name="metric", limits=self._session_limits()) as session:
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

    def _session_limits(self) -> Any:
        # One limit for loading and for the answer: a metric that this interpreter can run loads in no time.
        return {"max_memory": self._limits.memory_bytes, "max_feed_duration_secs": self._limits.answer_seconds}

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
