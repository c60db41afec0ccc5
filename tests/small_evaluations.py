"""Evaluations of the shipped tiny model that take a second, and what tests compare of them."""

import subprocess
import sys
import time

from ratchet.evaluation.evaluation_files import EvaluationFiles
from ratchet.run.run_folder import RunFolder
from ratchet.service.evaluations import benchmarks, evaluations
from ratchet.service.evaluations.evaluation_setup import Request

from .small_runs import journal


def few(name="few", questions=8, seed=0):
    """Make a benchmark of some held-out Math Pairs problems; return its name."""
    benchmarks.add_built_in("math-pairs", {"heldout": questions, "seed": seed}, name=name)
    return name


def request(subject="tiny", benchmark="few", **fields):
    """Return a request for answers of at most 32 tokens without a system prompt."""
    changes = {"system_prompt": "", "max_answer_tokens": "32", **fields.pop("changes", {})}
    return Request(subject, benchmark, changes=changes, **fields)


def made(asked):
    """Make an evaluation that nobody works on yet; return its folder."""
    return evaluations._made(asked, is_kept=False)


def files_of(evaluation):
    return EvaluationFiles(evaluation if isinstance(evaluation, RunFolder) else RunFolder.at(evaluation.folder))


def apart_from_times(questions):
    """Return questions as plain data without seconds: what two equal evaluations have in common."""
    found = [one.model_dump() for one in questions]
    for one in found:
        for answer in one["answers"]:
            del answer["seconds"]
    return found


def parts(folder):
    """Return the names of the files that hold the questions."""
    return sorted(file.name for file in folder.rollouts_path.iterdir())


def until(is_so, seconds=200):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.002)


def killed_worker(folder, done, **options):
    """Let a real worker answer so many parts, then kill it."""
    with subprocess.Popen(
        [sys.executable, "-m", "ratchet.worker", str(folder.path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        **options,
    ) as process:
        until(lambda: files_of(folder).parts_done() >= done or process.poll() is not None)
        process.kill()
        errors = process.stderr.read()
    assert process.returncode == -9, errors
    assert not any(event["event"] == "ended" for event in journal(folder))
