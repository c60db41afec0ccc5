"""A real run through the worker, in a folder of its own: how long rounds take, and how much of it the engine reports.

A round lasts from one "round" event, the last thing written for a round, to the next. What the engine reports of it
is sampling, grading, update and validation; the rest is the journal, the rollouts' file, the checkpoint, the adapter's
file and the bookkeeping between them.
"""

import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from channel import Channel

from ratchet import worker
from ratchet.config.config_text import build
from ratchet.engine.prepare import prepare
from ratchet.run.events import Event, RoundDone
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs import demo_presets


def main() -> None:
    channel = Channel()
    order = channel.order
    demo = demo_presets.demo_settings() if order["model"] == "tiny" else demo_presets.real_demo_settings()
    changes = {"data.heldout": 0, "rl.rounds": order["rounds"], **dict(order["changes"])}
    prepared = prepare(build(demo, {name: str(value) for name, value in changes.items()}))
    marks: list[tuple[float, dict[str, Any]]] = []

    def on_event(event: Event) -> None:
        if isinstance(event, RoundDone):
            marks.append((time.perf_counter(), event.record))

    channel.ready()
    clock = channel.wait_for_go()
    with tempfile.TemporaryDirectory() as place:
        # Converted models were found by now. The user's index of runs is no place for this one.
        os.environ["RATCHET_HOME"] = place
        folder = RunFolder.create(prepared.config, Path(place) / "run")
        result = worker.run(folder, prepared=prepared, listeners=[worker.Listener(on_event=on_event)])
        written = sum(path.stat().st_size for path in folder.path.rglob("*") if path.is_file())
    _, busy_cores = clock.read()
    if result.rounds_done != order["rounds"]:
        raise RuntimeError(f"the run ended after {result.rounds_done} rounds: {result.ending}")
    rounds = []
    for (before, _), (after, record) in pairwise(marks):
        seconds = record.seconds
        inside = {part: getattr(seconds, part) for part in ("sampling", "grading", "update", "validation")}
        rounds.append({"seconds": after - before, **inside})
    channel.report(rounds=rounds, busy_cores=busy_cores, folder_bytes=written)


if __name__ == "__main__":
    main()
