"""The job of a run that learns from given answers (sft, dpo): the same as of rl, with other rounds."""

from functools import partial

from ratchet.engine import tuning
from ratchet.engine.prepare import Prepared
from ratchet.run.records import Ending
from ratchet.worker import training_job
from ratchet.worker.session import Session


def rounds(session: Session, prepared: Prepared) -> tuple[Ending, str]:
    """Run the rounds and return how they ended, as ``rl.rounds``."""

    def on_step(done: int, total: int) -> None:
        session.watch.on_progress("training", done, total)

    return training_job.rounds(session, prepared, partial(tuning.train, on_step=on_step))
