"""A pool of processes that can be killed and replaced, each driven by a thread, called from any number of threads.

Each process has a thread here that starts it, feeds it and ends it, since a sandbox lives no longer than the thread
that started it. Calls that wait while the processes are busy are taken together, up to a batch.

    a job's own failure          is its result; the process takes the next job
    the process ends or hangs    the job it was at fails; the rest of the batch goes to a new process
    it starts but cannot work    the job at hand takes that as its result, so that failures end the run and not a loop
    no process three times       SandboxUnavailable for every caller: the machine's fault, not a failure of a job

So each restart has cost a job, and no number of jobs makes more restarts than that.
"""

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from ratchet.errors import SandboxUnavailable

log = logging.getLogger(__name__)

_MOST_FAILED_STARTS = 3

Job = TypeVar("Job")
Result = TypeVar("Result")
JobIn = TypeVar("JobIn", contravariant=True)
ResultOut = TypeVar("ResultOut", covariant=True)


class Stoppable(Protocol):
    """What another thread may stop: the process of a worker, from the moment there is one."""

    def stop(self) -> None:
        """End the process. The worker's own thread sees that, and does the rest."""


class PoolWorker(Protocol[JobIn, ResultOut]):
    """A running process. Used by the thread that started it."""

    @property
    def is_usable(self) -> bool:
        """Whether it can be given the next job."""

    def work(self, jobs: Sequence[JobIn], report: Callable[[ResultOut], None]) -> None:
        """Report the results of jobs in their order; of fewer than all, at least one, when it is no longer usable."""

    def kill(self) -> None:
        """End it and wait until it is gone."""


class CannotWork(Exception, Generic[Result]):
    """A process started and cannot work; ``result`` is what the job at hand gets."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True)
class WorkerKind(Generic[Job, Result]):
    """What a pool is made of.

    Args:
        start: Makes a worker; tells of its process at once, to be able to stop it. Raises CannotWork or
            SandboxUnavailable.
        closed: What jobs get from a pool that was closed.
        is_failure: Whether a result is one that the end of the pool may have caused.
        batch: How many jobs a worker takes at a time.
        name: Of the threads.
    """

    start: Callable[[Callable[[Stoppable], None]], PoolWorker[Job, Result]]
    closed: Result
    is_failure: Callable[[Result], bool]
    batch: int
    name: str


class WorkerPool(Generic[Job, Result]):
    """Up to ``size`` workers, which start when they are first needed.

    ``close``, garbage collection and the end of the process end all of them. In a forked child it starts its own.
    """

    def __init__(self, kind: WorkerKind[Job, Result], size: int) -> None:
        self._kind, self._size = kind, size
        self._open()

    def results(self, jobs: Sequence[Job]) -> list[Result]:
        """Results of jobs, in their order.

        Raises:
            SandboxUnavailable: the processes do not start any more.
        """
        if self._process_id != os.getpid():
            self._open()
        return [future.result() for future in self._state.submit(jobs)]

    def close(self) -> None:
        """End all processes and wait for them. Jobs under way and later ones fail."""
        if self._process_id == os.getpid():
            self._state.close()

    def _open(self) -> None:
        self._process_id = os.getpid()
        self._state = _State(self._kind, self._size)
        weakref.finalize(self, self._state.close)


class _Pending(NamedTuple, Generic[Job, Result]):
    """A job that waits for its result."""

    job: Job
    future: "Future[Result]"


class _State(Generic[Job, Result]):
    """What the threads share. They hold this and not the pool, so that an abandoned pool can be collected."""

    def __init__(self, kind: WorkerKind[Job, Result], size: int) -> None:
        self.kind, self.size = kind, size
        self._process_id = os.getpid()
        self._changed = threading.Condition()  # the race: callers put jobs in while the threads take them out
        self._waiting: deque[_Pending[Job, Result]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._running: set[Stoppable] = set()
        self.is_closed = False
        self._broken: SandboxUnavailable | None = None

    def submit(self, jobs: Sequence[Job]) -> list[Future[Result]]:
        """Queue jobs, starting a thread for each that finds none idle, as far as there may be more."""
        submitted = [_Pending[Job, Result](job, Future()) for job in jobs]
        with self._changed:
            for one in submitted:
                if self._broken:
                    one.future.set_exception(self._broken)
                elif self.is_closed:
                    one.future.set_result(self.kind.closed)
                else:
                    self._waiting.append(one)
            while len(self._waiting) > self._idle and len(self._threads) < self.size:
                thread = threading.Thread(target=_Driver(self).run, name=self.kind.name, daemon=True)
                self._threads.append(thread)
                self._idle += 1
                thread.start()
            self._changed.notify(len(jobs))
        return [one.future for one in submitted]

    def take(self) -> list[_Pending[Job, Result]]:
        """Wait for jobs and take a batch of them; none when the pool is closed or broken."""
        with self._changed:
            while not self._waiting and not self._is_over():
                self._changed.wait()
            if self._is_over():
                return []
            self._idle -= 1
            # What is waiting is shared with the threads that could work, not taken by the first.
            fair = -(-len(self._waiting) // len(self._threads))
            return [self._waiting.popleft() for _ in range(min(self.kind.batch, fair))]

    def give_back(self) -> None:
        """Note that a thread is idle again."""
        with self._changed:
            self._idle += 1

    def _is_over(self) -> bool:
        return self.is_closed or self._broken is not None

    def watch(self, process: Stoppable) -> None:
        """Remember a process that was just started; stop it if the pool was closed meanwhile."""
        with self._changed:
            self._running.add(process)
            is_late = self.is_closed
        if is_late:
            process.stop()

    def forget(self, processes: set[Stoppable]) -> None:
        """Forget processes that are gone."""
        with self._changed:
            self._running -= processes

    def break_down(self, error: SandboxUnavailable) -> None:
        """Let every caller, waiting or to come, know that the machine cannot go on."""
        with self._changed:
            self._broken = error
            waiting, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        for one in waiting:
            one.future.set_exception(error)

    def close(self) -> None:
        """End everything, except from a forked child: the processes are its parent's."""
        if self._process_id != os.getpid():
            return
        with self._changed:
            self.is_closed = True
            waiting, self._waiting = list(self._waiting), deque()
            running = list(self._running)
            self._changed.notify_all()
        for one in waiting:
            one.future.set_result(self.kind.closed)
        for process in running:
            process.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


