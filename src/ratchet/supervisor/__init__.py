"""The supervisor: the keeper of runs and what it needs, beside the worker and joined to it by the run folder alone.

    keeper.py     the loop: start queued runs in free slots, follow them, resume or end those whose worker died
    ingest.py     what a run's journal says, into the database, exactly once
    executors.py  how a worker process is started, and how it ended
    warm_start.py workers without imports: forks of a process that has the libraries
    slots.py      what this machine has to run on, and which run goes where
    deaths.py     why a worker died, in words
    home.py       one keeper for a RATCHET_HOME, and what it is called

Never imports torch or the worker.
"""

from ratchet.supervisor.executors import Executor, LocalExecutor
from ratchet.supervisor.ingest import ingest
from ratchet.supervisor.scheduler import Keeper, Pace
from ratchet.supervisor.scheduler_home import KeeperHome
from ratchet.supervisor.slots import Slot, find_slots
from ratchet.supervisor.warm_start import WarmExecutor

__all__ = ["Executor", "Keeper", "KeeperHome", "LocalExecutor", "Pace", "Slot", "WarmExecutor", "find_slots", "ingest"]
