"""Running out of memory, in the words of the run it happened to: which settings decide how much it takes."""

from collections.abc import Iterator
from contextlib import contextmanager

from ratchet.engine.memory import is_out_of_memory
from ratchet.engine.memory_words import Needs, out_of_memory_message
from ratchet.engine.prepare import Prepared
from ratchet.errors import OutOfMemory, Stage
from ratchet.worker.session import Session

_STAGES: dict[str, Stage] = {
    "Sampling": "sampling",
    "Grading": "sampling",
    "Scoring": "validation",
    "The update": "update",
}


@contextmanager
def memory_in_words(session: Session, prepared: Prepared) -> Iterator[None]:
    """Turn whatever says that memory ran out into OutOfMemory with the values and remedies of this run.

    Also what was raised outside the engine's own blocks, such as Python's MemoryError while answers are graded or a
    checkpoint is packed.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, OutOfMemory) and not is_out_of_memory(error):
            raise
        stage = _stage(session, error)
        if session.plan is None:
            raise
        if session.plan.sampler.backend == "vllm" and isinstance(error, OutOfMemory) and stage != "update":
            raise  # in words of its own
        if prepared.config.objective != "rl" and isinstance(error, OutOfMemory) and stage == "update":
            raise  # likewise: its rows are not those that rl samples
        longest = max(len(encoded.token_ids) for encoded in prepared.train or prepared.heldout)
        needs = Needs(prepared.config, session.plan.budgets, longest + prepared.config.rl.max_answer_tokens)
        raise OutOfMemory(out_of_memory_message(stage, needs), stage) from error


def _stage(session: Session, error: Exception) -> Stage:
    """Return what the run was doing: validation samples too, and says so."""
    if isinstance(error, OutOfMemory) and error.stage != "sampling":
        return error.stage
    return _STAGES.get(session.doing, "update")