class _Driver(Generic[Job, Result]):
    """The thread of one process."""

    def __init__(self, state: _State[Job, Result]) -> None:
        self._state = state
        self._worker: PoolWorker[Job, Result] | None = None
        self._started: set[Stoppable] = set()
        self._failed_starts = 0

    def run(self) -> None:
        try:
            while jobs := self._state.take():
                self._finish(jobs)
                self._state.give_back()
        finally:
            self._end()

    def _finish(self, jobs: list[_Pending[Job, Result]]) -> None:
        """Bring every job to its end, whatever happens."""
        left = deque(jobs)
        try:
            while left:
                self._finish_some(left)
        except SandboxUnavailable as error:
            self._state.break_down(error)
            for one in left:
                one.future.set_exception(error)
        except BaseException as error:  # ours: no caller may wait for ever
            for one in left:
                one.future.set_exception(error)
            self._end()
            log.exception("the thread of a worker process failed")

    def _finish_some(self, left: deque[_Pending[Job, Result]]) -> None:
        """Finish from the left as many as one process can; at least one, unless a start failed."""
        if self._state.is_closed:
            while left:
                left.popleft().future.set_result(self._state.kind.closed)
            return
        if self._worker and not self._worker.is_usable:
            self._end()
        try:
            worker = self._worker = self._worker or self._start()
        except CannotWork as error:
            self._end()
            left.popleft().future.set_result(error.result)
            return
        if worker is None:
            return
        worker.work([one.job for one in left], lambda result: left.popleft().future.set_result(self._final(result)))
        if not worker.is_usable:
            self._end()

    def _final(self, result: Result) -> Result:
        kind = self._state.kind
        return kind.closed if self._state.is_closed and kind.is_failure(result) else result

    def _start(self) -> PoolWorker[Job, Result] | None:
        """Start a process; None for a start that failed, until it was one too many."""
        try:
            worker = self._state.kind.start(self._watch)
        except SandboxUnavailable as error:
            self._end()
            self._failed_starts += 1
            log.warning("a sandbox for a metric did not start: %s", error)
            if self._failed_starts >= _MOST_FAILED_STARTS and not self._state.is_closed:
                raise
            return None
        self._failed_starts = 0
        return worker

    def _watch(self, process: Stoppable) -> None:
        self._started.add(process)
        self._state.watch(process)

    def _end(self) -> None:
        if self._worker:
            self._worker.kill()
            self._worker = None
        self._state.forget(self._started)
        self._started = set()
