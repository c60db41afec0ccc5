"""``ratchet serve`` as its users meet it: real processes, the tiny model, and workers as they are shipped."""

import json
import os
import signal
import time

import pytest

from ratchet.run.processes import Process
from ratchet.run.run_folder import RunFolder
from tests.small_runs import flags, journal


def until(is_so, seconds=200):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture
def queued(cli, tmp_path):
    """A run that the command line has put into the queue, longer than the test; its worker ends with the test."""
    done = cli("train", *flags(rounds=1000), "--project", "sums", "--out", tmp_path / "run", "--queue", "--json")
    told = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, told["status"], told["ahead"]) == (0, "queued", 0), done.stderr
    folder = RunFolder(tmp_path / "run")
    assert told["run"] == folder.run_id
    yield folder
    if holder := folder.holder():
        holder.signal_group(signal.SIGKILL)


def has_done(folder, round):
    return any(event["event"] == "round" and event["record"]["round"] >= round for event in journal(folder))


@pytest.mark.slow
def test_workers_outlive_serve_and_the_next_one_follows_and_ends_them(queued, start_cli, cli):
    first = start_cli("serve", "--gpus", "0")
    until(lambda: has_done(queued, 1))
    again = cli("serve")
    assert (again.returncode, "A scheduler is already running" in again.stderr) == (3, True)
    os.kill(first.pid, signal.SIGTERM)
    out, err = first.communicate(timeout=60)
    assert (first.returncode, err) == (0, "")
    assert f"Still running: {queued.run_id}." in out
    worker = queued.holder()
    assert worker.is_alive()
    listed = json.loads(cli("runs", "list", "--project", "sums", "--status", "training", "--json").stdout)["runs"]
    assert [run["run"] for run in listed] == [queued.run_id]
    second = start_cli("serve", "--gpus", "0", "--stop-runs")
    assert "started for" in second.stdout.readline()
    assert second.stdout.readline() == f"Run {queued.run_id} is still running and is followed again.\n"
    os.kill(second.pid, signal.SIGTERM)
    out, _ = second.communicate(timeout=200)
    assert f"Run {queued.run_id} ended: Stopped as asked." in out
    assert (second.returncode, worker.is_alive()) == (0, False)
    shown = json.loads(cli("runs", "show", queued.run_id, "--json").stdout)
    assert (shown["status"], shown["ending"]) == ("stopped_early", "stopped")
    assert list(journal(RunFolder(queued.path)))[-1]["event"] == "ended"
    assert not Process.of(worker.pid).is_alive()


@pytest.mark.slow
def test_a_run_is_stopped_from_another_terminal_and_queued_again(queued, start_cli, cli):
    served = start_cli("serve", "--gpus", "0")
    until(lambda: has_done(queued, 1))
    stopped = cli("runs", "stop", queued.run_id)
    assert "Stop requested" in stopped.stdout
    until(lambda: not queued.is_locked())
    rounds = sum(event["event"] == "round" for event in journal(queued))
    until(lambda: cli("resume", queued.run_id, "--queue").returncode == 0)
    until(lambda: has_done(queued, rounds + 1))
    os.kill(served.pid, signal.SIGTERM)
    assert served.communicate(timeout=60)[1] == ""
