"""One process's work on a run: its clock, its journal, the signals that stop it, and whom it tells how far it is."""

import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from ratchet.engine.budget import TimeBudget
from ratchet.engine.checkpoint import Progress
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.rounds import When
from ratchet.engine.sampler import Sampled, Sampler, SampleRequest
from ratchet.errors import Interrupted, StopReason
from ratchet.run_folder import RunFolder


@dataclass
class Watch:
    """What someone may want to see of a run under way. Every function may be left as it is."""

    on_event: Callable[[dict[str, Any]], None] = lambda event: None
    on_progress: Callable[[str, int, int], None] = lambda phase, done, total: None


def _counted(watch: Watch, progressed: Callable[[], None]) -> Watch:
    """Return a watch that counts what it is told of, before it passes it on."""

    def on_event(event: dict[str, Any]) -> None:
        progressed()
        watch.on_event(event)

    def on_progress(phase: str, done: int, total: int) -> None:
        progressed()
        watch.on_progress(phase, done, total)

    return Watch(on_event, on_progress)


@dataclass
class Session:
    """One process's work on a run.

    Attributes:
        progress_count: Goes up with every sign of life, see ``progressed``.
        writing: Held while a round or an event is written, so that whoever ends the run from another thread does not
            do so in the middle.
    """

    folder: RunFolder
    watch: Watch
    budget: TimeBudget
    progress: Progress | None = None
    heldout_before: float | None = None
    heldout_after: float | None = None
    stop_asked: threading.Event = field(default_factory=threading.Event)
    is_started: bool = False
    phase_seconds: dict[str, float] = field(default_factory=dict)
    progress_count: int = 0
    writing: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.watch = _counted(self.watch, self.progressed)

    def progressed(self) -> None:
        """Count a sign of life: an event, an answer written or graded, a question whether to go on.

        Whoever sees the count stand still for long may take the worker for hung. Two threads that count at once may
        count as one: what matters is that the number moves.
        """
        self.progress_count += 1

    def start(self, *, resumed: bool) -> None:
        """Enter the session in the journal: from now on, how it ends is how the run ends."""
        self.event("started", run=self.folder.run_id, resumed=resumed)
        self.is_started = True

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what comes before round 0, to name what took the time if there was too little."""
        started = self.budget.elapsed
        try:
            yield
        finally:
            self.phase_seconds[name] = self.budget.elapsed - started

    def event(self, kind: str, **fields: Any) -> None:
        """Enter an event in the journal and tell whoever watches."""
        with self.writing:
            event = self.folder.append_event(kind, **fields)
        self.watch.on_event(event)

    def why_stop(self, when: When) -> StopReason | None:
        """Say why no other round may start, or why the one under way is given up; None while all is well."""
        self.progressed()
        if self.stop_asked.is_set():
            return "stopped"
        over = self.budget.is_over if when == "within" else not self.budget.allows_a_round
        return self.budget.reason if over else None

    def check(self) -> None:
        """Give up what comes before the first round where time is over or somebody asked to stop."""
        if reason := self.why_stop("within"):
            raise Interrupted("Given up before the first round.", reason)


class CountingSampler:
    """A sampler that tells how many answers are finished."""

    def __init__(self, sampler: Sampler, watch: Watch) -> None:
        self._sampler = sampler
        self._watch = watch

    def sample(
        self,
        requests: Sequence[SampleRequest],
        settings: SamplingSettings,
        max_answer_tokens: int,
        check: Callable[[], None],
    ) -> Generator[Sampled]:
        """Yield what the sampler yields, and tell of each."""
        total = sum(request.answers for request in requests)
        phase = "scoring" if settings.greedy else "sampling"
        self._watch.on_progress(phase, 0, total)
        with closing(self._sampler.sample(requests, settings, max_answer_tokens, check)) as stream:
            for done, sampled in enumerate(stream, start=1):
                yield sampled
                self._watch.on_progress(phase, done, total)
        self._watch.on_progress("updating" if phase == "sampling" else "scored", 0, 0)

    def rest(self) -> None:
        """As the sampler's own."""
        self._sampler.rest()

    def close(self) -> None:
        """As the sampler's own."""
        self._sampler.close()


@contextmanager
def signals(session: Session) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run in good order; a second SIGINT ends the process at once."""

    def ask(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and session.stop_asked.is_set():
            raise KeyboardInterrupt
        session.stop_asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
