"""The scheduler: starts queued runs in free slots, follows them, and makes sure that each one ends.

One pass after another (``step``), each from the present state of the database, the run folders and the system. What is
remembered between two passes only saves look-ups or counts time, so that the scheduler may be killed at any moment: the
next one continues from the same files. A worker lives as long as its folder's lock is held, which is from before it is
started until it is gone. Workers are in sessions of their own and outlive the scheduler. There is one scheduler for a
RATCHET_HOME (``SchedulerHome``), with a name among those that share a database.
"""

import json
import logging
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import Conflict, RatchetError
from ratchet.files import check_room, disk_full_as_error, make_folder, ratchet_home, unusable_as_error, write_atomically
from ratchet.run import run_lock
from ratchet.run.display import counted
from ratchet.run.end_stalled_run import close_stalled_run
from ratchet.run.endings import AT_WORK, ENDS, Ending
from ratchet.run.processes import Process
from ratchet.run.run_folder import RunFolder
from ratchet.supervisor.executors import Death, Executor, MemoryKills, Worker, death, ended
from ratchet.supervisor.ingest import ingest
from ratchet.supervisor.slots import Slot, environment_of, fits

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun


log = logging.getLogger(__name__)

_ROOM_BYTES = 8 << 20  # without so much a worker could not even say that the disk is full
_HOME_ADVICE = "Set RATCHET_HOME to a folder that can be written to."


@dataclass(frozen=True)
class Pace:
    """How often the scheduler looks, and how long it waits.

    Attributes:
        poll_seconds: Between two passes.
        stop_seconds: For a worker to stop cleanly before it is killed.
        stall_seconds: Beyond a run's own stall limit, which its worker's watchdog enforces, before it is killed.
        deaths: In a row, without a finished round between them, after which a run ends.
    """

    poll_seconds: float = 0.5
    stop_seconds: float = 180.0
    stall_seconds: float = 120.0
    deaths: int = 3


@dataclass
class _Followed:
    """What the scheduler remembers of a running run. All of it may be forgotten."""

    slot: str = ""
    worker: Worker | None = None
    memory: MemoryKills | None = None
    sign: object = None  # what changes as long as the work goes on
    sign_at: float | None = None
    stop_sent_at: float | None = None
    killed_as: Ending | None = None


