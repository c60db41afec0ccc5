"""The scheduler, one pass at a time, over real processes that play workers: see ``puppet.py``."""

import json
import os
import signal
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.config import RunConfig
from ratchet.errors import DiskFull
from ratchet.run.endings import ENDS
from ratchet.run.events import RunEnded, RunStarted
from ratchet.run.processes import Process
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.registry import register
from ratchet.store import Database, RunStore
from ratchet.supervisor.executors import LocalExecutor
from ratchet.supervisor.ingest import ingest
from ratchet.supervisor.scheduler import Pace, Scheduler
from ratchet.supervisor.slots import Slot

from ..small_runs import journal

PUPPET = (sys.executable, "-P", str(Path(__file__).with_name("puppet.py")))
WHOLE = ["started", "planned 2", "round 0", "round 1", "round 2", "saving", "ended"]
ACTS = {"started", "planned", "round", "saving", "ended", "refused"}


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


class Puppets(LocalExecutor):
    """Starts puppets, and knows all that it started, so that they end with the test."""

    def __init__(self):
        super().__init__(PUPPET)
        self.started = []

    def start(self, folder, environment):
        self.started.append(super().start(folder, environment))
        return self.started[-1]

    def close(self):
        for process in self.started:
            Process.of(process.pid).signal_group(signal.SIGKILL)
            process.wait()


class Killed(BaseException):
    """Stands for a SIGKILL of the scheduler: nothing of ours catches it."""


class Stage:
    """A database with runs of puppets, and schedulers over it."""

    def __init__(self, place):
        self.place = place
        self.store = RunStore(Database())
        self.clock = Clock()
        self.said = []
        self.folders = []
        self.executor = Puppets()

    def queue(self, *plays, device="cpu", **limits):
        config = RunConfig.model_validate({"device": device, "limits": limits})
        folder = RunFolder.create(config, self.place / f"run{len(self.folders)}", {"key": "confirmed elsewhere"})
        (folder.path / "puppet.json").write_text(json.dumps(plays))
        self.folders.append(folder)
        return register(self.store, folder, is_kept=True).id

    def scheduler(self, slots=1, executor=None, **pace):
        found = [Slot(f"cpu{n}", "cpu", n, {"SLOT": f"cpu{n}"}) for n in range(slots)]
        return Scheduler(
            store=self.store,
            executor=executor or self.executor,
            slots=found,
            host="here",
            pace=Pace(poll_seconds=0.01, **pace),
            say=self.said.append,
            now=self.clock,
        )

    def until(self, scheduler, is_so):
        """Take passes until something is so."""
        end = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < end, self.said
            scheduler.step()
            time.sleep(0.01)

    def ended(self, scheduler, *ids):
        """Take passes until these runs have ended; return them."""
        self.until(scheduler, lambda: all(self.store.get(id).status in ENDS for id in ids))
        return [self.store.get(id) for id in ids]

    def workers(self, run):
        """Return the pids of the workers that a run has had."""
        lines = (self.folders[run].path / "workers").read_text().splitlines()
        return [int(line.split()[0]) for line in lines]

    def has_events(self, run, *kinds):
        found = [event["event"] for event in journal(self.folders[run])]
        return all(kind in found for kind in kinds)


@pytest.fixture
def stage(tmp_path):
    stage = Stage(tmp_path)
    yield stage
    stage.executor.close()


def test_a_queued_run_is_worked_on_and_the_database_knows_all_that_its_journal_says(stage):
    id = stage.queue(WHOLE)
    (run,) = stage.ended(stage.scheduler(), id)
    assert (run.status, run.ending, run.message, run.seconds) == ("completed", "all_rounds", "Done.", 7.5)
    assert (run.rounds, run.rounds_done, run.best_round) == (2, 2, 2)
    assert (run.start_accuracy, run.best_accuracy) == (0.0, 0.2)
    assert (run.host, run.slot) == ("here", "cpu0")
    assert run.journal_offset == stage.folders[0].events_path.stat().st_size
    assert run.queued_at <= run.started_at <= run.ended_at
    told = [event["record"] for event in journal(stage.folders[0]) if event["event"] == "round"]
    assert [record.model_dump() for record in stage.store.records(id)] == told
    assert not stage.folders[0].is_locked()


