"""Workers, the scheduler and both are killed at random moments over many runs, and it is as if nobody had.

Fifty runs in ``make test-long``, twelve otherwise. Nine of ten have a scripted engine in the real worker, the others are
of the tiny model with workers as they are shipped.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from safetensors import safe_open

import ratchet
from ratchet.run.endings import AT_WORK
from ratchet.run.processes import Process
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.registry import register
from ratchet.store import Database, RunStore
from tests.small_runs import adapter_bytes, journal, rollouts, small
from tests.supervisor.scripted_worker import scripted_config

SLOTS = 4
ROOT = Path(__file__).parents[2]


class Nursery:
    """Starts schedulers, and ends whatever is left."""

    def __init__(self):
        # The tests' own modules are found from the project's folder, and Ratchet where this process has it from.
        path = os.pathsep.join([str(Path(ratchet.__file__).parents[1]), str(ROOT)])
        command = [sys.executable, "-m", "tests.supervisor.nursery", str(SLOTS)]
        self._process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout.readline() == "ready\n"

    def scheduler(self):
        self._process.stdin.write("scheduler\n")
        self._process.stdin.flush()
        return Process.of(int(self._process.stdout.readline()))

    def close(self):
        self._process.communicate()


@pytest.fixture
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def run_folders(tmp_path):
    """A list for the folders of runs: the workers on them end with the test."""
    folders = []
    yield folders
    for folder in folders:
        if holder := folder.holder():
            holder.signal_group(signal.SIGKILL)


def queue(store, config, path, folders):
    folder = RunFolder.create(config, path, {"key": "confirmed elsewhere"})
    folders.append(folder)
    return register(store, folder, is_kept=True)


@pytest.fixture
def store(each_database):
    with closing(Database()) as database:
        yield RunStore(database)


def waited_for(is_so, seconds):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)


def ended(store):
    """Return a function that tells whether all runs have ended."""
    return lambda: not store.all(statuses=["queued", *AT_WORK])


def undisturbed(nursery, store, configs, place, folders):
    """Return the folders of runs that nobody kills."""
    started = [queue(store, config, place / str(n), folders) for n, config in enumerate(configs)]
    scheduler = nursery.scheduler()
    waited_for(ended(store), 120)
    scheduler.signal(signal.SIGTERM)
    waited_for(lambda: not scheduler.is_alive(), 20)
    return [RunFolder(run.folder) for run in started]


def kill_at_random(nursery, folders, chance, all_ended, most):
    """Kill workers, schedulers and both until there were so many kills or everything has ended; count them by kind."""
    kills = Counter()
    scheduler = nursery.scheduler()

    def workers():
        return [holder for folder in folders if (holder := folder.holder())]

    end = time.monotonic() + 400
    while sum(kills.values()) < most and not all_ended():
        time.sleep(chance.uniform(0.02, 0.4))
        assert scheduler.is_alive(), "the scheduler ended by itself"
        assert time.monotonic() < end, "it takes too long"
        kind = chance.choice(["worker", "worker", "worker", "scheduler", "both"])
        if kind != "scheduler":  # on a busy machine the scheduler takes its time to start one
            waited_for(lambda: workers() or all_ended(), 100)
        if kind != "scheduler" and (found := workers()):
            kills["worker"] += chance.choice(found).signal(signal.SIGKILL)
        if kind != "worker" and scheduler.is_alive():
            kills["scheduler"] += scheduler.signal(signal.SIGKILL)
            waited_for(lambda: not scheduler.is_alive(), 20)  # noqa: B023 - waited for before the next one
            time.sleep(chance.choice([0, 0, 0.3]))
            scheduler = nursery.scheduler()
    return scheduler, kills


def checkpoint_records(folder):
    with safe_open(folder.checkpoint_path, framework="np") as file:
        return json.loads(file.metadata()["ratchet"])["records"]


def apart_from_times(found):
    return [{**record, "seconds": None} for record in found]


def check(store, run, folder, twin, rounds):
    """Check that a run that was killed and the one that was not cannot be told apart, and that all records agree."""
    assert (run.status, run.ending, run.rounds_done) == ("completed", "all_rounds", rounds)
    events = list(journal(folder))
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))  # never two writers
    journaled = [event["record"] for event in events if event["event"] == "round"]
    assert [record["round"] for record in journaled] == list(range(rounds + 1))
    stored = [record.model_dump(mode="json") for record in store.records(run.id)]
    assert stored == journaled == checkpoint_records(folder)
    ends = [event for event in events if event["event"] == "ended"]
    assert len(ends) == 1
    assert run.adapter_sha256 == ends[0]["adapter_sha256"]
    assert apart_from_times(journaled) == apart_from_times(checkpoint_records(twin))
    assert adapter_bytes(folder) == adapter_bytes(twin)
    assert rollouts(folder) == rollouts(twin)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_whose_workers_and_scheduler_are_killed_at_random_end_as_if_nobody_had(
    store, tmp_path, nursery, run_folders, repeats
):
    scripted, tiny, seeds, most = repeats((45, 5, 9, 75), (10, 2, 4, 18))
    configs = [scripted_config(tmp_path / "rows", seed) for seed in range(seeds)] + [small(rounds=2).resolved()]
    twins = undisturbed(nursery, store, configs, tmp_path / "twins", run_folders)
    chosen = [configs[n % seeds] for n in range(scripted)] + [configs[-1]] * tiny
    order = list(range(len(chosen)))
    chance = random.Random(5)
    chance.shuffle(order)
    folders = []
    for n in order:
        queue(store, chosen[n], tmp_path / "runs" / str(n), folders)
    run_folders += folders
    scheduler, kills = kill_at_random(nursery, folders, chance, ended(store), most)
    waited_for(ended(store), 300)
    scheduler.signal(signal.SIGTERM)
    waited_for(lambda: not scheduler.is_alive(), 20)
    assert min(kills["worker"], kills["scheduler"]) >= most / 6, kills
    runs = {run.folder: run for run in store.all() if run.folder.parent == tmp_path / "runs"}
    assert len(runs) == len(store.all()) - len(twins) == scripted + tiny  # none lost, none doubled
    for n, config in enumerate(chosen):
        folder = RunFolder(tmp_path / "runs" / str(n))
        twin = twins[n % seeds if n < scripted else seeds]
        check(store, runs[folder.path], folder, twin, config.rl.rounds)
    assert not [folder for folder in folders if folder.holder()]
    assert "Traceback" not in "".join(folder.worker_log_path.read_text() for folder in folders)
