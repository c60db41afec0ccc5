"""How long `ratchet --help` takes, against a Python that only imports the same command-line library.

python benchmarks/startup.py
"""

import json
import subprocess
import sys
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
PATH = Path(__file__).parent / "results" / "startup.json"


def measure() -> dict[str, Any]:
    """Run both in turn; return the medians in milliseconds. One run of each before that fills the file caches."""
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
    }


def store(result: dict[str, Any]) -> None:
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(json.dumps(result, indent=1) + "\n")


def line(result: dict[str, Any]) -> str:
    """Return the result as one sentence."""
    parts = ", ".join(f"`{name}` {value:.0f} ms" for name, value in result["milliseconds"].items())
    return f"{parts}: {result['ratio']:.2f}x (at most {result['target']}x), median of {result['runs']} runs each."


if __name__ == "__main__":
    measured = measure()
    store(measured)
    print(line(measured))
