"""One full training round, Ratchet against TRL's GRPOTrainer, side by side.

python benchmarks/rounds.py                          every row and the command line's start, then RESULTS.md
python benchmarks/rounds.py row tiny --pairs 5       one row; goes on where it was interrupted
python benchmarks/rounds.py sweep tiny               which micro-batch is each tool's best
python benchmarks/rounds.py render                   RESULTS.md from what was measured
python benchmarks/rounds.py smoke                    every row at a tiny size; writes nothing
"""

import argparse
import sys
import tempfile
from pathlib import Path

import pairs
import startup
from machine import default_threads
from report import render
from workload import ROWS

PAGE = Path(__file__).parent / "RESULTS.md"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    chosen = _arguments()
    try:
        if chosen.command == "smoke":
            _smoke(chosen.threads)
            return
        if chosen.fresh:
            _forget(chosen)
        _measure(chosen)
    except pairs.ToolFailed as failure:
        sys.exit(f"The benchmark was given up: {failure}")
    page = render(pairs.RESULTS)
    PAGE.write_text(page)
    print(page)


def _measure(chosen: argparse.Namespace) -> None:
    if chosen.command == "sweep":
        pairs.sweep(ROWS[chosen.row], chosen.threads, pairs.RESULTS, say)
    if chosen.command in ("row", "all"):
        for name in [chosen.row] if chosen.row else ROWS:
            pairs.measure(ROWS[name], chosen.pairs, chosen.threads, pairs.RESULTS, say)
    if chosen.command == "all":
        startup.store(startup.measure())


def _smoke(threads: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for row in ROWS.values():
            pairs.measure(row.shrunk(), 1, threads, Path(folder), say)
        print(render(Path(folder)))


def _forget(chosen: argparse.Namespace) -> None:
    for name in [chosen.row] if chosen.row else ROWS:
        prefix = "sweep-" if chosen.command == "sweep" else ""
        (pairs.RESULTS / f"{prefix}{name}.json").unlink(missing_ok=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", default="all", choices=["all", "row", "sweep", "render", "smoke"])
    parser.add_argument("row", nargs="?", choices=list(ROWS))
    parser.add_argument("--pairs", type=int, default=5, help="how many pairs a row has in the end (5)")
    parser.add_argument("--threads", type=int, default=default_threads(), help="for each tool (every core)")
    parser.add_argument("--fresh", action="store_true", help="measure anew what was measured before")
    chosen = parser.parse_args()
    if (chosen.command in ("row", "sweep")) != (chosen.row is not None):
        parser.error(f"{chosen.command} takes {'a row' if chosen.row is None else 'no row'}")
    return chosen


if __name__ == "__main__":
    main()
