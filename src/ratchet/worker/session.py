"""One process's work on a run: its clock, its journal, the signals that stop it, and whom it tells how far it is."""

import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import FrameType

from ratchet.engine.budget import TimeBudget
from ratchet.engine.build import EngineBudgets
from ratchet.engine.checkpoint import Progress
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.round_parts import When
from ratchet.engine.sampler import Sampled, Sampler, SampleRequest
from ratchet.errors import Interrupted, StopReason
from ratchet.run.endings import Ending, RunStatus
from ratchet.run.events import Event, Listener, Note, OnProgress, RunEnded, RunPhase, RunStarted
from ratchet.run.records import RunResult
from ratchet.run.run_folder import RunFolder
from ratchet.worker.tracker_processes import Trackers

# Phases in which answers are written, or given ones learned from: setting up is over.
_ANSWERING: tuple[RunPhase, ...] = ("sampling", "scoring", "training")
_SECONDS_BETWEEN_LOOKS = 1.0


@dataclass
class Session:
    """One process's work on a run.

    Attributes:
        progress_count: Goes up with every sign of life, see ``progressed``.
        writing: Held while a round or an event is written, so that whoever ends the run from another thread does not
            do so in the middle.
        is_setting_up: True until the first answer is asked for: nothing tells how far loading is.
        stalled: What the watchdog says of a run that stands still; empty while all is well.
        doing: What the run is at.
        listeners: Whom to tell of events and progress, in this order.
        handles_signals: Whether signals reach ``stop_asked``: not in a thread of somebody else's.
        plan: What was fixed for the run, once the model is loaded.
    """

    folder: RunFolder
    budget: TimeBudget
    listeners: list[Listener] = field(default_factory=list)
    progress: Progress | None = None
    heldout_before: float | None = None
    heldout_after: float | None = None
    stop_asked: threading.Event = field(default_factory=threading.Event)
    is_started: bool = False
    artifacts_url: str = ""  # where the storage has files of the run; set when they were sent
    phase_seconds: dict[RunPhase, float] = field(default_factory=dict)
    progress_count: int = 0
    is_setting_up: bool = True
    stalled: str = ""
    doing: RunPhase = "starting"
    handles_signals: bool = False
    plan: EngineBudgets | None = None
    trackers: Trackers | None = None
    writing: threading.RLock = field(default_factory=threading.RLock)
    _next_look: float = 0.0

    def progressed(self) -> None:
        """Count a sign of life: an event, an answer written or graded, a question whether to go on.

        Whoever sees the count stand still for long may take the worker for hung. Two threads that count at once may
        count as one: what matters is that the number moves.
        """
        self.progress_count += 1

    def start(self, *, resumed: bool) -> None:
        """Enter the session in the journal: from now on, how it ends is how the run ends."""
        self.folder.hold_reserve()
        self.event(RunStarted(run=self.folder.run_id, resumed=resumed))
        self.is_started = True

    @contextmanager
    def phase(self, name: RunPhase) -> Iterator[None]:
        """Time what comes before round 0, to name what took the time if there was too little."""
        started = self.budget.elapsed
        self.doing = name
        try:
            yield
        finally:
            self.phase_seconds[name] = self.budget.elapsed - started

    def event(self, event: Event) -> None:
        """Write an event to the journal and tell the listeners."""
        with self.writing:
            written = self.folder.append_event(event)
        self.progressed()
        for listener in self.listeners:
            listener.on_event(written)

    def note(self, text: str) -> None:
        """Write a note to the journal and tell the listeners."""
        self.event(Note(text=text))

    def on_progress(self, phase: RunPhase, done: int, total: int) -> None:
        """Tell the listeners how much of a phase is done."""
        self.progressed()
        self.is_setting_up = self.is_setting_up and phase not in _ANSWERING
        self.doing = phase
        for listener in self.listeners:
            listener.on_progress(phase, done, total)

    def on_hard_end(self, event: RunEnded) -> None:
        """Tell the listeners how the run ended, where the process is about to exit."""
        for listener in self.listeners:
            listener.on_hard_end(event)

    def why_stop(self, when: When) -> StopReason | None:
        """Why no other round may start, or why the one under way is given up; None while all is well."""
        self.progressed()
        if self.stalled:
            return "stalled"
        if self.stop_asked.is_set() or self._is_stop_written():
            return "stopped"
        over = self.budget.is_over if when == "within" else not self.budget.allows_a_round
        return self.budget.reason if over else None

    def _is_stop_written(self) -> bool:
        """Whether somebody asked to stop by the file; looks about once a second."""
        if (now := time.monotonic()) >= self._next_look:
            self._next_look = now + _SECONDS_BETWEEN_LOOKS
            if self.folder.stop_path.exists():
                self.stop_asked.set()
        return self.stop_asked.is_set()

    def end_without_adapter(self, status: RunStatus, ending: Ending, message: str) -> RunResult:
        """Write the closing event of a trial or an evaluation and return the result."""
        folder, seconds = self.folder, round(self.budget.elapsed, 3)
        result = RunResult(
            run=folder.run_id,
            folder=str(folder.path),
            status=status,
            ending=ending,
            message=message,
            rounds_done=0,
            seconds=seconds,
        )
        self.event(RunEnded.of(result, None))
        folder.log(f"{folder.kind} ended ending={ending} seconds={seconds}")
        return result

    def check(self) -> None:
        """Give up what comes before the first round where time is over or somebody asked to stop."""
        if reason := self.why_stop("within"):
            raise Interrupted("Given up before the first round.", reason)


class CountingSampler:
    """A sampler that tells how many answers are finished."""

    def __init__(self, sampler: Sampler, on_progress: OnProgress) -> None:
        self._sampler = sampler
        self._on_progress = on_progress

    def sample(
        self,
        requests: Sequence[SampleRequest],
        settings: SamplingSettings,
        max_answer_tokens: int,
        check: Callable[[], None],
    ) -> Generator[Sampled]:
        """Yield what the sampler yields, and tell of each."""
        total = sum(request.answers for request in requests)
        phase: RunPhase = "scoring" if settings.greedy else "sampling"
        self._on_progress(phase, 0, total)
        with closing(self._sampler.sample(requests, settings, max_answer_tokens, check)) as stream:
            for done, sampled in enumerate(stream, start=1):
                yield sampled
                self._on_progress(phase, done, total)
        # Grading may take longer than sampling; nothing is sampled any more.
        self._on_progress("grading" if phase == "sampling" else "scored", 0, 0)

    def rest(self) -> None:
        """As the sampler's own: the update comes next."""
        self._sampler.rest()
        self._on_progress("updating", 0, 0)

    def close(self) -> None:
        """As the sampler's own."""
        self._sampler.close()


@contextmanager
def signals(session: Session) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP stop the run cleanly; a second SIGINT ends the process at once.

    Under ``nohup`` SIGHUP stays ignored. Of a stalled session the signal is the watchdog's: it ends what is waited for.
    """

    def ask(number: int, frame: FrameType | None) -> None:
        if session.stalled:
            raise Interrupted(session.stalled, "stalled")
        if number == signal.SIGINT and session.stop_asked.is_set():
            raise KeyboardInterrupt
        session.stop_asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, ask) for number in numbers}
    session.handles_signals = True
    try:
        yield
    finally:
        session.handles_signals = False
        for number, handler in previous.items():
            signal.signal(number, handler)
