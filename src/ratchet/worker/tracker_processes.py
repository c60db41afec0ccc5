"""The trackers of a run, as its worker sees them: one process each, started, watched, and dropped where it fails.

What a tracker writes is ``ratchet/tracking``. A tracker never ends a run and holds it up for a moment at most: one that
fails or hangs is noted once, and the run goes on without it.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from ratchet.config import Tracker
from ratchet.files import own_python
from ratchet.run.endings import RunStatus
from ratchet.run.run_folder import RunFolder
from ratchet.tracking.trackers import environment

# A round that a tracker has not written by then will not be written: libraries start within half a minute.
STUCK_SECONDS = 120.0
# How long the end of a run waits for its trackers, all of them together.
CLOSING_SECONDS = 30.0


class _Started(NamedTuple):
    process: subprocess.Popen[bytes]
    log_name: str

    def close_input(self, last_words: bytes = b"") -> None:
        """Let the tracker stop on its own."""
        if self.process.stdin and not self.process.stdin.closed:
            with suppress(OSError):  # it is gone already
                self.process.stdin.write(last_words)
                self.process.stdin.close()


class Trackers:
    """The trackers of one session. Nothing is started before the first round is there.

    Args:
        folder: The run.
        names: Which trackers its settings name.
        note: Told, in a sentence, what happened to which.
    """

    def __init__(self, folder: RunFolder, names: Sequence[Tracker], note: Callable[[Tracker, str], None]) -> None:
        self._folder = folder
        self._note = note
        self._left = list(names)
        self._running: dict[Tracker, _Started] = {}
        self._rounds: list[tuple[int, float]] = []

    def look(self, number: int) -> None:
        """After a round is in the journal: start what is not started yet, drop what failed or is stuck."""
        self._rounds.append((number, time.monotonic()))
        for name in self._left:
            self._start(name)
        self._left = []
        for name, started in list(self._running.items()):
            if started.process.poll() is not None:
                self._drop(name, "failed")
            elif self._is_stuck(name):
                self._drop(name, "hangs")

    def finish(self, status: RunStatus, on_wait: Callable[[], None]) -> None:
        """Tell every tracker how the run ended, and wait for them for a while; ``on_wait`` is called meanwhile."""
        until = time.monotonic() + CLOSING_SECONDS
        for started in self._running.values():
            started.close_input(f"{status}\n".encode())
        for name, started in list(self._running.items()):
            while (code := started.process.poll()) is None and time.monotonic() < until:
                on_wait()
                with suppress(subprocess.TimeoutExpired):
                    started.process.wait(min(1.0, max(0.0, until - time.monotonic())))
            if code is None:
                self._drop(name, "hangs")
            elif code:
                self._drop(name, "failed")
        self._running = {}

    def let_go(self) -> None:
        """Leave the trackers to stop on their own, as where a second Ctrl-C ends the session but not the process."""
        for started in self._running.values():
            started.close_input()
            threading.Thread(target=started.process.wait, daemon=True).start()
        self._running = {}

    def _start(self, name: Tracker) -> None:
        state = self._folder.tracker_state(name)
        try:
            state.parent.mkdir(mode=0o700, exist_ok=True)
            with state.with_suffix(".log").open("ab") as log:
                process = subprocess.Popen(
                    own_python("-m", "ratchet.tracking", name, str(self._folder.path)),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=environment(state.parent),
                    start_new_session=True,  # a Ctrl-C is for the worker, which tells its trackers
                )
        except OSError as error:
            self._note(name, f"Tracker {name} cannot be started ({error.strerror}); the run continues without it.")
            return
        self._running[name] = _Started(process, f"{state.parent.name}/{name}.log")

    def _is_stuck(self, name: Tracker) -> bool:
        """Whether a round waits for a tracker for longer than it could take."""
        written = -1
        with suppress(OSError, ValueError):
            written = int(json.loads(self._folder.tracker_state(name).read_bytes())["last_round"])
        now = time.monotonic()
        return any(number > written and now - at > STUCK_SECONDS for number, at in self._rounds)

    def _drop(self, name: Tracker, what: str) -> None:
        started = self._running.pop(name)
        started.close_input()
        if started.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(started.process.pid, signal.SIGKILL)
            started.process.wait()
        self._note(name, f"Tracker {name} {what} and is left out; the run continues. Its log: {started.log_name}.")
