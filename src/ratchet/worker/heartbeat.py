"""The heartbeat: a thread of the worker that says what it is at.

Replaces ``heartbeat.json`` about once a second while something changes and every five seconds otherwise. ``progress``
counts signs of life of the work itself: whoever sees it stand still while the file is replaced knows that the process
lives and its work hangs. The thread also keeps ``worker.log`` short.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from ratchet.run.events import Event, Listener, RoundDone, RunEnded, RunPhase, Saving
from ratchet.run.log_files import rotate
from ratchet.run.processes import Process
from ratchet.run.run_folder import RunFolder
from ratchet.worker.session import Session

_EVERY_SECONDS = 1.0
_QUIET_BEATS = 5  # of which one is written while nothing changes


@dataclass
class _At:
    """What the work is at."""

    phase: RunPhase = "starting"
    done: int = 0
    total: int = 0
    round: int | None = None


class Heartbeat:
    """Says what a session is at; ``listener`` is one of the session's."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._at = _At()
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
            now = (self._at.phase, self._at.done, self._at.total, self._at.round, session.progress_count)
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
            **vars(self._at),
            "progress": progress,
        }
        path = self._folder.heartbeat_path
        temporary = path.with_name(f".{path.name}.tmp")
        # Not synced: after a reboot nobody asks what a process that is gone was at. A full disk ends no run by this.
        with suppress(OSError):
            temporary.write_text(json.dumps(content), encoding="utf-8")
            os.rename(temporary, path)

    def _on_event(self, event: Event) -> None:
        match event:
            case RoundDone(record=record):
                self._at.round = record.round + 1
            case Saving() | RunEnded():
                self._on_progress(event.event, 0, 0)

    def _on_progress(self, phase: RunPhase, done: int, total: int) -> None:
        self._at.phase, self._at.done, self._at.total = phase, done, total