def test_each_slot_has_one_run_at_a_time_and_the_oldest_goes_first(stage):
    ids = [stage.queue(["started", "round 0", "hang"], WHOLE) for _ in range(3)]
    scheduler = stage.scheduler(slots=2)
    stage.until(scheduler, lambda: all(stage.store.get(id).status == "training" for id in ids[:2]))
    scheduler.step()
    assert {stage.store.get(id).slot for id in ids[:2]} == {"cpu0", "cpu1"}
    assert stage.store.get(ids[2]).status == "queued"
    os.kill(stage.workers(0)[0], signal.SIGKILL)
    assert stage.ended(scheduler, ids[0])[0].status == "completed"
    stage.until(scheduler, lambda: stage.store.get(ids[2]).status == "training")
    assert stage.store.get(ids[2]).slot == stage.store.get(ids[0]).slot
    slots = [line.split()[1] for folder in stage.folders for line in (folder.path / "workers").read_text().splitlines()]
    assert sorted(slots) == ["cpu0", "cpu0", "cpu0", "cpu1"]  # also in the workers' environment


def test_a_worker_that_is_killed_is_started_again_and_what_it_had_started_is_ended(stage):
    id = stage.queue(["started", "round 0", "child", "hang"], WHOLE[2:])
    scheduler = stage.scheduler()
    stage.until(scheduler, lambda: (stage.folders[0].path / "child").exists() and stage.store.get(id).rounds_done == 0)
    child = Process.of(int((stage.folders[0].path / "child").read_text()))
    os.kill(stage.workers(0)[0], signal.SIGKILL)
    (run,) = stage.ended(scheduler, id)
    assert (run.status, len(stage.workers(0))) == ("completed", 2)
    stage.until(scheduler, lambda: not child.is_alive())
    assert any("its worker was killed. It resumes after round 0." in line for line in stage.said)


def test_three_deaths_in_a_row_without_a_finished_round_end_a_run_with_cause_and_remedy(stage):
    plays = [["started", "exit 7"], ["started", "round 0", "exit 7"], ["exit 7"], ["exit 7"], ["exit 7"], WHOLE]
    id = stage.queue(*plays)
    (run,) = stage.ended(stage.scheduler(), id)
    assert (run.status, run.ending) == ("failed", "error")  # no adapter: the puppet has none
    # One death, a round, which counts anew, and three.
    assert len(stage.workers(0)) == 4
    assert run.message.startswith(
        "Its worker ended with exit code 7 without an error message; see worker.log. That was the "
    )
    assert "third time in a row without a new finished round" in run.message
    assert "ratchet resume" in run.message
    assert stage.has_events(0, "ended")


def test_a_refusal_ends_a_run_at_once_in_its_own_words(stage):
    id = stage.queue(["refused", "exit 1"], WHOLE)
    (run,) = stage.ended(stage.scheduler(), id)
    assert (run.status, run.ending, len(stage.workers(0))) == ("failed", "error", 1)
    assert run.message.startswith("The run's device was cpu and is now cuda.")


def test_a_queued_resume_that_is_refused_leaves_the_run_what_it_was_and_the_slot_free(stage):
    id = stage.queue(["refused", "exit 1"])
    folder = stage.folders[0]
    folder.append_event(RunStarted(run=folder.run_id, resumed=False))
    folder.append_event(RunEnded(status="stopped_early", ending="stopped", message="Stopped as asked."))
    ingest(stage.store, stage.store.get(id), folder)
    assert stage.store.move(id, ENDS, "queued", ending=None, ended_at=None, message="")  # as resume --queue does
    scheduler = stage.scheduler()
    stage.until(scheduler, lambda: not scheduler.at_work() and stage.store.get(id).status not in ("queued", "starting"))
    run = stage.store.get(id)
    assert (run.status, run.ending) == ("stopped_early", "stopped")
    assert run.message.startswith("The run's device was cpu and is now cuda.")


def test_a_run_that_makes_no_progress_is_killed_and_ended_as_stalled(stage):
    id = stage.queue(["started", "round 0", "hang"], stall_minutes=1)
    scheduler = stage.scheduler(stall_seconds=30)
    stage.until(scheduler, lambda: stage.store.get(id).rounds_done == 0)
    worker = Process.of(stage.workers(0)[0])
    stage.clock.seconds += 91
    scheduler.step()  # the first sign that the clock saw was at 0
    (run,) = stage.ended(scheduler, id)
    assert not worker.is_alive()
    assert run.ending == "stalled"
    assert run.message.startswith("The run made no progress for more than 1 minute.")
    assert "raise Stall limit" in run.message


