"""What the scheduler is made of: processes told apart, locks handed down, logs kept short, slots, causes of death."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from ratchet.config import RunConfig
from ratchet.errors import Conflict
from ratchet.run import run_lock
from ratchet.run.events import RoundDone, RunEnded
from ratchet.run.log_files import rotate
from ratchet.run.processes import Process
from ratchet.run.run_folder import RunFolder
from ratchet.supervisor.executors import MemoryKills, death, directory_of
from ratchet.supervisor.scheduler import SchedulerHome
from ratchet.supervisor.slots import Slot, environment_of, find_slots, fits

from ..small_runs import journal
from .puppet import record


def until(is_so):
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def sleeper():
    """A process in a session of its own that sleeps."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_process_is_known_by_its_start_and_a_stranger_with_its_pid_is_not_signalled(sleeper):
    found = Process.of(sleeper.pid)
    assert found.started >= Process.own().started
    stranger = Process(sleeper.pid, found.started - 1)
    assert (found.is_alive(), stranger.is_alive()) == (True, False)
    assert not stranger.signal(signal.SIGKILL)
    assert not stranger.signal_group(signal.SIGKILL)
    assert not Process(sleeper.pid, None).signal(signal.SIGKILL)
    assert sleeper.poll() is None
    assert found.signal(signal.SIGKILL)
    sleeper.wait()
    assert not found.is_alive()
    assert not found.signal(signal.SIGKILL)
    assert not found.signal_group(signal.SIGKILL)


def test_a_process_that_ended_and_is_not_waited_for_is_not_alive(sleeper):
    found = Process.of(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not found.is_alive()


def test_what_is_left_of_a_group_is_ended_though_its_leader_is_gone(tmp_path):
    code = (
        "import subprocess, sys\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "child = subprocess.Popen(sleep, stdout=subprocess.DEVNULL)\n"
        "print(child.pid)"
    )
    leader = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True)
    found, child = Process.of(leader.pid), Process.of(int(leader.stdout.readline()))  # which the child holds open
    leader.wait()
    leader.stdout.close()
    assert (found.is_alive(), child.is_alive()) == (False, True)
    assert found.signal_group(signal.SIGKILL)
    until(lambda: not child.is_alive())


def test_a_lock_is_held_by_the_process_it_was_handed_to(tmp_path):
    path = tmp_path / ".lock"
    lock = run_lock.take(path)
    code = f"import sys, time; open({str(tmp_path / 'up')!r}, 'w'); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[lock], stdin=subprocess.PIPE)
    os.close(lock)
    assert run_lock.is_taken(path)
    assert run_lock.take(path) is None
    child.communicate()
    assert not run_lock.is_taken(path)


def test_a_lock_handed_down_must_be_the_folders_own(tmp_path):
    folder = RunFolder.create(RunConfig(), tmp_path / "run")
    lock = folder.take_lock()
    with folder.locked(os.dup(lock)):
        assert folder.holder() == Process.own()
    assert folder.is_locked()
    with pytest.raises(Conflict, match="another process"):
        folder.take_lock()
    os.close(lock)
    assert (folder.is_locked(), folder.holder()) == (False, None)
    other = os.open(tmp_path / "other", os.O_CREAT | os.O_RDWR)
    with pytest.raises(Conflict, match="is not"):
        folder.take_lock(other)
    os.close(other)


def test_a_long_log_is_put_aside_and_whoever_writes_it_goes_on_at_its_new_end(tmp_path):
    path = tmp_path / "worker.log"
    with path.open("ab", buffering=0) as writer:
        for part in (b"a" * 30, b"b" * 30, b"c" * 30, b"d" * 500):
            writer.write(part)
            rotate(path, max_bytes=20, kept=2)
        writer.write(b"now")
    assert path.read_bytes() == b"now"
    assert (tmp_path / "worker.log.1").read_bytes() == b"d" * 20
    assert (tmp_path / "worker.log.2").read_bytes() == b"c" * 20
    assert len(list(tmp_path.iterdir())) == 3
    rotate(tmp_path / "none", max_bytes=0)


def test_the_log_of_a_run_stays_short(tmp_path, monkeypatch):
    monkeypatch.setattr("ratchet.run.run_folder.rotate", lambda path: rotate(path, max_bytes=200, kept=2))
    folder = RunFolder.create(RunConfig(), tmp_path / "run")
    for number in range(100):
        folder.log(f"round={number}")
    files = sorted(folder.path.glob("run.log*"))
    assert [file.name for file in files] == ["run.log", "run.log.1", "run.log.2"]
    assert all(file.stat().st_size < 300 for file in files)
    assert "round=99" in folder.log_path.read_text() + (folder.path / "run.log.1").read_text()


def test_one_scheduler_for_a_home_and_its_name_stays(tmp_path):
    home = SchedulerHome(tmp_path / "home")
    assert not home.is_held()
    with home.held() as name:
        assert home.is_held()
        with pytest.raises(Conflict, match=rf"is already running for .* \(process {os.getpid()}\)"), home.held():
            pass
    with home.held() as again:
        assert again == name
    with SchedulerHome(tmp_path / "other").held() as other:
        assert other != name


SMI = """#!/bin/sh
echo 0
echo 1
"""


def test_gpus_are_found_by_nvidia_smi_by_the_variable_or_as_said(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [slot.name for slot in find_slots()] == ["cpu0"]
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert [slot.name for slot in find_slots(cpu_slots=0)] == ["gpu0", "gpu1"]
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in find_slots()] == ["0", "1", ""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-77")
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in find_slots(0)] == ["3", "GPU-77"]
    assert [slot.name for slot in find_slots(1, gpus=1)] == ["gpu0", "cpu0"]


