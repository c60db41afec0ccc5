"""A worker that does as its run folder's ``puppet.json`` says, with the real lock and journal and no engine.

A list of acts, one worker after another taking its own list: "started", "round N", "saving", "ended", "refused",
"hang" (for ever, with a heartbeat that stands still), "deaf" (no SIGTERM is heard), "exit N", "child" (a process that
outlives it).
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ratchet.run.events import NotStarted, Planned, RoundDone, RunEnded, RunStarted, Saving
from ratchet.run.processes import Process
from ratchet.run.records import RoundRecord, Seconds, Validation
from ratchet.run.run_folder import RunFolder


def record(number):
    validation = Validation(prompts=4, accuracy=number / 10, reward=0.0, outcomes={"graded": 4})
    return RoundRecord(
        round=number, validation=validation, best_round=number, best_accuracy=number / 10, seconds=Seconds(total=2.0)
    )


def hang():
    while True:
        time.sleep(600)


def leave_child(folder):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder.path / "child").write_text(str(child.pid))


EVENTS = {
    "saving": Saving(),
    "ended": RunEnded(status="completed", ending="all_rounds", message="Done.", seconds=7.5),
    "refused": NotStarted(message="The run's device was cpu and is now cuda."),
}
ACTS = {
    "started": lambda folder, _: folder.append_event(RunStarted(run=folder.run_id, resumed=False)),
    "round": lambda folder, number: folder.append_event(RoundDone(record=record(int(number)))),
    "planned": lambda folder, number: folder.append_event(Planned(rounds=int(number), prompts=8)),
    "deaf": lambda folder, _: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "child": lambda folder, _: leave_child(folder),
    "hang": lambda folder, _: hang(),
    "exit": lambda folder, number: os._exit(int(number)),
}


def act(folder, what):
    name, _, number = what.partition(" ")
    if name in EVENTS:
        folder.append_event(EVENTS[name])
    else:
        ACTS[name](folder, number)


def main(folder, lock):
    plays = json.loads((folder.path / "puppet.json").read_text())
    with folder.locked(lock):
        own = Process.own()
        (folder.path / "workers").open("a").write(f"{own.pid} {os.environ.get('SLOT', '')}\n")
        play = plays.pop(0)
        (folder.path / "puppet.json").write_text(json.dumps(plays))
        for what in play:
            act(folder, what)


if __name__ == "__main__":
    main(RunFolder(Path(sys.argv[1])), int(sys.argv[2]))
