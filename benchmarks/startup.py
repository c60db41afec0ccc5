"""How long everyday starts take: the command line, what a worker imports, and a served evaluation.

python benchmarks/startup.py

Starts are counted in processor seconds, so that another process of the machine does not lengthen them.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from machine import machine, today, versions

_RATCHET = str(Path(sys.executable).parent / "ratchet")


class Start(NamedTuple):
    """A start, and what it is measured against: the libraries that it needs."""

    command: list[str]
    libraries: str
    most: float  # times the libraries' processor time
    runs: int


STARTS = {
    "ratchet --help": Start([_RATCHET, "--help"], "import click", 2.5, 15),
    "ratchet runs list": Start([_RATCHET, "runs", "list"], "import sqlalchemy, alembic, pydantic", 1.2, 15),
    # A worker up to its first line (it is given no run), and what the engine imports of other libraries.
    "a worker": Start([sys.executable, "-m", "ratchet.worker"], "import ratchet.engine", 1.1, 5),
}
PLAIN = "import torch, transformers, peft"  # what the last one would take without the engine's care
SERVED_RUNS = 5
SERVED_TARGET = 3.0
QUESTIONS = 60
PATH = Path(__file__).parent / "results" / "startup.json"


def measure() -> dict[str, Any]:
    """Measure everything. A first run of each command fills the file caches and is left out."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "RATCHET_HOME": home, "HF_HUB_OFFLINE": "1"}
        starts = {name: _start(start, environment) for name, start in STARTS.items()}
        plain = median(_processor_seconds([sys.executable, "-c", PLAIN], environment) for _ in range(5))
    return {
        "date": today(),
        "machine": machine(),
        "versions": versions(),
        "starts": starts,
        "plain": round(plain, 2),
        "served": served(),
    }


def _start(start: Start, environment: dict[str, str]) -> dict[str, float]:
    """Medians of processor seconds of a command and of its libraries, taken in turn."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(start.runs + 1):
        for command, seconds in zip((start.command, [sys.executable, "-c", start.libraries]), taken, strict=True):
            spent = _processor_seconds(command, environment)
            if number:
                seconds.append(spent)
    return {"seconds": round(median(taken[0]), 3), "libraries": round(median(taken[1]), 3)}


def _processor_seconds(command: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=False, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def served(runs: int = SERVED_RUNS) -> dict[str, float]:
    """Return the median seconds from the request of an evaluation to its result; the first one, a warm-up, left out."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "RATCHET_HOME": home, "HF_HUB_OFFLINE": "1"}
        server = subprocess.Popen([_RATCHET, "serve", "--gpus", "0"], stdout=subprocess.DEVNULL, env=environment)
        try:
            done = subprocess.run(
                [sys.executable, __file__, "requests", str(runs)], check=True, stdout=subprocess.PIPE, env=environment
            )
        finally:
            server.terminate()
            server.wait()
    taken = json.loads(done.stdout)[1:]
    return {"seconds": round(median(taken), 2), "slowest": round(max(taken), 2)}


def requests(runs: int) -> list[float]:
    """Ask whoever serves this home for evaluations of the tiny model; return the seconds that each took."""
    from ratchet.run.endings import ENDS
    from ratchet.service.evaluations import benchmarks, evaluations
    from ratchet.service.evaluations.evaluation_setup import Request

    benchmarks.add_built_in("math-pairs", {"heldout": QUESTIONS}, name="short")
    changes = {"system_prompt": "", "max_answer_tokens": "32"}
    taken = []
    for _ in range(runs + 1):
        started = perf_counter()
        run = evaluations.queue_evaluation(Request("tiny", "short", changes=changes)).run
        while evaluations.find_evaluation(run).status not in ENDS:
            time.sleep(0.02)
        taken.append(perf_counter() - started)
        if evaluations.find_evaluation(run).status != "completed":
            sys.exit(evaluations.find_evaluation(run).message)
    return taken


def store(result: dict[str, Any]) -> None:
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(json.dumps(result, indent=1) + "\n")


def line(result: dict[str, Any]) -> str:
    """The result as sentences."""
    sentences = []
    for name, start in STARTS.items():
        ours, theirs = result["starts"][name].values()
        shown = f"`{name}`" if name.startswith("ratchet ") else name.capitalize()
        sentences.append(
            f"{shown}: {1000 * ours:.0f} ms of processor time, {ours / theirs:.2f}x `{start.libraries}` "
            f"(at most {start.most}x; median of {start.runs})."
        )
    sentences.append(f"`{PLAIN}` takes {result['plain']:.1f} s.")
    seconds = result["served"]
    sentences.append(
        f"A served evaluation of {QUESTIONS} short questions with the tiny model: {seconds['seconds']:.2f} s from "
        f"request to result, {seconds['slowest']:.2f} s at most (under {SERVED_TARGET:g} s), {SERVED_RUNS} runs."
    )
    return " ".join(sentences)


if __name__ == "__main__":
    if sys.argv[1:2] == ["requests"]:
        print(json.dumps(requests(int(sys.argv[2]))))
    else:
        measured = measure()
        store(measured)
        print(line(measured))
