"""A process that has loaded torch once and forks schedulers, which fork scripted workers: ``python -m``, obeys stdin.

A line "scheduler" starts one, and its pid is printed. A scheduler is ``serve_runs`` itself in a session of its own; runs of
the tiny model get real workers, all others scripted ones.
"""

import os
import signal
import sys
import traceback

from ratchet.server import serve_runs
from ratchet.supervisor.executors import LocalExecutor
from ratchet.supervisor.scheduler import Pace

from . import scripted_worker

PACE = Pace(poll_seconds=0.05, stop_seconds=20, stall_seconds=600, deaths=1000)


class BothExecutor:
    """Real workers for runs of the tiny model, scripted ones for those over rows of files."""

    def __init__(self):
        self._real, self._scripted = LocalExecutor(), scripted_worker.ForkingExecutor()

    def start(self, folder, environment):
        is_scripted = folder.read_config().data.source == "boxed"
        return (self._scripted if is_scripted else self._real).start(folder, environment)


def be_scheduler(slots):
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        serve_runs(cpu_slots=slots, gpus=0, pace=PACE, executor=BothExecutor(), show=lambda line: None)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(slots):
    scripted_worker.load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # schedulers that were killed are nobody's to wait for
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if line.strip() == "scheduler":
            pid = os.fork()
            if pid == 0:
                be_scheduler(slots)
            sys.stdout.write(f"{pid}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
