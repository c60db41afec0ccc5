"""What Ratchet's speed and memory are held to, measured side by side with others; RESULTS.md is made of it.

python benchmarks/rounds.py bench             the rows of `make bench`, then RESULTS.md
python benchmarks/rounds.py all               every row and the command line's start, then RESULTS.md
python benchmarks/rounds.py row tiny          one row; goes on where it was interrupted
python benchmarks/rounds.py limits            what the machine can do at most
python benchmarks/rounds.py sweep tiny        which settings are each tool's best
python benchmarks/rounds.py render            RESULTS.md from what was measured
python benchmarks/rounds.py list              the names of all rows
python benchmarks/rounds.py smoke             every row at a toy size; writes nothing
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pairs
import startup
from machine import default_threads
from report import Results, render
from rows import ROWS, PairRow, Row

PAGE = Path(__file__).parent / "RESULTS.md"
PLOTS = Path(__file__).parent / "plots"
_SMOKE_MODELS = ("tiny",)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    chosen = _arguments()
    try:
        if chosen.command == "list":
            print("\n".join(f"{row.name}{'  (make bench)' if row.quick else ''}" for row in ROWS.values()))
            return
        if chosen.command == "smoke":
            _smoke(chosen.threads)
            return
        if chosen.fresh:
            _forget(chosen)
        _measure(chosen)
    except pairs.ToolFailed as failure:
        sys.exit(f"The benchmark was given up: {failure}")
    results = Results(pairs.RESULTS)
    _draw(results, PLOTS)
    page = render(results)
    PAGE.write_text(page)
    print(page)


def _measure(chosen: argparse.Namespace) -> None:
    if chosen.command == "sweep":
        row = ROWS[chosen.row]
        if not isinstance(row, PairRow):
            sys.exit(f"{row.name} has nothing to choose from.")
        pairs.sweep(row, chosen.threads, pairs.RESULTS, say)
    if chosen.command in ("limits", "bench", "all"):
        pairs.measure_limits(chosen.threads, pairs.RESULTS, say)
    if chosen.command in ("row", "bench", "all"):
        for row in _rows(chosen):
            pairs.measure(row, chosen.threads, pairs.RESULTS, say)
    if chosen.command in ("bench", "all"):
        startup.store(startup.measure())


def _rows(chosen: argparse.Namespace) -> list[Row]:
    rows = (
        [ROWS[chosen.row]] if chosen.row else [row for row in ROWS.values() if row.quick or chosen.command != "bench"]
    )
    if chosen.pairs is None:
        return rows
    return [replace(row, pairs=chosen.pairs) if isinstance(row, PairRow) else row for row in rows]


def _smoke(threads: int) -> None:
    """Run every row at a toy size; rows that shrink to the same one are run once."""
    shrunk = {row.name: row for row in (row.shrunk() for row in ROWS.values())}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pairs.measure_limits(threads, folder, say, models=_SMOKE_MODELS)
        for row in shrunk.values():
            pairs.measure(row, threads, folder, say)
        startup.served(runs=1)
        results = Results(folder, shrunk.values())
        missing = sorted(set(shrunk) - set(results.rows))
        _draw(results, folder / "plots")
        print(render(results))
    if missing:
        sys.exit(f"Not on the page: {', '.join(missing)}")


def _draw(results: Results, folder: Path) -> None:
    # Loaded only now: a process is never smaller than the one that started it, and the tools' memory is measured.
    from plots import draw

    draw(results, folder)


def _forget(chosen: argparse.Namespace) -> None:
    prefix = "sweep-" if chosen.command == "sweep" else ""
    names = ["limits"] if chosen.command == "limits" else [row.name for row in _rows(chosen)]
    for name in [*names, *(["limits"] if chosen.command in ("bench", "all") else [])]:
        (pairs.RESULTS / f"{prefix}{name}.json").unlink(missing_ok=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = ["bench", "all", "row", "limits", "sweep", "render", "list", "smoke"]
    parser.add_argument("command", nargs="?", default="bench", choices=commands)
    parser.add_argument("row", nargs="?", choices=list(ROWS))
    parser.add_argument("--pairs", type=int, help="how many pairs a row has in the end (each row's own number)")
    parser.add_argument("--threads", type=int, default=default_threads(), help="for each tool (every core)")
    parser.add_argument("--fresh", action="store_true", help="measure anew what was measured before")
    chosen = parser.parse_args()
    if (chosen.command in ("row", "sweep")) != (chosen.row is not None):
        parser.error(f"{chosen.command} takes {'a row' if chosen.row is None else 'no row'}")
    return chosen


if __name__ == "__main__":
    main()