def test_a_run_that_makes_progress_is_left_alone_however_long_it_takes(stage):
    id = stage.queue(["started", "round 0", "hang"], stall_minutes=1)
    scheduler = stage.scheduler(stall_seconds=30)
    stage.until(scheduler, lambda: stage.store.get(id).rounds_done == 0)
    for progress in range(5):
        stage.folders[0].heartbeat_path.write_text(json.dumps({"progress": progress}))
        stage.clock.seconds += 80
        scheduler.step()
    assert Process.of(stage.workers(0)[0]).is_alive()


def asked_to_stop(stage, id):
    stage.store.change(id, stop_requested_at=datetime.now(UTC))


def test_a_wish_to_stop_reaches_the_worker_as_word_and_as_signal(stage):
    id = stage.queue(["started", "round 0", "hang"])
    scheduler = stage.scheduler()
    stage.until(scheduler, lambda: stage.store.get(id).rounds_done == 0)
    asked_to_stop(stage, id)
    (run,) = stage.ended(scheduler, id)  # the puppet dies of the signal
    assert stage.folders[0].stop_path.exists()
    assert (run.ending, len(stage.workers(0)), run.stop_requested_at) == ("stopped", 1, None)
    assert run.message.startswith("Stopped as asked. ")


def test_a_worker_that_does_not_stop_is_killed_after_a_while(stage):
    id = stage.queue(["deaf", "started", "round 0", "hang"])
    scheduler = stage.scheduler(stop_seconds=60)
    stage.until(scheduler, lambda: stage.store.get(id).rounds_done == 0)
    asked_to_stop(stage, id)
    scheduler.step()
    stage.clock.seconds += 59
    scheduler.step()
    assert Process.of(stage.workers(0)[0]).is_alive()
    stage.clock.seconds += 2
    (run,) = stage.ended(scheduler, id)
    assert (run.ending, len(stage.workers(0))) == ("stopped", 1)
    assert "its worker was killed" in run.message


def test_a_new_scheduler_follows_a_live_worker_and_does_not_start_another(stage):
    id = stage.queue(["started", "child", "round 0", "hang"], WHOLE)
    first = stage.scheduler()
    stage.until(first, lambda: stage.store.get(id).rounds_done == 0)
    child = Process.of(int((stage.folders[0].path / "child").read_text()))
    stage.store.change(id, pid=None, process_started=None)  # as if killed before it wrote down whom it had started
    second = stage.scheduler()
    for _ in range(3):
        second.step()
    (worker,) = stage.workers(0)
    run = stage.store.get(id)
    assert (run.pid, run.process_started) == (worker, Process.of(worker).started)
    os.kill(worker, signal.SIGKILL)
    stage.executor.started[0].wait()  # the scheduler that had started it is gone: it is init's to wait for
    assert stage.ended(second, id)[0].status == "completed"
    assert len(stage.workers(0)) == 2
    stage.until(second, lambda: not child.is_alive())  # what the dead worker had started went with it


class Stumbling:
    """Ends the scheduler before or after it starts a worker."""

    def __init__(self, executor, when):
        self._executor, self._when = executor, when

    def start(self, folder, environment):
        if self._when == "after":
            self._executor.start(folder, environment)
        raise Killed


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_scheduler_killed_around_the_start_of_a_worker_neither_loses_nor_doubles_a_run(when, stage):
    id = stage.queue(WHOLE, WHOLE)
    with pytest.raises(Killed):
        stage.scheduler(executor=Stumbling(stage.executor, when)).step()
    assert stage.store.get(id).status == "starting"
    (run,) = stage.ended(stage.scheduler(), id)
    assert (run.status, run.attempts, len(stage.workers(0))) == ("completed", 0, 1)
    assert run.rounds_done == 2


def test_a_scheduler_killed_after_it_counted_a_death_does_not_have_it_counted_again(stage):
    id = stage.queue(["started", "exit 7"], ["started", "hang"])
    first = stage.scheduler()
    first.step()
    stage.executor.started[0].wait()
    first.executor = Stumbling(stage.executor, "before")
    with pytest.raises(Killed):
        first.step()
    second = stage.scheduler()
    stage.until(second, lambda: len(stage.workers(0)) == 2)
    assert stage.store.get(id).attempts == 1


