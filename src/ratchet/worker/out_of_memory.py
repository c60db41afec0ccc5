"""Out of memory, with the values of the run: what did not fit, and which settings decide how much it takes.

What to lower is ``run/diagnosis.py``. vLLM has messages of its own (``engine/sampler/vllm.py``).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ratchet.engine.memory import is_out_of_memory
from ratchet.engine.prepare import Prepared
from ratchet.errors import OutOfMemory, Stage
from ratchet.models.footprint import Budgets
from ratchet.run.diagnosis import less_memory
from ratchet.run.events import RunPhase
from ratchet.worker.session import Session

# The stage of a fault by what the run was at; every other phase needs the memory of an update.
_STAGES: dict[RunPhase, Stage] = {"sampling": "sampling", "grading": "sampling", "scoring": "validation"}


@contextmanager
def memory_in_words(session: Session, prepared: Prepared) -> Iterator[None]:
    """Turn whatever says that memory ran out into OutOfMemory with the values and remedies of this run.

    Also what was raised outside the engine's own blocks, such as Python's MemoryError while answers are graded or a
    checkpoint is packed.
    """
    try:
        yield
    except Exception as error:
        is_ours = isinstance(error, OutOfMemory)
        if session.plan is None or not (is_ours or is_out_of_memory(error)):
            raise
        stage = _stage(session, error)
        if is_ours and stage != "update" and session.plan.sampler.backend == "vllm":
            raise  # in words of its own
        if is_ours and stage == "update" and prepared.config.objective != "rl":
            raise  # likewise: its rows are not those that rl samples
        raise OutOfMemory(_message(stage, prepared, session.plan.budgets), stage) from error


def _stage(session: Session, error: Exception) -> Stage:
    """What the run was doing: validation samples too, and says so."""
    if isinstance(error, OutOfMemory) and error.stage != "sampling":
        return error.stage
    return _STAGES.get(session.doing, "update")


def _message(stage: Stage, prepared: Prepared, budgets: Budgets) -> str:
    """What did not fit, with the values that count, and what to lower."""
    rl = prepared.config.rl
    longest_row = max(len(one.token_ids) for one in prepared.train or prepared.heldout) + rl.max_answer_tokens
    answer = f"Max answer tokens {rl.max_answer_tokens}"
    cache = f"Sampling budget {budgets.sampling_tokens} tokens"
    micro_batch = f"Micro batch is {budgets.micro_batch_tokens} tokens"
    what, facts = {
        "sampling": ("Sampling does", [f"Answers per prompt is {rl.answers_per_prompt}", answer, cache]),
        "validation": ("Validation does", [f"Max answer tokens is {rl.max_answer_tokens}", cache]),
        "update": ("The update does", [micro_batch, answer, f"the longest prompt with an answer {longest_row}"]),
        "loading": ("The model does", []),
    }[stage]
    values = f": {', '.join(facts)}" if facts else ""
    remedy = less_memory(
        stage,
        micro_batch=budgets.micro_batch_tokens > longest_row,
        gradient_checkpointing=not budgets.gradient_checkpointing,
    )
    return f"{what} not fit in this device's memory{values}. {remedy}"
