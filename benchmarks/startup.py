"""How long everyday starts take: the command line, what a worker imports, and a served evaluation.

python benchmarks/startup.py

Imports are counted in processor seconds, so that another process of the machine does not lengthen them.
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
from typing import Any

from machine import machine, today, versions

RUNS = 15
TARGET = 2.5
COMMANDS = {
    "ratchet --help": [str(Path(sys.executable).parent / "ratchet"), "--help"],
    "python -c 'import click'": [sys.executable, "-c", "import click"],
}
IMPORT_RUNS = 5
IMPORT_TARGET = 1.1
# What a worker needs of other libraries, as the engine imports them; and what they load when imported plainly.
IMPORTS = {
    "a worker": "import ratchet.worker",
    "its libraries": "import ratchet.engine",
    "import torch, transformers, peft": "import torch, transformers, peft",
}
SERVED_RUNS = 5
SERVED_TARGET = 3.0
QUESTIONS = 60
PATH = Path(__file__).parent / "results" / "startup.json"


def measure() -> dict[str, Any]:
    """Measure everything. A first run of each command fills the file caches and is left out."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(RUNS + 1):
        for name, command in COMMANDS.items():
            started = perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            if number:
                taken[name].append((perf_counter() - started) * 1000)
    ours, bare = (median(taken[name]) for name in COMMANDS)
    return {
        "date": today(),
        "machine": machine(),
        "versions": versions(),
        "runs": RUNS,
        "milliseconds": {name: round(median(values), 1) for name, values in taken.items()},
        "ratio": round(ours / bare, 2),
        "target": TARGET,
        "imports": imports(),
        "served": served(),
    }


def imports() -> dict[str, float]:
    """Return the median processor seconds of each import."""
    taken: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(IMPORT_RUNS):
        for name, code in IMPORTS.items():
            before = _processor_seconds()
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
            taken[name].append(_processor_seconds() - before)
    return {name: round(median(values), 2) for name, values in taken.items()}


def served() -> dict[str, float]:
    """Return the median seconds from the request of an evaluation to its result; the first one, a warm-up, left out."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "RATCHET_HOME": home, "HF_HUB_OFFLINE": "1"}
        server = subprocess.Popen([*_RATCHET, "serve", "--gpus", "0"], stdout=subprocess.DEVNULL, env=environment)
        try:
            done = subprocess.run(
                [sys.executable, __file__, "requests"], check=True, stdout=subprocess.PIPE, env=environment
            )
        finally:
            server.terminate()
            server.wait()
    taken = json.loads(done.stdout)[1:]
    return {"seconds": round(median(taken), 2), "slowest": round(max(taken), 2)}


_RATCHET = COMMANDS["ratchet --help"][:1]


def requests() -> list[float]:
    """Ask whoever serves this home for evaluations of the tiny model; return the seconds that each took."""
    from ratchet.run.records import ENDS
    from ratchet.service.evaluations import benchmarks, evaluations
    from ratchet.service.evaluations.evaluation_setup import Request

    benchmarks.add_built_in("math-pairs", {"heldout": QUESTIONS}, name="short")
    changes = {"system_prompt": "", "max_answer_tokens": "32"}
    taken = []
    for _ in range(SERVED_RUNS + 1):
        started = perf_counter()
        run = evaluations.queue_evaluation(Request("tiny", "short", changes=changes)).run
        while evaluations.find_evaluation(run).status not in ENDS:
            time.sleep(0.02)
        taken.append(perf_counter() - started)
        if evaluations.find_evaluation(run).status != "completed":
            sys.exit(evaluations.find_evaluation(run).message)
    return taken


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def store(result: dict[str, Any]) -> None:
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(json.dumps(result, indent=1) + "\n")


def line(result: dict[str, Any]) -> str:
    """The result as sentences."""
    parts = ", ".join(f"`{name}` {value:.0f} ms" for name, value in result["milliseconds"].items())
    lines = [f"{parts}: {result['ratio']:.2f}x (at most {result['target']}x), median of {result['runs']} runs each."]
    if "imports" in result:
        seconds = result["imports"]
        parts = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
        ratio = seconds["a worker"] / seconds["its libraries"]
        lines.append(
            f"Imports, processor time: {parts}; a worker takes {ratio:.2f}x its libraries (at most {IMPORT_TARGET}x)."
        )
    if "served" in result:
        seconds = result["served"]
        lines.append(
            f"A served evaluation of {QUESTIONS} short questions with the tiny model: {seconds['seconds']:.2f} s from "
            f"request to result, {seconds['slowest']:.2f} s at most (under {SERVED_TARGET:g} s), {SERVED_RUNS} runs."
        )
    return " ".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["requests"]:
        print(json.dumps(requests()))
    else:
        measured = measure()
        store(measured)
        print(line(measured))
