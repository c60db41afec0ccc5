"""A pool of sandboxed processes that grade with one version of a metric, called from any number of threads.

Each process has a thread here that starts it, feeds it and ends it, since a sandbox lives no longer than the thread
that started it. Calls that wait while the processes are busy are taken together, up to eight to a batch.

    an answer's own failure      told by its kind; the process goes on with the next answer
    the process ends or hangs    the answer it was at fails; the rest of the batch goes to a new process
    the metric does not load     the answer at hand fails with kind load, so that failures end the run and not a loop
    no sandbox three times       SandboxUnavailable for every caller: the machine's fault, not a failure of the metric

So each restart has cost an answer, and no number of answers makes more restarts than that.
"""

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from ratchet.errors import SandboxUnavailable
from ratchet.sandbox.launcher import Sandbox
from ratchet.sandbox.metric_process import LoadFailed, MetricProcess, check_metric
from ratchet.sandbox.metric_score import Metric, MetricLimits, Score, too_long

log = logging.getLogger(__name__)

BATCH = 8
_MOST_FAILED_STARTS = 3
_CLOSED = Score(None, "execution", "the pool was closed")


class SandboxPool:
    """Grades with a metric in up to ``workers`` sandboxes, which start when they are first needed.

    ``close``, garbage collection and the end of the process end all of them. In a forked child it starts its own.
    """

    def __init__(self, metric: Metric, limits: MetricLimits, workers: int) -> None:
        self._metric, self._limits, self._workers = metric, limits, workers
        self._open()

    def check(self) -> None:
        """Load the metric and look at its function; see ``check_metric``."""
        check_metric(self._metric, self._limits)

    def score_many(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """Grade (answer, reference) pairs; return their scores in the same order.

        Raises:
            SandboxUnavailable: the sandbox does not start any more.
        """
        if self._process_id != os.getpid():
            self._open()
        return [future.result() for future in self._state.submit(pairs)]

    def close(self) -> None:
        """End all processes and wait for them. Answers under way and later ones fail."""
        if self._process_id == os.getpid():
            self._state.close()

    def _open(self) -> None:
        self._process_id = os.getpid()
        self._state = _State(self._metric, self._limits, self._workers)
        weakref.finalize(self, self._state.close)


class _Job:
    """An answer that waits for its score."""

    def __init__(self, answer: str, reference: str) -> None:
        self.pair = (answer, reference)
        self.future: Future[Score] = Future()


class _State:
    """What the threads share. They hold this and not the pool, so that an abandoned pool can be collected."""

    def __init__(self, metric: Metric, limits: MetricLimits, workers: int) -> None:
        self.metric, self.limits, self.workers = metric, limits, workers
        self._process_id = os.getpid()
        self._changed = threading.Condition()  # the race: callers put jobs in while the threads take them out
        self._jobs: deque[_Job] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._sandboxes: set[Sandbox] = set()
        self._is_closed = False
        self._broken: SandboxUnavailable | None = None

    def submit(self, pairs: Sequence[tuple[str, str]]) -> list[Future[Score]]:
        """Queue answers, starting a thread for each that finds none idle, as far as there may be more."""
        jobs = [_Job(answer, reference) for answer, reference in pairs]
        with self._changed:
            for job in jobs:
                if self._broken:
                    job.future.set_exception(self._broken)
                elif self._is_closed:
                    job.future.set_result(_CLOSED)
                elif failure := too_long(*job.pair):
                    job.future.set_result(failure)
                else:
                    self._jobs.append(job)
            while len(self._jobs) > self._idle and len(self._threads) < self.workers:
                thread = threading.Thread(target=_Driver(self).run, name="metric", daemon=True)
                self._threads.append(thread)
                self._idle += 1
                thread.start()
            self._changed.notify(len(jobs))
        return [job.future for job in jobs]

    def take(self) -> list[_Job]:
        """Wait for jobs; return a batch of them, or none when the pool is closed or broken."""
        with self._changed:
            while not self._jobs and not self._is_over():
                self._changed.wait()
            if self._is_over():
                return []
            self._idle -= 1
            # What is waiting is shared with the threads that could be at work, not taken by the first.
            fair = -(-len(self._jobs) // len(self._threads))
            return [self._jobs.popleft() for _ in range(min(BATCH, fair))]

    def give_back(self) -> None:
        """Note that a thread is idle again."""
        with self._changed:
            self._idle += 1

    def _is_over(self) -> bool:
        return self._is_closed or self._broken is not None

    def watch(self, sandbox: Sandbox) -> None:
        """Remember a sandbox that was just started; stop it if the pool was closed meanwhile."""
        with self._changed:
            self._sandboxes.add(sandbox)
            is_late = self._is_closed
        if is_late:
            sandbox.stop()

    def forget(self, sandboxes: set[Sandbox]) -> None:
        """Forget sandboxes that are gone."""
        with self._changed:
            self._sandboxes -= sandboxes

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def break_down(self, error: SandboxUnavailable) -> None:
        """Let every caller, waiting or to come, know that the machine cannot go on."""
        with self._changed:
            self._broken = error
            waiting, self._jobs = list(self._jobs), deque()
            self._changed.notify_all()
        for job in waiting:
            job.future.set_exception(error)

    def close(self) -> None:
        """End everything, except from a forked child: the processes are its parent's."""
        if self._process_id != os.getpid():
            return
        with self._changed:
            self._is_closed = True
            waiting, self._jobs = list(self._jobs), deque()
            running = list(self._sandboxes)
            self._changed.notify_all()
        for job in waiting:
            job.future.set_result(_CLOSED)
        for sandbox in running:
            sandbox.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


class _Driver:
    """The thread of one process."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._process: MetricProcess | None = None
        self._started: set[Sandbox] = set()
        self._failed_starts = 0

    def run(self) -> None:
        try:
            while jobs := self._state.take():
                self._grade(jobs)
                self._state.give_back()
        finally:
            self._end()

    def _grade(self, jobs: list[_Job]) -> None:
        """Bring every job to its end, whatever happens."""
        left = deque(jobs)
        try:
            while left:
                self._grade_some(left)
        except SandboxUnavailable as error:
            self._state.break_down(error)
            for job in left:
                job.future.set_exception(error)
        except BaseException as error:  # ours: no caller may wait for ever
            for job in left:
                job.future.set_exception(error)
            self._end()
            log.exception("the thread of a metric's process failed")

    def _grade_some(self, left: deque[_Job]) -> None:
        """Grade from the left as many as one process can; at least one, unless a start failed."""
        if self._state.is_closed:
            while left:
                left.popleft().future.set_result(_CLOSED)
            return
        try:
            process = self._process = self._process or self._start()
        except LoadFailed as error:
            self._end()
            left.popleft().future.set_result(Score(None, "load", str(error)))
            return
        if process is None:
            return
        process.grade([job.pair for job in left], lambda _, score: left.popleft().future.set_result(self._told(score)))
        if not process.is_usable:
            self._end()

    def _told(self, score: Score) -> Score:
        return _CLOSED if self._state.is_closed and score.failure else score

    def _start(self) -> MetricProcess | None:
        """Start a process; None for a start that failed, until it was one too many."""
        try:
            process = MetricProcess(self._state.metric, self._state.limits, check=False, watch=self._watch)
        except SandboxUnavailable as error:
            self._end()
            self._failed_starts += 1
            log.warning("a sandbox for a metric did not start: %s", error)
            if self._failed_starts >= _MOST_FAILED_STARTS and not self._state.is_closed:
                raise
            return None
        self._failed_starts = 0
        return process

    def _watch(self, sandbox: Sandbox) -> None:
        self._started.add(sandbox)
        self._state.watch(sandbox)

    def _end(self) -> None:
        if self._process:
            self._process.kill()
            self._process = None
        self._state.forget(self._started)
        self._started = set()
