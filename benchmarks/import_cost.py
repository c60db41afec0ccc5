"""What it costs to import a dataset: processor seconds and peak memory of ``ratchet data add``.

    python benchmarks/import_cost.py [FORMAT ...]     jsonl, csv, parquet; all by default

Each import is a process of its own, whose peak resident memory the kernel tells. Two shapes: 500,000 short rows, and
50 MB in 25,000 longer ones.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

SHAPES = {"500,000 rows": (500_000, 60), "50 MB": (25_000, 2_000)}


def rows(count: int, characters: int):
    """Yield rows of made-up words, all different."""
    source = random.Random(0)
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=source.randint(2, 9))) for _ in range(5_000)]
    for number in range(count):
        text = " ".join(source.choices(words, k=characters // 6))
        yield {"prompt": f"{number}: {text}", "answer": str(number)}


def write(file: Path, count: int, characters: int) -> None:
    """Write such rows in the format that the file's name says."""
    if file.suffix == ".jsonl":
        with file.open("w") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows(count, characters))
    elif file.suffix == ".csv":
        import csv

        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, ["prompt", "answer"])
            writer.writeheader()
            writer.writerows(rows(count, characters))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(list(rows(count, characters))), file)


# On Linux a process's peak begins at what its parent holds when it starts it, so the parent is a small one.
_WATCH = """
import json, os, sys
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(child, 0)
print(json.dumps([status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
"""


def measured(file: Path, home: Path) -> tuple[float, float]:
    """Import a file in a process of its own; return its processor seconds and its peak memory in MB."""
    command = [sys.executable, "-m", "ratchet", "data", "add", str(file), "--name", "measured"]
    environment = {**os.environ, "RATCHET_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", _WATCH, *command], stdout=subprocess.PIPE, text=True, env=environment
    )
    status, seconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    if status:
        raise SystemExit(f"the import of {file} failed")
    return seconds, megabytes


def main() -> None:
    """Measure the asked-for formats."""
    for suffix in sys.argv[1:] or ["jsonl", "csv", "parquet"]:
        for shape, (count, characters) in SHAPES.items():
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / f"rows.{suffix}"
                write(file, count, characters)
                seconds, megabytes = measured(file, Path(folder) / "home")
                size = file.stat().st_size / 1e6
                print(f"{suffix:<8} {shape:<13} {size:6.1f} MB  {seconds:6.1f} s  peak {megabytes:6.0f} MB", flush=True)


if __name__ == "__main__":
    main()
