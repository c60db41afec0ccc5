"""What a run never looks at: the test rows of its own data, and the questions of any benchmark.

A run is trained with its test rows as they are, with others in their place, with garbage there and with nothing there:
all that it writes is the same. And a worker process that notes every file it opens opens none of them.
"""

import json
import os
import subprocess
import sys

import pytest

from ratchet import service, worker
from ratchet.config import FinalNumberVerifier
from ratchet.config.config_text import build
from ratchet.datasets import benchmark_folders
from ratchet.datasets.version_folders import split_file, versions_home
from ratchet.run.run_folder import RunFolder
from ratchet.service.data import datasets
from ratchet.service.data.datasets import with_version
from ratchet.service.evaluations import benchmarks
from ratchet.service.verification.report_gate import Consent

from ..small_evaluations import few, made, request
from ..small_runs import SMALL, adapter_bytes, journal, records, rollouts

POISON = "zyzzyva"
TEST_ROWS = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(1, 9)]
POISONED = [{"prompt": f"{POISON} {n}", "answer": str(7 * n)} for n in range(1, 12)]

# Runs the worker as ``python -m ratchet.worker`` does, and writes down every file that is opened, by whatever thread.
AUDITED = """
import os, runpy, sys
seen = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        os.write(seen, os.fsencode(arguments[0]) + b"\\n")
sys.addaudithook(hook)
sys.argv = ["ratchet.worker", sys.argv[2]]
runpy.run_module("ratchet.worker", run_name="__main__", alter_sys=True)
"""


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """Return a function that makes a home with a dataset of these test rows; returns its settings and its test file."""
    few("source", 40)
    _, prompts = benchmark_folders.read(benchmarks.find_benchmark("source").content_hash)
    rows = [{"prompt": one.messages[-1]["content"], "answer": one.ground_truth} for one in prompts]

    def make(name, test):
        monkeypatch.setenv("RATCHET_HOME", str(tmp_path / name))
        folder = tmp_path / f"{name}-rows"
        folder.mkdir()
        for split, lines in (("train", rows[:32]), ("validation", rows[32:]), ("test", test)):
            write(folder / f"{split}.jsonl", lines)
        datasets.add(str(folder), "mine")
        benchmarks.add_dataset("mine-test", "mine", FinalNumberVerifier())
        few(seed=5)
        rl = {**SMALL["rl"], "rounds": 1, "validation_prompts": 4}
        config = build(
            {**SMALL, "rl": rl, "data": {"source": "dataset", "name": "mine"}, "verifier": {"kind": "final_number"}}
        )
        file = split_file(versions_home() / with_version(config).data.content_hash, "test")
        assert (POISON in file.read_text()) == (test is POISONED)
        return config, file

    return make


def by_worker(config, path):
    """Make a run without its checks, which compare its rows with all others that are kept."""
    return RunFolder.create(with_version(config).resolved(), path, {"key": "confirmed elsewhere"})


def learned(folder):
    """Return all that a run found: its numbers but seconds, its samples, its adapter."""
    kept = [{name: value for name, value in one.items() if name != "seconds"} for one in records(folder)]
    assert len(kept) == 2
    return kept, rollouts(folder), adapter_bytes(folder)


def test_test_rows_change_nothing_that_a_run_learns(at_home, tmp_path):
    config, _ = at_home("one", TEST_ROWS)
    worker.run(by_worker(config, tmp_path / "as-they-are"))
    expected = learned(RunFolder(tmp_path / "as-they-are"))
    config, file = at_home("two", POISONED)
    worker.run(by_worker(config, tmp_path / "others"))
    assert learned(RunFolder(tmp_path / "others")) == expected

    waiting = by_worker(config, tmp_path / "garbage")
    questions = [benchmark_folders.questions_file(one.content_hash) for one in benchmarks.kept_benchmarks()]
    assert len(questions) == 2
    for spoilt in (file, *questions):
        os.chmod(spoilt, 0o600)
        spoilt.write_bytes(b"\xff\x00 " + POISON.encode())
    worker.run(waiting)
    assert learned(waiting) == expected

    for spoilt in (file, *questions):
        spoilt.unlink()
    bare = by_worker(config, tmp_path / "nothing")
    worker.run(bare)
    assert learned(bare) == expected
    everything = b"".join(one.read_bytes() for one in tmp_path.glob("garbage/**/*") if one.is_file())
    assert POISON.encode() not in everything


@pytest.mark.slow
def test_so_it_is_of_a_run_that_a_user_starts_with_all_checks(at_home, tmp_path):
    found = []
    for name, test in (("one", TEST_ROWS), ("two", POISONED)):
        config, _ = at_home(name, test)
        out = tmp_path / f"run-{name}"
        service.create_and_train(config, out, ask=lambda report: Consent("api", override="no more than a test"))
        found.append(learned(RunFolder(out)))
    assert found[0] == found[1]


def opened_by_worker(folder, seen):
    subprocess.run([sys.executable, "-c", AUDITED, str(seen), str(folder.path)], check=False, capture_output=True)
    assert [event["ending"] for event in journal(folder) if event["event"] == "ended"] == ["all_rounds"]
    return set(seen.read_text().splitlines())


@pytest.mark.slow
def test_a_worker_opens_neither_test_rows_nor_questions(at_home, tmp_path):
    config, file = at_home("one", POISONED)
    folder = by_worker(config, tmp_path / "run")
    opened = opened_by_worker(folder, tmp_path / "opened")
    assert str(split_file(file.parent, "train")) in opened
    assert str(split_file(file.parent, "validation")) in opened
    assert not [name for name in opened if os.path.basename(name).startswith("test.")]
    assert not [name for name in opened if name.startswith(str(benchmark_folders.benchmarks_home()))]

    # So it is not that the hook sees too little: an evaluation opens its questions, and no rows of datasets.
    evaluation = made(request())
    content_hash = evaluation.read_run()["evaluation"]["benchmark_hash"]
    opened = opened_by_worker(evaluation, tmp_path / "opened-by-evaluation")
    assert str(benchmark_folders.questions_file(content_hash)) in opened
    assert not [name for name in opened if name.startswith(str(versions_home()))]
    others = {one.content_hash for one in benchmarks.kept_benchmarks()} - {content_hash}
    assert not [name for name in opened for other in others if other in name]