@dataclass
class Scheduler:
    """Runs the queue of one machine.

    Attributes:
        store: Where runs are.
        executor: What starts workers.
        slots: What there is to run on.
        host: Name of this scheduler among those that share the database.
        pace: How often it looks, and how long it waits.
        say: Called with each thing that the scheduler does, in a sentence.
        now: A clock in seconds.
    """

    store: "RunStore"
    executor: Executor
    slots: Sequence[Slot]
    host: str
    pace: Pace = field(default_factory=Pace)
    say: Callable[[str], None] = log.info
    now: Callable[[], float] = time.monotonic
    _followed: dict[str, _Followed] = field(default_factory=dict)
    _said: dict[str, str] = field(default_factory=dict)

    def run(self, wait: Callable[[float], bool]) -> None:
        """Take one pass after another until ``wait``, which is given the seconds between two, returns True."""
        while not wait(self.pace.poll_seconds):
            self.step()

    def finish(self, wait: Callable[[float], object]) -> None:
        """Stop the running runs cleanly, starting no others, and return once all have ended."""
        for run in self.at_work():
            self.store.change(run.id, stop_requested_at=datetime.now(UTC))
        while self.at_work():
            self.step(start_queued=False)
            wait(self.pace.poll_seconds)

    def step(self, *, start_queued: bool = True) -> None:
        """Take one pass: look after every running run, then start what is queued. A fault costs one run's pass."""
        with self._guarded(""):
            for run in self.at_work():
                with self._guarded(run.id):
                    self._look_after(run)
            self._forget_ended()
            if start_queued:
                self._start_queued()

    def at_work(self) -> "list[StoredRun]":
        """Runs that this scheduler has started and that have not ended."""
        runs = self.store.all(statuses=AT_WORK)
        return [run for run in runs if run.is_kept and run.host == self.host]

    def _look_after(self, run: "StoredRun") -> None:
        folder = _folder_of(run)
        if not folder.is_there():
            self._lose(run)
            return
        followed = self._followed.setdefault(run.id, _Followed())
        exit_code = None if followed.worker is None else ended(followed.worker)
        # Asked before the journal is read: what a worker writes before it is gone is in what is read then.
        is_alive = exit_code is None and (followed.worker is not None or folder.is_locked())
        run = ingest(self.store, run, folder)
        if run.status in ENDS:
            self.say(f"Run {run.id} ended: {run.message}")
        elif is_alive:
            self._watch(run, folder, followed)
        else:
            self._revive(run, folder, followed, exit_code)

    def _watch(self, run: "StoredRun", folder: RunFolder, followed: _Followed) -> None:
        """Look after a run whose worker lives."""
        worker = self._worker_of(run, folder, followed)
        if run.stop_requested_at is not None:
            self._stop(run, folder, followed, worker)
        sign = (worker, _progress(folder))
        if followed.sign_at is None or sign != followed.sign:
            followed.sign, followed.sign_at = sign, self.now()
        elif self.now() - followed.sign_at > run.config.limits.stall_minutes * 60 + self.pace.stall_seconds:
            self._kill(run, followed, worker, "stalled", "it made no progress for longer than its stall limit")

    def _worker_of(self, run: "StoredRun", folder: RunFolder, followed: _Followed) -> Process | None:
        """Enter the process that works on a run in the database where it is not there yet; return it."""
        worker = folder.holder()
        if worker is None and followed.worker is not None:
            worker = Process.of(followed.worker.pid)
        if worker is not None and (run.pid, run.process_started) != (worker.pid, worker.started):
            self.store.change(run.id, pid=worker.pid, process_started=worker.started)
        if worker is None and run.pid is not None:
            worker = Process(run.pid, run.process_started)
            if not worker.is_alive():  # what it had started holds the folder still
                self._sweep(run)
        return worker

    def _stop(self, run: "StoredRun", folder: RunFolder, followed: _Followed, worker: Process | None) -> None:
        if followed.stop_sent_at is None:
            if not folder.stop_path.exists():
                folder.ask_to_stop("scheduler")
            if worker is not None:
                worker.signal(signal.SIGTERM)
            followed.stop_sent_at = self.now()
            self.say(f"Run {run.id} was asked to stop.")
        elif self.now() - followed.stop_sent_at > self.pace.stop_seconds:
            why = f"it did not stop within {self.pace.stop_seconds:g} seconds"
            self._kill(run, followed, worker, "stopped", why)

    def _kill(self, run: "StoredRun", followed: _Followed, worker: Process | None, ending: Ending, why: str) -> None:
        if worker is not None and worker.signal_group(signal.SIGKILL):
            self.say(f"The worker of run {run.id} was killed: {why}.")
            followed.killed_as = ending

    def _revive(self, run: "StoredRun", folder: RunFolder, followed: _Followed, exit_code: int | None) -> None:
        """Restart the worker of a run that died before the run ended, or end the run."""
        followed.worker, followed.sign_at, followed.stop_sent_at = None, None, None
        self._sweep(run)
        if run.stop_requested_at is not None or followed.killed_as == "stopped":
            cause = "Stopped as asked; its worker was killed because it did not end in time."
            self._end(run, folder, "stopped", cause if followed.killed_as else "Stopped as asked.")
        elif followed.killed_as is not None:
            minutes = counted(run.config.limits.stall_minutes, "minute")
            self._end(run, folder, followed.killed_as, f"The run made no progress for more than {minutes}.")
        elif refused := folder.state().refused:
            self._end(run, folder, refused.ending, refused.message)
        else:
            # A worker that could not write its end for want of room says nothing of the run.
            check_room(folder.path, _ROOM_BYTES)
            self._count_death(run, folder, death(exit_code, followed.memory, MemoryKills.now()))

    def _sweep(self, run: "StoredRun") -> None:
        """End what is left of the processes that a worker had started: engines, graders."""
        if run.pid is not None:
            Process(run.pid, run.process_started).signal_group(signal.SIGKILL)

    def _count_death(self, run: "StoredRun", folder: RunFolder, died: Death) -> None:
        if run.pid is not None:
            # The pid goes with the count: a scheduler that is killed here does not count the same death again.
            run = replace(run, attempts=run.attempts + 1)
            self.store.change(run.id, attempts=run.attempts, pid=None, process_started=None)
            if run.attempts >= self.pace.deaths:
                times = f"That was the {_ordinal(run.attempts)} time in a row without a new finished round."
                self._end(run, folder, died.ending, f"{died.cause} {times}")
                return
            place = "starts again" if run.rounds_done is None else f"resumes after round {run.rounds_done}"
            self.say(f"Run {run.id}: {died.cause[0].lower()}{died.cause[1:]} It {place}.")
        slot = next((slot for slot in self.slots if slot.name == run.slot), None)
        if slot is None:
            self.store.move(run.id, AT_WORK, "queued", slot="")
            self.say(f"Run {run.id} is queued again: {run.slot} is gone.")
        else:
            self._start(run, folder, slot)

    def _end(self, run: "StoredRun", folder: RunFolder, ending: Ending, cause: str) -> None:
        """End a run that has no worker."""
        with folder.locked():
            event = close_stalled_run(folder, ending, cause)
        run = ingest(self.store, run, folder)
        if run.status not in ENDS and folder.state().has_ended:
            # It had ended before, and no worker has got so far as to begin anew: it is again what it was.
            changes = {"ended_at": datetime.now(UTC), "ending": event.ending, "stop_requested_at": None}
            message = event.message if ending == "stopped" else f"{cause} {event.message}"
            self.store.move(run.id, AT_WORK, event.status, message=message, **changes)
            run = self.store.get(run.id)
        if run.status in ENDS:
            self.say(f"Run {run.id} ended: {run.message}")

    def _lose(self, run: "StoredRun") -> None:
        message = f"The run folder {run.folder} is gone."
        changes = {"ended_at": datetime.now(UTC), "ending": "error", "message": message, "stop_requested_at": None}
        if self.store.move(run.id, AT_WORK, "failed", **changes):
            self.say(f"Run {run.id} ended: {message}")

    def _start_queued(self) -> None:
        busy = {run.slot for run in self.at_work()} | self._leaving()
        for slot in self.slots:
            if slot.name not in busy:
                self._start_next(slot)

    def _start_next(self, slot: Slot) -> None:
        def here(run: "StoredRun") -> bool:
            folder = _folder_of(run)
            return _holds(folder, run.id) and fits(run.config, folder, slot, self.slots)

        run = self.store.claim(self.host, slot.name, here)
        if run is not None:
            with self._guarded(run.id):
                self._start(run, _folder_of(run), slot)

    def _start(self, run: "StoredRun", folder: RunFolder, slot: Slot) -> None:
        check_room(folder.path, _ROOM_BYTES)
        followed = self._followed[run.id] = _Followed(slot.name, memory=MemoryKills.now())
        followed.worker = self.executor.start(folder, environment_of(run.config, slot))
        started = Process.of(followed.worker.pid)
        self.store.change(run.id, pid=started.pid, process_started=started.started)
        self.say(f"Run {run.id} started on {slot.name} (process {started.pid}).")

    def _leaving(self) -> set[str]:
        """Slots of runs that have ended and whose workers are not gone yet."""
        return {one.slot for one in self._followed.values() if one.worker is not None}

    def _forget_ended(self) -> None:
        at_work = {run.id for run in self.at_work()}
        for id in self._followed.keys() - at_work:
            worker = self._followed[id].worker
            if worker is None or ended(worker) is not None:
                del self._followed[id]

    @contextmanager
    def _guarded(self, run_id: str) -> Iterator[None]:
        """Let a fault cost one run's pass. Say once why it waits, or why all do, and when that is over."""
        try:
            yield
        except (RatchetError, OSError) as error:
            message = str(error)
            if self._said.get(run_id) != message:  # again when the reason changes
                self._said[run_id] = message
                self.say(f"Run {run_id} waits: {message}" if run_id else f"The scheduler waits: {message}")
        else:
            if self._said.pop(run_id, None) is not None:
                self.say(f"Run {run_id} continues." if run_id else "The scheduler continues.")


