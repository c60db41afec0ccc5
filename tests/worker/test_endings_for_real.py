"""Endings that need a real process, a real limit on memory or a real disk that fills up."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from ratchet.run.run_folder import RunFolder

from ..small_runs import adapter_bytes, ended, flags, records, small

# Lets the process have so many bytes more than it has when a phase begins: what it asks for beyond is refused, by the
# same call that the system refuses when there is no more memory.
LIMITED = """
import ctypes, gc, json, resource, sys
from pathlib import Path
from ratchet import worker
from ratchet.run.run_folder import RunFolder

folder, phase, headroom = RunFolder(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])

def on_progress(now, done, total):
    if now == phase and done == 0:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + headroom, resource.RLIM_INFINITY))

result = worker.run(folder, listeners=[worker.Listener(on_progress=on_progress)])
print(result.model_dump_json())
"""
# So much, and what a phase asks for beyond: a cache for 1,024 answers of 200 tokens; a row of all answers at once.
LARGE = {
    "sampling": (48 << 20, {"prompts_per_round": 32, "answers_per_prompt": 32, "max_answer_tokens": 200}),
    "updating": (8 << 20, {"prompts": 96, "prompts_per_round": 96, "micro_batch_tokens": 200_000}),
}


@pytest.mark.slow
@pytest.mark.parametrize("phase", LARGE)
def test_out_of_memory_under_a_real_limit(phase, tmp_path):
    headroom, settings = LARGE[phase]
    folder = RunFolder.create(small(heldout=0, rounds=1, **settings), tmp_path / "run")
    command = [sys.executable, "-W", "error", "-c", LIMITED, str(folder.path), phase, str(headroom)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["status"], result["ending"], result["rounds_done"]) == ("stopped_early", "out_of_memory", 0)
    what = "Sampling does not fit" if phase == "sampling" else "The update does not fit"
    assert what in result["message"]
    assert "more memory" in result["message"]
    assert adapter_bytes(folder)
    assert ended(folder)["message"] == result["message"]


# A disk of its own for one process; nothing but its last byte is left after round 1, and the folder is copied away.
FULL_DISK = """
import os, shutil, sys
from pathlib import Path
from ratchet import worker
from ratchet.run.events import Note
from ratchet.run.run_folder import RunFolder

disk, home = Path(sys.argv[1]), Path(sys.argv[2])
shutil.copytree(home / "run", disk / "run")
folder = RunFolder(disk / "run")

def on_event(event):
    if event.event == "round" and event.record.round == 1:
        # What is left of its last page the journal would have for itself: an event fills it.
        before = folder.events_path.stat().st_size
        folder.append_event(Note(text=""))
        after = folder.events_path.stat().st_size
        folder.append_event(Note(text="x" * ((before - 2 * after) % 4096)))
        assert folder.events_path.stat().st_size % 4096 == 0
        with (disk / "filler").open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass

result = worker.run(folder, listeners=[worker.Listener(on_event=on_event)])
shutil.copytree(disk / "run", home / "after")
print(result.model_dump_json())
"""


def with_a_disk_of_its_own(place, command):
    """Return a command that runs another with a small file system at a place, seen by itself alone; None without."""
    script = f'mount -t tmpfs -o size=24m tmpfs "{place}" && exec "$@"'
    able = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*able, f'mount -t tmpfs tmpfs "{place}"'], capture_output=True).returncode:
        return None
    return [*able, script, "sh", *command]


@pytest.mark.slow
def test_the_end_is_written_down_on_a_disk_that_has_no_room_at_all(tmp_path):
    folder = RunFolder.create(small(heldout=0), tmp_path / "run")
    (tmp_path / "disk").mkdir()
    command = [sys.executable, "-W", "error", "-c", FULL_DISK, str(tmp_path / "disk"), str(tmp_path)]
    command = with_a_disk_of_its_own(tmp_path / "disk", command)
    if command is None:
        pytest.skip("no file system can be mounted here")
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["status"], result["ending"], result["rounds_done"]) == ("stopped_early", "disk_full", 1)
    shutil.rmtree(folder.path)
    (tmp_path / "after").rename(folder.path)
    assert ended(folder)["message"] == result["message"]
    assert "Free some space" in result["message"]
    assert ended(folder)["best_round"] == records(folder)[-1]["best_round"]
    assert adapter_bytes(folder)


@pytest.mark.slow
def test_a_command_that_reached_its_target_succeeds_and_tells_what_it_cost(cli, tmp_path):
    done = cli(
        "train",
        *flags(target_percent=1, price_per_hour=1000, cost_cap=900, currency="EUR"),
        "--out",
        tmp_path / "run",
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    assert "Cost     at most 900.00 EUR, 1000 EUR an hour" in done.stdout
    assert "EUR so far" in done.stdout
    assert "The target is reached." in done.stdout
    shown = cli("runs", "show", tmp_path / "run", "--json")
    fields = json.loads(shown.stdout)
    assert (fields["ending"], fields["currency"]) == ("target", "EUR")
    assert fields["cost"] > 0