def test_cpu_slots_share_the_cores_unless_the_user_has_said_how(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [slot.environment.get("OMP_NUM_THREADS") for slot in find_slots(3, 0)] == ["2"] * 3
    assert "OMP_NUM_THREADS" not in find_slots(1, 0)[0].environment
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in find_slots(3, 0)[0].environment


GPU0, GPU1, CPU = Slot("gpu0", "cuda", 0), Slot("gpu1", "cuda", 1), Slot("cpu0", "cpu")


@pytest.mark.parametrize(
    ("device", "slots", "fitting"),
    [
        ("auto", [GPU0, GPU1, CPU], ["gpu0", "gpu1"]),
        ("auto", [CPU], ["cpu0"]),
        ("cpu", [GPU0, GPU1, CPU], ["cpu0"]),
        ("cuda", [GPU0, GPU1, CPU], ["gpu0", "gpu1"]),
        ("cuda:1", [GPU0, GPU1, CPU], ["gpu1"]),
        ("cuda", [CPU], []),
        ("mps", [GPU0, CPU], ["cpu0"]),
    ],
)
def test_a_run_goes_where_its_device_is(device, slots, fitting, tmp_path):
    config = RunConfig(device=device)
    folder = RunFolder.create(config, tmp_path / "run")
    assert [slot.name for slot in slots if fits(config, folder, slot, slots)] == fitting


@pytest.mark.parametrize(("begun_on", "fitting"), [("cpu", ["cpu0"]), ("cuda", ["gpu0"])])
def test_a_run_goes_on_where_it_was_begun(begun_on, fitting, tmp_path):
    folder = RunFolder.create(RunConfig(), tmp_path / "run")
    folder.write_run({**folder.read_run(), "fixed": {"device": begun_on}})
    assert [slot.name for slot in (GPU0, CPU) if fits(RunConfig(), folder, slot, [GPU0, CPU])] == fitting


def test_a_run_that_names_a_gpu_by_number_sees_all_of_them():
    slot = Slot("gpu1", "cuda", 1, {"CUDA_VISIBLE_DEVICES": "1", "MORE": "x"})
    assert environment_of(RunConfig(device="cuda:1"), slot) == {"MORE": "x"}
    assert environment_of(RunConfig(device="cuda"), slot) == slot.environment


def test_a_worker_starts_where_its_run_was_made_as_long_as_that_is_there(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    folder = RunFolder.create(RunConfig(), tmp_path / "run")
    assert directory_of(folder) == tmp_path / "there"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").rmdir()
    assert directory_of(folder) == folder.path


def test_the_systems_counters_of_kills_for_memory_are_read(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/user/worker\n")
    (tmp_path / "vmstat").write_text("oom_killer 9\noom_kill 3\n")
    (tmp_path / "groups" / "user" / "worker").mkdir(parents=True)
    (tmp_path / "groups" / "user" / "worker" / "memory.events").write_text("oom 8\noom_kill 2\noom_group_kill 0\n")
    assert MemoryKills.now(tmp_path, tmp_path / "groups") == MemoryKills(group=2, machine=3)
    assert MemoryKills.now(tmp_path / "none", tmp_path / "none") == MemoryKills(0, 0)


@pytest.mark.parametrize(
    ("exit_code", "before", "after", "ending", "said"),
    [
        (-9, MemoryKills(0, 0), MemoryKills(1, 1), "out_of_memory", "memory limit of the scheduler's control group"),
        (-9, MemoryKills(0, 4), MemoryKills(0, 5), "out_of_memory", "the machine ran out of memory"),
        (-9, MemoryKills(1, 1), MemoryKills(1, 1), "error", "was killed."),
        (-9, None, MemoryKills(1, 1), "error", "was killed."),
        (-11, MemoryKills(0, 0), MemoryKills(1, 1), "error", "ended by signal 11"),
        (7, MemoryKills(0, 0), MemoryKills(1, 1), "error", "exit code 7"),
        (None, None, MemoryKills(0, 0), "error", "without an error message"),
    ],
)
def test_a_death_is_put_into_words(exit_code, before, after, ending, said):
    found = death(exit_code, before, after)
    assert found.ending == ending
    assert said in found.cause


def test_an_ended_journal_is_no_refusal(tmp_path):
    from ratchet.worker import __main__ as worker_main

    folder = RunFolder.create(RunConfig(), tmp_path / "run")
    worker_main._say_refused(folder, "No.", 0)
    assert [event["event"] for event in journal(folder)] == ["refused"]
    before = len(list(journal(folder)))
    folder.append_event(RunEnded(status="failed", ending="error", message="No."))
    worker_main._say_refused(folder, "No.", before)
    assert [event["event"] for event in journal(folder)] == ["refused", "ended"]


def test_the_heartbeat_says_what_the_work_is_at(tmp_path, monkeypatch):
    from ratchet.worker import watchdog

    monkeypatch.setattr(watchdog, "_EVERY_SECONDS", 0.01)
    folder = RunFolder.create(RunConfig(), tmp_path / "run")
    session = SimpleNamespace(progress_count=0)
    heartbeat = watchdog.Heartbeat(folder)

    def beat():
        return json.loads(folder.heartbeat_path.read_text())

    with heartbeat.beating(session):
        until(folder.heartbeat_path.exists)
        assert (beat()["phase"], beat()["pid"], beat()["process_started"]) == (
            "starting",
            os.getpid(),
            Process.own().started,
        )
        heartbeat.listener.on_event(RoundDone(record=record(3)))
        heartbeat.listener.on_progress("sampling", 2, 8)
        session.progress_count = 5
        until(lambda: beat()["progress"] == 5)
        assert {name: beat()[name] for name in ("phase", "done", "total", "round")} == {
            "phase": "sampling",
            "done": 2,
            "total": 8,
            "round": 4,
        }
