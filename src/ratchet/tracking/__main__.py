"""``python -m ratchet.tracking NAME FOLDER``: follow a run's journal and write its rounds to one tracker.

Ends when its standard input does, which is when the worker has finished or died; a line there says how the run ended.
What is written to its output is the tracker's log in the run folder.
"""

import fcntl
import json
import select
import sys
from pathlib import Path
from typing import Any, cast

from ratchet.config import Tracker
from ratchet.files import write_atomically
from ratchet.run.events import RoundDone
from ratchet.run.journal import read_from
from ratchet.run.run_folder import RunFolder
from ratchet.tracking.trackers import TrackedRun, Tracking, numbers_of, opened, settings_of

_POLL_SECONDS = 0.5
_SUCCEEDED = ("completed", "stopped_early")


def main() -> None:
    """Follow the run to its end."""
    tracker, folder = cast(Tracker, sys.argv[1]), RunFolder(Path(sys.argv[2]))
    state = folder.tracker_state(tracker)
    with state.with_suffix(".lock").open("w") as lock:
        # A run that was killed and resumed at once: the tracker of its last session still writes what that had.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _follow(tracker, folder, state)


def _follow(tracker: Tracker, folder: RunFolder, state: Path) -> None:
    kept: dict[str, Any] = json.loads(state.read_text(encoding="utf-8")) if state.exists() else {}
    config = folder.read_config()
    settings = settings_of(config)
    run = TrackedRun(folder.run_id, config.project or "ratchet", settings, state.parent, kept.get("kept", {}))
    tracking = opened(tracker, run)
    last = tracking.last_round()
    following = _Following(folder, tracking, state, kept.get("last_round", -1) if last is None else last)
    following.write_state()
    status = ""
    while not status:
        is_over = bool(select.select([sys.stdin], [], [], _POLL_SECONDS)[0])
        following.catch_up()
        if is_over:
            status = sys.stdin.readline().strip() or "interrupted"
    following.catch_up()
    tracking.close(succeeded=status in _SUCCEEDED)


class _Following:
    """Where the tracker is in the run's journal."""

    def __init__(self, folder: RunFolder, tracking: Tracking, state: Path, last_round: int) -> None:
        self._events_path = folder.events_path
        self._tracking = tracking
        self._state = state
        self._last_round = last_round
        self._offset = 0

    def catch_up(self) -> None:
        """Write the rounds that are in the journal and not yet in the tracker."""
        for event, offset in read_from(self._events_path, self._offset):
            self._offset = offset
            if isinstance(event, RoundDone) and event.record.round > self._last_round:
                record = event.record
                self._tracking.log(record.round, numbers_of(record), event.time.timestamp())
                self._last_round = record.round
                self.write_state()

    def write_state(self) -> None:
        """Record how far the tracker is: a later session continues from there, and the worker sees that it is alive."""
        state = {"last_round": self._last_round, "kept": self._tracking.keep()}
        write_atomically(self._state, json.dumps(state).encode())


if __name__ == "__main__":
    main()
