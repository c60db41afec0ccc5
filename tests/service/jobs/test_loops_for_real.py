"""Loops and experiments with real processes and the shipped tiny model: they learn, and kills and Ctrl-C cost nothing.

Each keeper is ``ratchet serve`` as it is shipped, killed by SIGKILL while a step is in a given state.
"""

import json
import os
import signal
import time
from contextlib import closing, contextmanager

import pytest

from ratchet.config.config_text import build
from ratchet.datasets.math_pairs_source import problem_class
from ratchet.evaluation.evaluation_files import EvaluationFiles
from ratchet.run.endings import AT_WORK, ENDS
from ratchet.run.run_folder import RunFolder
from ratchet.store import Database, RunStore

from ...conducted import find_experiment, find_loop, list_experiments, list_loops, pairs, spec_of, start_of, step_of
from ...small_evaluations import apart_from_times
from ...small_runs import adapter_bytes, journal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LEARNING = {
    "model": "tiny",
    "data": {"source": "math_pairs"},
    "prompt": {"system_prompt": ""},
    "reward": {"format_bonus": "off"},
    "rl": {
        "rounds": 2,
        "prompts_per_round": 32,
        "answers_per_prompt": 8,
        "max_answer_tokens": 32,
        "validation_prompts": 64,
    },
    "learning_rate": 2e-3,
}


@pytest.fixture
def settings(tmp_path):
    """Return a function that writes settings of a run into a file."""

    def write(name="settings", **changes):
        file = tmp_path / f"{name}.json"
        file.write_text(build(LEARNING, {key: str(value) for key, value in changes.items()}).model_dump_json())
        return file

    return write


@pytest.fixture(autouse=True)
def _workers_end(tmp_path):
    """Keepers leave their workers behind; those end with the test."""
    yield
    for place in tmp_path.glob("*/runs/*"):
        if holder := RunFolder(place).holder():
            holder.signal_group(signal.SIGKILL)


def until(is_so, seconds=300):
    end = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)
    return found


@contextmanager
def opened():
    with closing(Database()) as database:
        yield RunStore(database)


def jobs(owner):
    """Return step -> the jobs that a loop or experiment has started for it."""
    found = {}
    with opened() as store:
        for run in store.owned_by(owner):
            found.setdefault(step_of(run), []).append(run)
    return found


def all_runs_but(owner):
    with opened() as store:
        return [run for run in store.all() if not (run.owner or "").startswith(owner)]


class Served:
    """One ``ratchet serve`` after another over the same home, and a loop or experiment that it carries out."""

    def __init__(self, start_cli, owner):
        self._start_cli = start_cli
        self.owner = owner
        self.process = None

    def serve(self):
        self.process = self._start_cli("serve", "--gpus", "0")
        assert "started for" in self.process.stdout.readline()

    def kill(self):
        """Kill the keeper; whatever worker there is goes on."""
        os.kill(self.process.pid, signal.SIGKILL)
        assert self.process.wait(60) == -signal.SIGKILL

    def kill_while(self, step):
        """Kill the keeper while a worker of this step lives, and start the next one."""
        until(lambda: self.worker(step))
        self.kill()
        self.serve()

    def kill_worker(self, step, has_come_so_far=lambda folder: True):
        """Kill the worker of a step once it has come so far; return whose it was."""

        def killed():
            worker = self.worker(step)
            folder = RunFolder(jobs(self.owner)[step][-1].folder) if worker else None
            return worker and has_come_so_far(folder) and worker.signal(signal.SIGKILL)

        until(killed)
        run = jobs(self.owner)[step][-1]
        assert not [event for event in journal(RunFolder(run.folder)) if event["event"] == "ended"]

    def worker(self, step):
        """Return the process that works on a step, None where none does."""
        found = jobs(self.owner).get(step)
        folder = RunFolder(found[-1].folder) if found else None
        if folder is None or not any(event["event"] == "started" for event in journal(folder)):
            return None
        return folder.holder()

    def end(self, find):
        until(lambda: find().stored.ended_at is not None)
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, err) == (0, "")
        return out


