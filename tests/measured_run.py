"""A process that makes a trial or a full run and prints what it took: ``python measured_run.py KIND SETTINGS FOLDER``.

Times are the process's own, of the processor, so that what else runs on the machine does not count; the peak is the
largest resident set above the one before the model loads.
"""

import json
import sys
import time
from pathlib import Path

from ratchet import worker
from ratchet.config.config_text import build
from ratchet.engine import round_parts, rounds, trial_round
from ratchet.engine.memory import MemoryMeter
from ratchet.engine.policy import chosen_device
from ratchet.engine.prepare import prepare
from ratchet.run.run_folder import RunFolder


def main(kind, settings, out):
    rounds.perf_counter = round_parts.perf_counter = trial_round.perf_counter = time.process_time
    prepared = prepare(build(json.loads(Path(settings).read_text(encoding="utf-8"))))
    folder = RunFolder.create(prepared.config, Path(out), kind=kind)
    meter = MemoryMeter(chosen_device("cpu"))
    meter.begin()
    result = worker.run(folder, prepared=prepared, now=time.process_time)
    found = folder.read_trial()
    told = {"status": result.status, "seconds": result.seconds, "peak": meter.peak().host}
    told["estimate"] = found.estimate.model_dump() if found else None
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