def test_a_run_whose_slot_is_gone_waits_for_another(stage):
    id = stage.queue(["started", "round 0", "exit 7"], WHOLE)
    scheduler = stage.scheduler()
    scheduler.step()
    stage.executor.started[0].wait()
    stage.store.change(id, slot="gpu3")
    other = stage.scheduler()
    assert stage.ended(other, id)[0].slot == "cpu0"
    assert any("gpu3 is gone" in line for line in stage.said)


def test_a_run_whose_folder_is_gone_fails_in_words(stage, tmp_path):
    id = stage.queue(["started", "round 0", "hang"])
    scheduler = stage.scheduler()
    stage.until(scheduler, lambda: stage.store.get(id).rounds_done == 0)
    os.kill(stage.workers(0)[0], signal.SIGKILL)
    stage.folders[0].path.rename(tmp_path / "elsewhere")
    (run,) = stage.ended(scheduler, id)
    assert (run.status, run.message) == ("failed", f"The run folder {stage.folders[0].path} is gone.")
    stage.folders.clear()


def test_what_a_disk_has_no_room_for_is_waited_for_and_said_once(stage, monkeypatch):
    id = stage.queue(WHOLE)
    is_full = [True]

    def check_room(path, needed):
        if is_full[0]:
            raise DiskFull(f"The disk that holds {path} is full.")

    monkeypatch.setattr("ratchet.supervisor.scheduler.check_room", check_room)
    scheduler = stage.scheduler()
    for _ in range(3):
        scheduler.step()
    assert stage.store.get(id).status == "starting"
    assert [line for line in stage.said if "is full" in line] == [
        f"Run {id} waits: The disk that holds {stage.folders[0].path} is full."
    ]
    is_full[0] = False
    assert stage.ended(scheduler, id)[0].status == "completed"
    assert f"Run {id} continues." in stage.said


def test_a_database_that_cannot_be_used_is_waited_for_and_nothing_is_lost(stage, monkeypatch):
    id = stage.queue(WHOLE)
    scheduler = stage.scheduler()
    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "ingest", lambda *a, **k: (_ for _ in ()).throw(DiskFull("The disk is full.")))
        stage.until(scheduler, lambda: stage.has_events(0, "ended"))
        for _ in range(3):
            scheduler.step()
        assert stage.store.records(id) == []
    assert stage.ended(scheduler, id)[0].status == "completed"
    assert len(stage.store.records(id)) == 3
    assert len(stage.workers(0)) == 1


def test_runs_of_another_scheduler_and_inline_ones_are_left_alone(stage):
    theirs, inline = stage.queue(WHOLE), stage.queue(WHOLE)
    stage.store.claim("there", "cpu0", lambda run: run.id == theirs)
    stage.store.move(inline, ["queued"], "training", is_kept=False, host="here")
    scheduler = stage.scheduler()
    scheduler.step()
    assert scheduler.at_work() == []
    assert not [folder for folder in stage.folders if (folder.path / "workers").exists()]


def test_a_run_that_is_not_on_this_machine_is_left_to_others(stage, tmp_path):
    id = stage.queue(WHOLE)
    stage.folders[0].path.rename(tmp_path / "elsewhere")
    stage.scheduler().step()
    assert stage.store.get(id).status == "queued"
    stage.folders.clear()


def test_told_to_finish_the_scheduler_ends_what_is_at_work_and_starts_nothing(stage):
    first, second = stage.queue(["started", "round 0", "hang"]), stage.queue(WHOLE)
    scheduler = stage.scheduler()
    stage.until(scheduler, lambda: stage.store.get(first).rounds_done == 0)
    scheduler.finish(time.sleep)
    assert (stage.store.get(first).ending, stage.store.get(second).status) == ("stopped", "queued")


def test_a_journal_is_ingested_once_however_many_look(stage):
    from ratchet.supervisor.ingest import ingest

    id = stage.queue(WHOLE)
    run = stage.store.get(id)
    folder = stage.folders[0]
    folder.append_event(RunStarted(run=id, resumed=False))
    with folder.events_path.open("ab") as file:
        file.write(b'{"seq": 2, "event": "rou')  # being written
    one = ingest(stage.store, run, folder)
    assert (one.status, ingest(stage.store, run, folder)) == ("starting", one)
    assert one.journal_offset < folder.events_path.stat().st_size
    with closing(Database()) as database:
        assert RunStore(database).get(id) == one