def _folder_of(run: "StoredRun") -> RunFolder:
    if run.folder is None:
        raise Conflict(f"Run {run.id} has no folder.")
    return RunFolder(run.folder)


def _holds(folder: RunFolder, run_id: str) -> bool:
    """Whether a folder of this machine holds that run: another one that shares the database may have another."""
    with suppress(RatchetError):
        return folder.is_there() and folder.run_id == run_id
    return False


def _progress(folder: RunFolder) -> int | None:
    with suppress(OSError, ValueError, LookupError, TypeError):
        return int(json.loads(folder.heartbeat_path.read_bytes())["progress"])
    return None


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


class SchedulerHome:
    """The scheduler's files in a RATCHET_HOME: its lock, its name, its log. They keep the names of version 0.1."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or ratchet_home()
        self.lock_path = self.path / "keeper.lock"
        self.name_path = self.path / "keeper-name"
        self.log_path = self.path / "logs" / "keeper.log"

    @contextmanager
    def held(self) -> Iterator[str]:
        """Hold the scheduler's lock of this home inside the block; yield the scheduler's name.

        The name stays the same over restarts, even if the host name changes: by it the scheduler knows which runs of a
        shared database are its own.

        Raises:
            Conflict: another process is, or the home cannot be written to.
            DiskFull: there is no room.
        """
        with unusable_as_error(self.path, _HOME_ADVICE), disk_full_as_error(self.path):
            make_folder(self.log_path.parent)
            descriptor = run_lock.take(self.lock_path)
        if descriptor is None:
            other = run_lock.holder(self.lock_path)
            who = f" (process {other.pid})" if other else ""
            raise Conflict(
                f"A scheduler is already running for {self.path}{who} and starts what is queued. For a second one, set "
                "RATCHET_HOME to another folder."
            )
        try:
            run_lock.write_holder(descriptor)
            yield self._name()
        finally:
            os.close(descriptor)

    def is_held(self) -> bool:
        """Whether a scheduler is running for this home."""
        return run_lock.is_taken(self.lock_path)

    def _name(self) -> str:
        if self.name_path.exists():
            return self.name_path.read_text(encoding="utf-8").strip()
        machine = re.sub(r"[^\w.-]", "-", socket.gethostname())[:60] or "machine"
        name = f"{machine}-{secrets.token_hex(2)}"
        write_atomically(self.name_path, name.encode())
        return name
