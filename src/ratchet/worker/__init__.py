"""The worker: one job, from its folder to its end. ``python -m ratchet.worker FOLDER`` works on a run and exits.

Joins the engine to the run folder: opens or resumes the run, watches clock and signals, writes every finished round
in an order that a kill cannot hurt, and turns whatever ended the rounds into an ending with the best adapter kept.
It takes no decision about learning (``engine/rounds.py``) and knows no database or web.
"""

from ratchet.run.events import Listener
from ratchet.worker.job import run

__all__ = ["Listener", "run"]
