"""Conductors that are killed before any of their writes, or two at once: no step is lost and none is there twice."""

import random
import shutil
import threading
from contextlib import closing

import pytest

from ratchet.files import ratchet_home
from ratchet.run.run_folder import RunFolder
from ratchet.service.jobs.conductor import Conductor
from ratchet.service.runs.registry import all_runs
from ratchet.store import Database, RunStore
from tests.conducted import (
    enter_experiment,
    enter_loop,
    find_experiment,
    find_loop,
    pairs,
    resume_loop,
    step_killed_before_write,
    stop_loop,
)

LOOP = ["0/score", "1/train", "1/score", "0/sealed", "1/sealed"]


def served_again(stage):
    """Do as a keeper does that is started: enter what the database does not know, then take a pass."""
    all_runs(stage.store)
    stage.pass_()


def whole(stage, owner):
    """Return step -> the statuses of its jobs, and check that each run folder is one of them."""
    found = stage.steps(owner)
    folders = {place.parent.name for place in (ratchet_home() / "runs").glob("*/run.json")}
    assert folders == {run.folder.name for runs in found.values() for run in runs}
    assert all(run.is_kept for runs in found.values() for run in runs)
    return {step: [run.status for run in runs] for step, runs in found.items()}


def killed_again_and_again(stage, find, seed):
    """Kill two conductors at random before each whole pass, until what ``find`` returns has ended; count the kills."""
    chance, kills = random.Random(seed), 0
    for _ in range(30):
        for _ in range(2):
            kills += step_killed_before_write(chance.randint(1, 8))
            all_runs(stage.store)
        stage.pass_()
        if find().stored.ended_at is not None:
            return kills
        stage.work()
    raise AssertionError("does not end")


def conducted_twice():
    """Take a pass in each of two threads at once."""
    barrier, faults = threading.Barrier(2, timeout=60), []

    def conduct():
        try:
            with closing(Database()) as database:
                conductor = Conductor(RunStore(database), lambda line: None)
                barrier.wait()
                conductor.step()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=conduct) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


@pytest.mark.parametrize("done", [*(pytest.param(done, marks=pytest.mark.slow) for done in (0, 1, 2, 3)), 5])
def test_a_pass_that_is_killed_before_any_of_its_writes_is_made_up_for(stage, done, tmp_path):
    """Passes: benchmark the start, train, benchmark a round, both held-out evaluations, the end."""
    id = enter_loop(target_percent=60).id
    stage.shares = {"0": 0.4, "1": 0.6}
    for _ in range(done):
        stage.pass_()
        stage.work()
    stage.close()
    shutil.copytree(ratchet_home(), tmp_path / "kept")

    def restored():
        stage.close()
        shutil.rmtree(ratchet_home())
        shutil.copytree(tmp_path / "kept", ratchet_home())

    def state():
        return whole(stage, f"loop/{id}"), find_loop(id).stored.status

    stage.pass_()
    expected, kills = state(), 0
    restored()
    while step_killed_before_write(kills + 1):
        kills += 1
        served_again(stage)
        assert state() == expected, f"killed before write {kills}"
        restored()
    assert kills >= (1 if done == 5 else 6)


@pytest.mark.slow
@pytest.mark.parametrize("answered", [0, 1, 2])
def test_a_stop_while_the_held_out_half_is_evaluated_loses_nothing_whenever_the_conductor_is_killed(
    stage, answered, tmp_path
):
    id = enter_loop(target_percent=60).id
    stage.shares = {"0": 0.4, "1": 0.6}
    while "1/sealed" not in stage.steps(f"loop/{id}"):
        stage.pass_()
        if "1/sealed" not in stage.steps(f"loop/{id}"):
            stage.work()
    for _ in range(answered):
        assert stage.work()
    stop_loop(id)
    stage.close()
    shutil.copytree(ratchet_home(), tmp_path / "kept")
    kills = 0
    while step_killed_before_write(kills + 1):
        kills += 1
        served_again(stage)
        stage.pass_()
        if answered < 2:
            assert find_loop(id).stored.status == "stopped"
            resume_loop(id)
        one = stage.until_ended(lambda: find_loop(id))
        assert (one.stored.status, one.report.best) == ("target_reached", 1), f"killed before write {kills}"
        assert whole(stage, f"loop/{id}") == {step: ["completed"] for step in LOOP}
        stage.close()
        shutil.rmtree(ratchet_home())
        shutil.copytree(tmp_path / "kept", ratchet_home())
    assert kills >= 1


@pytest.mark.slow
def test_a_loop_whose_conductor_is_killed_again_and_again_has_every_step_once(each_database, stage):
    id = enter_loop(target_percent=60).id
    stage.shares = {"0": 0.4, "1": 0.6}
    assert killed_again_and_again(stage, lambda: find_loop(id), seed=3) >= 6
    assert whole(stage, f"loop/{id}") == {step: ["completed"] for step in LOOP}
    assert find_loop(id).stored.status == "target_reached"


@pytest.mark.slow
def test_an_experiment_whose_conductor_is_killed_again_and_again_has_every_step_once(each_database, stage):
    id = enter_experiment(pairs(), pairs("others", seed=3), seeds=(0, 1)).id
    assert killed_again_and_again(stage, lambda: find_experiment(id), seed=1) >= 6
    assert whole(stage, f"experiment/{id}") == {step.name: ["completed"] for step in find_experiment(id).all_steps}
    assert find_experiment(id).stored.status == "done"


def test_two_conductors_at_once_start_no_step_of_a_loop_twice(each_database, stage):
    id = enter_loop(target_percent=60).id
    stage.shares = {"0": 0.4, "1": 0.6}
    for _ in range(7):
        conducted_twice()
        stage.work()
    assert whole(stage, f"loop/{id}") == {step: ["completed"] for step in LOOP}
    assert find_loop(id).stored.status == "target_reached"


def test_two_conductors_at_once_start_no_step_of_an_experiment_twice(each_database, stage):
    id = enter_experiment(seeds=(0, 1)).id
    for _ in range(8):
        conducted_twice()
        while stage.work():
            pass
    assert whole(stage, f"experiment/{id}") == {step.name: ["completed"] for step in find_experiment(id).all_steps}
    assert find_experiment(id).stored.status == "done"


def test_a_folder_that_the_database_does_not_know_is_taken_up(stage, monkeypatch):
    """The process is gone after it made the folder of a step and before the database knew of it."""
    id = enter_loop(target_percent=50).id

    class Gone(BaseException):
        pass

    def gone(*arguments, **options):
        raise Gone

    with monkeypatch.context() as patch:
        patch.setattr("ratchet.service.runs.registry.register", gone)
        patch.setattr(RunFolder, "undo_create", lambda folder: None)
        with pytest.raises(Gone):
            stage.pass_()
    assert len(stage.folders()) == 1
    served_again(stage)
    ((run,),) = stage.steps(f"loop/{id}").values()
    assert (run.id, run.status, run.is_kept) == (stage.folders()[0], "queued", True)
    assert stage.until_ended(lambda: find_loop(id)).stored.status == "target_reached"
    assert len(stage.folders()) == 2
