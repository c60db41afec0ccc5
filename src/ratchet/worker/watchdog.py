"""Two threads beside the work: the heartbeat says what it is at, and the watchdog ends a run that stands still.

The heartbeat replaces ``heartbeat.json`` about once a second while something changes and every five seconds otherwise.
``progress`` counts signs of life of the work itself: whoever sees it stand still while the file is replaced knows that
the process lives and its work hangs. The thread also keeps ``worker.log`` short.

A run that makes no progress for its stall limit ends with its best adapter, also one that hangs. Signs of life are:
every event; every answer written, graded or asked for; every question whether to go on, which sampler and update ask
between decoding steps and between micro-batches. While a run sets up (data, model, budgets: nothing asks there) it also
counts that the process reads or fills memory, at least a megabyte in each look: a long load moves, one that hangs does
not. Processor time never counts: waiting for a dead GPU takes all of it. Where the main thread still answers, the run
stops cleanly: a signal tells it, which also wakes it from waiting. Where it does not, hung in native code, the watchdog
closes the run from outside and ends the whole process with the exit code of the task: nothing less stops native code.
"""

import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ratchet.files import own_opener
from ratchet.run.display import counted
from ratchet.run.end_stalled_run import close_stalled_run
from ratchet.run.events import PHASE_WORDS, Event, Listener, RoundDone, RunEnded, RunPhase, Saving
from ratchet.run.log_files import rotate
from ratchet.run.processes import Process
from ratchet.run.run_folder import RunFolder
from ratchet.worker.session import Session

# As the command line's for a fault of metric, machine or task (cli/__init__.py, tested equal).
EXIT_TASK = 4
_MOST_SECONDS_BETWEEN_LOOKS = 10.0
# Time that the main thread has to stop cleanly, and then to release the lock and tell the listeners.
_ORDERLY_SECONDS = 30.0
_LAST_WORDS_SECONDS = 5.0
_WORTH_NOTING_BYTES = 1 << 20
_EVERY_SECONDS = 1.0
_QUIET_BEATS = 5  # of which one is written while nothing changes


@contextmanager
def watched(session: Session, stall_minutes: float) -> Iterator[None]:
    """Watch over a session inside the block; a run that stands still for so long ends as stalled."""
    over = threading.Event()
    watchdog = Watchdog(session, stall_minutes * 60, threading.current_thread(), over.wait)
    thread = threading.Thread(target=watchdog.look, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


class Watchdog:
    """What looks at a session and ends its run.

    Args:
        session: What is watched.
        limit_seconds: How long it may stand still.
        worker: The thread that works on the run.
        sleep: Waits so many seconds and tells whether the run is over.
        now: A clock in seconds.
    """

    def __init__(
        self,
        session: Session,
        limit_seconds: float,
        worker: threading.Thread,
        sleep: Callable[[float], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._limit = limit_seconds
        self._worker = worker
        self._sleep = sleep
        self._now = now

    def look(self) -> None:
        """Look again and again until the run is over; end it once it has stood still for too long."""
        pause = min(_MOST_SECONDS_BETWEEN_LOOKS, self._limit / 20)
        count, moved, still, looked = self._session.progress_count, moved_bytes(), 0.0, self._now()
        while not self._sleep(pause):
            now = self._now()
            # A process that was paused has not stood still while it was: no look counts for much more than it waited.
            still += min(now - looked, 2 * pause)
            looked = now
            bytes_now = moved_bytes()
            is_loading = self._session.is_setting_up and bytes_now - moved >= _WORTH_NOTING_BYTES
            if is_loading:
                self._session.progressed()  # so that whoever looks from outside sees it too
            if self._session.progress_count != count:
                still = 0.0
            count, moved = self._session.progress_count, bytes_now
            if still >= self._limit:
                self.end()
                return

    def end(self) -> None:
        """End the run: cleanly where the worker answers, else from outside and with the process."""
        session = self._session
        doing = PHASE_WORDS[session.doing].capitalize()
        session.stalled = f"{doing} made no progress for {counted(self._limit / 60, 'minute')} (Stall limit)."
        with suppress(OSError, ValueError):
            session.folder.log(f"stalled at {_place(self._worker)}")
        if self._worker is threading.main_thread() and session.handles_signals:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        if self._ends_by_itself():
            return
        # Taken so that the run is not closed in the middle of a write; not waited for where the write is what hangs.
        session.writing.acquire(timeout=_LAST_WORDS_SECONDS)
        event = close_stalled_run(session.folder, "stalled", session.stalled, seconds=session.budget.elapsed)
        last_words = threading.Thread(target=lambda: session.on_hard_end(event), daemon=True)
        last_words.start()
        last_words.join(_LAST_WORDS_SECONDS)
        os._exit(EXIT_TASK)

    def _ends_by_itself(self) -> bool:
        """Wait for a clean stop as long as it makes progress: what closing takes has bounds of its own."""
        while True:
            count = self._session.progress_count
            if self._sleep(min(_ORDERLY_SECONDS, self._limit)):
                return True
            if self._session.progress_count == count:
                return False


def moved_bytes() -> int:
    """How much this process has read and how much memory it has begun to use, ever."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    faults = (usage.ru_minflt + usage.ru_majflt) * resource.getpagesize()
    try:
        read = int(Path("/proc/self/io").read_text().split()[1])  # rchar: what read() returned
    except (OSError, ValueError, IndexError):
        read = usage.ru_inblock * 512
    return faults + read


def _place(thread: threading.Thread) -> str:
    """Where a thread is, innermost first: files, lines and functions, no values."""
    frame = sys._current_frames().get(thread.ident or 0)
    frames = reversed(traceback.extract_stack(frame)) if frame else ()
    return " < ".join(f"{Path(f.filename).name}:{f.lineno}:{f.name}" for f in frames) or "nowhere"


class Heartbeat:
    """Says what a session is at; ``listener`` is one of the session's."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._at: dict[str, Any] = {"phase": "starting", "done": 0, "total": 0, "round": None}
        self._over = threading.Event()
        self.listener = Listener(self._on_event, self._on_progress)

    @contextmanager
    def beating(self, session: Session) -> Iterator[None]:
        """Beat for a session inside the block."""
        thread = threading.Thread(target=self._beat, args=[session], name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _beat(self, session: Session) -> None:
        own, last, quiet = Process.own(), None, _QUIET_BEATS
        while True:
            now = (*self._at.values(), session.progress_count)
            quiet += 1
            if now != last or quiet >= _QUIET_BEATS:
                self._write(own, session.progress_count)
                last, quiet = now, 0
            if self._over.wait(_EVERY_SECONDS):
                self._write(own, session.progress_count)
                return
            rotate(self._folder.worker_log_path)

    def _write(self, own: Process, progress: int) -> None:
        content = {
            "pid": own.pid,
            "process_started": own.started,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **self._at,
            "progress": progress,
        }
        path = self._folder.heartbeat_path
        temporary = path.with_name(f".{path.name}.tmp")
        # Not synced: after a reboot nobody asks what a process that is gone was at. A full disk ends no run by this.
        with suppress(OSError):
            with open(temporary, "w", encoding="utf-8", opener=own_opener) as file:
                file.write(json.dumps(content))
            os.rename(temporary, path)

    def _on_event(self, event: Event) -> None:
        match event:
            case RoundDone(record=record):
                self._at["round"] = record.round + 1
            case Saving() | RunEnded():
                self._on_progress(event.event, 0, 0)

    def _on_progress(self, phase: RunPhase, done: int, total: int) -> None:
        self._at |= {"phase": phase, "done": done, "total": total}
