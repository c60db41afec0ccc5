"""When the watchdog takes a run for stalled, with a clock of our own; and a worker that hangs in native code, for real."""

import json
import mmap
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from ratchet.run.run_folder import RunFolder
from ratchet.worker import watchdog
from ratchet.worker.watchdog import Watchdog

from ..small_runs import adapter_bytes, ended, records, small


class Watched:
    """A session as far as the watchdog sees it, moved by a script: what happens in each look, of three seconds."""

    def __init__(self, monkeypatch, script, *, is_setting_up=False, pause=3.0):
        self.progress_count = 0
        self.is_setting_up = is_setting_up
        self.seconds, self.bytes, self.looks = 100.0, 0, 0
        self.ended_at = None
        self._script, self._pause = script, pause
        monkeypatch.setattr(watchdog, "moved_bytes", lambda: self.bytes)
        monkeypatch.setattr(Watchdog, "end", self._end)

    def progressed(self):
        self.progress_count += 1

    def _end(self, _=None):
        self.ended_at = self.looks

    def sleep(self, seconds):
        assert seconds == 3.0  # a twentieth of the limit
        self.looks += 1
        self.seconds += self._pause
        self._script(self)
        return self.looks == 200

    def run(self):
        Watchdog(self, 60.0, threading.current_thread(), self.sleep, lambda: self.seconds).look()
        return self.ended_at


def test_a_run_that_stands_still_for_its_limit_is_ended(monkeypatch):
    assert Watched(monkeypatch, lambda session: None).run() == 20  # 20 looks of 3 s


def test_a_sign_of_life_starts_the_count_anew(monkeypatch):
    def script(session):
        session.progress_count += session.looks in (15, 30)

    assert Watched(monkeypatch, script).run() == 50


def test_a_long_step_that_asks_whether_to_go_on_is_no_stall(monkeypatch):
    def script(session):
        session.progress_count += session.looks % 19 == 0  # every 57 s

    assert Watched(monkeypatch, script).run() is None


@pytest.mark.parametrize(
    ("moved", "is_setting_up", "ends"), [(2 << 20, True, None), (2 << 20, False, 20), (1000, True, 20)]
)
def test_memory_that_fills_counts_as_progress_while_the_model_loads_and_then_alone(
    moved, is_setting_up, ends, monkeypatch
):
    def script(session):
        session.bytes += moved

    assert Watched(monkeypatch, script, is_setting_up=is_setting_up).run() == ends


def test_a_process_that_was_paused_has_not_stood_still_meanwhile(monkeypatch):
    def script(session):
        if session.looks == 3:
            session.seconds += 10_000.0

    assert Watched(monkeypatch, script).run() == 19  # the pause counts as one look more


def test_reading_and_filling_memory_move_the_bytes(tmp_path):
    with mmap.mmap(-1, 8 << 20) as block:  # memory that nobody had before, in small pages
        with suppress(OSError):  # a kernel without large pages
            block.madvise(mmap.MADV_NOHUGEPAGE)
        before = watchdog.moved_bytes()
        for start in range(0, len(block), mmap.PAGESIZE):
            block[start] = 1
        assert watchdog.moved_bytes() - before >= 8 << 20
    (tmp_path / "file").write_bytes(bytes(4 << 20))
    before = watchdog.moved_bytes()
    (tmp_path / "file").read_bytes()
    assert watchdog.moved_bytes() - before >= 4 << 20


# A mutex that is locked twice by the same thread: no signal ends that wait.
HANGS = """# forked
import ctypes, sys
from pathlib import Path
from ratchet import worker
from ratchet.run.run_folder import RunFolder
from ratchet.worker import watchdog

seen, dogs = [], []
watchdog._MOST_SECONDS_BETWEEN_LOOKS = 0.1

class Dog(watchdog.Watchdog):
    def __init__(self, *given):
        super().__init__(*given)
        dogs.append(self)

watchdog.Watchdog = Dog

def on_progress(phase, done, total):
    if phase == "updating":
        seen.append(phase)
        if len(seen) == 2:
            dogs[0]._limit = 3.0  # only now: a busy machine may stand still for longer while it loads
            mutex = ctypes.create_string_buffer(64)
            lock = ctypes.CDLL(None).pthread_mutex_lock
            lock(mutex)
            lock(mutex)

def on_hard_end(event):
    print(event.ending, flush=True)

worker.run(RunFolder(Path(sys.argv[1])), listeners=[worker.Listener(on_progress=on_progress, on_hard_end=on_hard_end)])
"""


@pytest.mark.slow
def test_a_worker_that_hangs_in_native_code_is_closed_from_outside_and_its_process_ends(tmp_path):
    folder = RunFolder.create(small(heldout=0), tmp_path / "run")
    done = subprocess.run([sys.executable, "-c", HANGS, str(folder.path)], capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout) == (4, "stalled\n"), done.stderr
    event = ended(folder)
    assert (event["status"], event["ending"], event["rounds_done"]) == ("stopped_early", "stalled", 1)
    assert event["best_round"] == records(folder)[-1]["best_round"]
    assert event["message"].startswith(
        "Updating the adapter made no progress for 0.05 minutes (Stall limit). 1 of 3 rounds done."
    )
    assert "raise Stall limit" in event["message"]
    assert event["seconds"] > 3
    assert adapter_bytes(folder)
    assert "stalled at" in folder.log_path.read_text()
    assert json.loads((folder.adapter_path / "adapter_config.json").read_text())["r"] == 8