def has_round(number):
    """Return what tells whether a run has done so many rounds."""
    return lambda folder: any(
        event["event"] == "round" and event["record"]["round"] >= number for event in journal(folder)
    )


def answers(run):
    return apart_from_times(EvaluationFiles(RunFolder(run.folder)).questions())


def findings(owner):
    """Return step -> what its one job left: the adapter's bytes, or every question with its answers."""
    found = {}
    for step, (run,) in jobs(owner).items():  # one job a step: nothing is doubled
        assert run.status in ENDS
        found[step] = answers(run) if run.kind == "evaluation" else adapter_bytes(RunFolder(run.folder))
    return found


def last(text):
    return json.loads(text.splitlines()[-1])


def check_what_is_claimed(one, whole):
    """Check the undisturbed loop: it learns, asks each half where it should, and trains on no question."""
    percent = [view.percent for view in one.view.rounds]
    assert 30 <= percent[0] <= 45
    assert percent[-1] >= 90
    assert (one.report.best, one.report.held_out.verdict, one.report.target_on_held_out) == (
        len(percent) - 1,
        "better",
        True,
    )
    selection, held_out = one.spec.halves()
    asked = {question["prompt"][-1]["content"] for question in (*whole["0/score"], *whole["0/sealed"])}
    for step, (run,) in jobs(f"loop/{one.stored.id}").items():
        if run.kind == "evaluation":
            numbers = tuple(question["question"] for question in whole[step])
            assert numbers == (held_out if "sealed" in step else selection)
        else:
            trained = {row["prompt"][-1]["content"] for row in RunFolder(run.folder).read_rollouts(1)}
            assert not set(map(problem_class, trained)) & set(map(problem_class, asked))


def kill_in_every_state(served, last_round):
    """Kill keepers in every state of a loop, and workers while they train and benchmark."""
    served.serve()
    served.kill()  # queued, or a moment later
    served.serve()
    served.kill_while("0/score")  # benchmarking
    served.kill_while("1/train")  # training
    served.kill_worker("1/train", has_round(0))
    served.kill_worker("1/score")
    served.kill_while(f"{last_round}/train")
    served.kill_while("0/sealed")
    served.kill_while(f"{last_round}/sealed")


def test_a_loop_reaches_its_target_and_ends_alike_whatever_is_killed_in_every_state(
    cli, start_cli, settings, tmp_path, monkeypatch
):
    pairs("halves", 320)
    start = ("loop", "start", settings(), "-b", "halves", "--target", "90", "--inspected")
    done = cli(*start)
    assert (done.returncode, "Status     target reached" in done.stdout) == (0, True), done.stderr
    (one,) = list_loops()
    owner = f"loop/{one.stored.id}"
    whole = findings(owner)
    check_what_is_claimed(one, whole)
    assert all_runs_but(owner) == []

    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "disturbed"))
    pairs("halves", 320)
    id = last(cli(*start, "--queue", "--json").stdout)["loop"]
    assert find_loop(id).stored.status == "queued"
    served = Served(start_cli, f"loop/{id}")
    kill_in_every_state(served, one.report.best)
    served.end(lambda: find_loop(id))
    again = find_loop(id)
    assert again.stored.status == "target_reached"
    assert (again.view, again.report) == (one.view, one.report)
    assert findings(f"loop/{id}") == whole
    assert all_runs_but(f"loop/{id}") == []
    folders = {place.parent.name for place in (tmp_path / "disturbed/runs").glob("*/run.json")}
    assert folders == {run.id for (run,) in jobs(f"loop/{id}").values()}


