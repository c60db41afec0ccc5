"""The scheduler of runs and what it needs. Shares nothing with the worker but the run folder.

    scheduler.py   the loop: start queued runs in free slots, follow them, resume or end those whose worker died
    ingest.py      a run's journal into the database, every event exactly once
    executors.py   how a worker process is started, how it ended, and why
    warm_start.py  workers without imports: forks of a process that has the libraries
    slots.py       the GPU and CPU slots of this machine, and which run fits where

Never imports torch or the worker.
"""
