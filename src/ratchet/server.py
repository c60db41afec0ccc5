"""The composition root of ``ratchet serve``: database, slots, executor and scheduler, run until a signal.

HTTP, pages and MCP are to join it in this process. Loads no torch.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from types import FrameType

from ratchet.errors import InvalidSetting, RatchetError
from ratchet.service.jobs.conductor import Conductor, stop_followed
from ratchet.service.runs.registry import all_runs, open_store
from ratchet.supervisor.executors import Executor
from ratchet.supervisor.scheduler import Pace, Scheduler, SchedulerHome
from ratchet.supervisor.slots import find_slots
from ratchet.supervisor.warm_start import WarmExecutor

log = logging.getLogger(__name__)

_LOG_BYTES, _LOGS_KEPT = 2 << 20, 4
_CONDUCTOR_SECONDS = 30.0  # for the step that is being started when the scheduler ends


def serve_runs(
    *,
    cpu_slots: int = 1,
    gpus: int | None = None,
    stop_runs: bool = False,
    show: Callable[[str], None] = print,
    pace: Pace | None = None,
    executor: Executor | None = None,
    until_ended: str | None = None,
) -> None:
    """Run the scheduler of this RATCHET_HOME, with its loops and experiments, until SIGINT or SIGTERM.

    Args:
        cpu_slots: How many runs may use the CPU at a time.
        gpus: How many GPUs to use; by default those that are found.
        stop_runs: Stop the running runs cleanly first; otherwise they go on without the scheduler.
        show: Called with each line on what the scheduler does; the log file has them too.
        pace: How often it looks, and how long it waits.
        executor: What starts workers, by default forks of a process that has imported the libraries.
        until_ended: A loop or experiment, by its id: once it has ended, so does the scheduler. The first SIGINT or
            SIGTERM then asks it to stop cleanly; the second ends the scheduler, a SIGINT at once.

    Raises:
        Conflict: another scheduler runs for this home, or home or database cannot be used.
        InvalidSetting: there is no slot.
    """
    home = SchedulerHome()
    slots = find_slots(cpu_slots, gpus)
    if not slots:
        raise InvalidSetting(
            "There is neither a GPU nor a CPU slot to run on. Set --cpu-slots to 1 or more.", "cpu_slots"
        )
    with (
        home.held() as name,
        open_store() as store,
        _log_to(home),
        _until_signalled(until_ended) as ending,
        WarmExecutor() as warm,
    ):

        def say(line: str) -> None:
            log.info("%s", line)
            show(line)

        if executor is None:
            for slot in slots:
                warm.prepare(slot.environment)
        scheduler = Scheduler(store, executor or warm, slots, name, pace or Pace(), say)
        all_runs(store)  # enters what lies in the home and the database does not know
        say(f"Scheduler {name} started for {home.path}. Slots: {', '.join(slot.name for slot in slots)}.")
        for run in scheduler.at_work():
            say(f"Run {run.id} is still running and is followed again.")
        with _conducting(say, until_ended, ending, scheduler.pace):
            scheduler.run(ending.wait)
        if stop_runs:
            say("Ending: stopping the running runs first.")
            scheduler.finish(time.sleep)
        left = [run.id for run in scheduler.at_work()]
        going_on = f" Still running: {', '.join(left)}. The next ratchet serve follows them." if left else ""
        say(f"Scheduler {name} ended.{going_on}")


@contextmanager
def _conducting(
    say: Callable[[str], None], until_ended: str | None, ending: threading.Event, pace: Pace
) -> Iterator[None]:
    """Carry out loops and experiments in a thread inside the block.

    Checking a run may take a while, and the scheduler must follow the others meanwhile. ``ending`` is set once
    ``until_ended`` has ended.
    """
    over = threading.Event()

    def conduct() -> None:
        with open_store() as store:
            conductor = Conductor(store, say)
            while not over.is_set():
                try:
                    conductor.step()
                    if until_ended is not None and not conductor.is_open(until_ended):
                        ending.set()
                except (RatchetError, OSError) as error:  # a database that is away for a moment
                    log.warning("loops and experiments wait: %s", error)
                except Exception:
                    log.exception("a pass over loops and experiments failed")
                over.wait(pace.poll_seconds)

    thread = threading.Thread(target=conduct, name="conductor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_CONDUCTOR_SECONDS)


@contextmanager
def _until_signalled(followed: str | None = None) -> Iterator[threading.Event]:
    """Yield an event that is set once this process is to end; a second SIGINT ends it at once.

    Where a loop or experiment is followed, the first signal asks that to stop, and the scheduler ends with it.
    """
    told, asked = threading.Event(), threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and (told.is_set() or asked.is_set()):
            raise KeyboardInterrupt
        if followed is not None and not asked.is_set():
            asked.set()
            # Not from here: a signal comes at any moment, also while the database is being written.
            threading.Thread(target=stop_followed, args=[followed], daemon=True).start()
            return
        threading.Thread(target=told.set, daemon=True).start()  # whose lock the interrupted code may hold

    before = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _log_to(home: SchedulerHome) -> Iterator[None]:
    """Write what Ratchet logs to the home's log file, in files of bounded size and number."""
    handler = RotatingFileHandler(home.log_path, maxBytes=_LOG_BYTES, backupCount=_LOGS_KEPT, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("ratchet")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()