def test_an_experiment_of_base_sft_and_rl_ends_alike_whatever_is_killed(
    cli, start_cli, settings, tmp_path, monkeypatch
):
    pairs("judging", 120)
    few = {"data.prompts": 200, "data.heldout": 0}
    sft = settings("sft", objective="sft", learning_rate=1e-3, **{**few, "sft.epochs": 1, "sft.evaluations": 1})
    start = ("experiment", "start", settings(**few), "-b", "judging", "--sft", sft, "--inspected")
    done = cli(*start)
    assert done.returncode == 0, done.stderr
    (one,) = list_experiments()
    owner = f"experiment/{one.stored.id}"
    whole = findings(owner)
    assert set(whole) == {"start/0", "sft", "sft/0", "train/0", "score/0/0"}
    assert start_of(jobs(owner)["train/0"][0]) == jobs(owner)["sft"][0].id
    (told,) = one.report.benchmarks
    assert told.table.labels == ["base", "SFT", "RL"]
    printed = " ".join(done.stdout.split())
    assert all(comparison.main.sentence in printed for comparison in told.table.comparisons)
    assert told.table.comparisons[1].main.verdict == "better"

    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "disturbed"))
    pairs("judging", 120)
    id = last(cli(*start, "--queue", "--json").stdout)["experiment"]
    served = Served(start_cli, f"experiment/{id}")
    served.serve()
    served.kill_while("start/0")  # measuring
    served.kill_while("sft")  # training
    served.kill_while("train/0")
    served.kill_while("score/0/0")  # scoring
    served.end(lambda: find_experiment(id))
    again = find_experiment(id)
    assert again.stored.status == "done"
    assert findings(f"experiment/{id}") == whole
    assert again.report.sentence == one.report.sentence
    assert all_runs_but(f"experiment/{id}") == []


def rounds_done(id):
    found = jobs(f"loop/{id}").get("1/train")
    events = journal(RunFolder(found[-1].folder)) if found else []
    return max((event["record"]["round"] for event in events if event["event"] == "round"), default=0)


def interrupted_in_training(start_cli, *arguments, done=0):
    """Start a command on a loop in this terminal and interrupt it once more rounds are done; return it and the loop."""
    process = start_cli(*arguments)
    until(list_loops)
    id = list_loops()[0].stored.id
    until(lambda: rounds_done(id) > done)
    process.send_signal(signal.SIGINT)
    return process, id


def test_ctrl_c_ends_a_loop_in_good_order_and_it_goes_on_from_there(cli, start_cli, settings):
    pairs("few", 40)
    file = settings(rounds=1000)
    start = ("loop", "start", file, "-b", "few", "--inspected", "--max-rounds", "1")
    process, id = interrupted_in_training(start_cli, *start)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    assert "Status     stopped" in out
    one = find_loop(id)
    (run,) = jobs(f"loop/{id}")["1/train"]
    assert (one.stored.status, run.status, run.ending) == ("stopped", "stopped_early", "stopped")
    with opened() as store:
        assert not store.all(statuses=["queued", *AT_WORK])
    process, _ = interrupted_in_training(start_cli, "loop", "resume", id, done=rounds_done(id))
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (0, "")
    assert [run.id] == [found.id for found in jobs(f"loop/{id}")["1/train"]]


def test_a_second_ctrl_c_ends_the_command_at_once_and_the_next_keeper_ends_the_loop(cli, start_cli, settings):
    pairs("few", 40)
    process, id = interrupted_in_training(start_cli, "loop", "start", settings(rounds=1000), "-b", "few", "--inspected")
    until(lambda: find_loop(id).stored.stop_requested_at)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert (process.returncode, err.strip()) == (130, "Error: Interrupted.")
    served = Served(start_cli, f"loop/{id}")
    served.serve()
    served.end(lambda: find_loop(id))
    assert find_loop(id).stored.status == "stopped"
    (run,) = jobs(f"loop/{id}")["1/train"]
    assert run.status == "stopped_early"
    assert spec_of(jobs(f"loop/{id}")["0/score"][0]).only


def test_a_loop_is_followed_where_a_keeper_runs_and_ctrl_c_leaves_it_to_that(cli, start_cli, settings):
    pairs("few", 40)
    file = settings(rounds=1000)
    served = start_cli("serve", "--gpus", "0")
    assert "started for" in served.stdout.readline()
    process, id = interrupted_in_training(start_cli, "loop", "start", file, "-b", "few", "--inspected")
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    assert "Ctrl-C leaves it running" in out
    assert find_loop(id).stored.stop_requested_at is None
    assert cli("loop", "stop", id).returncode == 0
    until(lambda: find_loop(id).stored.ended_at)
    assert find_loop(id).stored.status == "stopped"
