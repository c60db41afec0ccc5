"""Out of memory, with the values of the run: what did not fit, and which settings decide how much it takes.

What to lower is ``run/diagnosis.py``. vLLM has messages of its own (``engine/sampler/vllm.py``).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ratchet.config import RunConfig
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
    """What the run was doing: validation samples too, and says so."""
    if isinstance(error, OutOfMemory) and error.stage != "sampling":
        return error.stage
    return _STAGES.get(session.doing, "update")


@dataclass(frozen=True)
class Needs:
    """What decides how much memory a run takes: its settings, its budgets, and its longest prompt with an answer."""

    config: RunConfig
    budgets: Budgets
    longest_row: int


def out_of_memory_message(stage: Stage, needs: Needs) -> str:
    """What did not fit, with the values that count, and what to lower.

    Args:
        stage: What the run was doing.
        needs: What decides how much memory that takes.
    """
    what, facts = {
        "sampling": _sampling,
        "validation": _validation,
        "update": _update,
        "loading": _loading,
    }[stage](needs)
    values = f": {', '.join(facts)}" if facts else ""
    remedy = less_memory(
        stage,
        micro_batch=needs.budgets.micro_batch_tokens > needs.longest_row,
        gradient_checkpointing=not needs.budgets.gradient_checkpointing,
    )
    return f"{what} in this device's memory{values}. {remedy}"


_Words = tuple[str, list[str]]


def _sampling(needs: Needs) -> _Words:
    rl = needs.config.rl
    return (
        "Sampling does not fit",
        [
            f"Answers per prompt is {rl.answers_per_prompt}",
            f"Max answer tokens {rl.max_answer_tokens}",
            f"Sampling budget {needs.budgets.sampling_tokens} tokens",
        ],
    )


def _validation(needs: Needs) -> _Words:
    return (
        "Validation does not fit",
        [
            f"Max answer tokens is {needs.config.rl.max_answer_tokens}",
            f"Sampling budget {needs.budgets.sampling_tokens} tokens",
        ],
    )


def _update(needs: Needs) -> _Words:
    return (
        "The update does not fit",
        [
            f"Micro batch is {needs.budgets.micro_batch_tokens} tokens",
            f"Max answer tokens {needs.config.rl.max_answer_tokens}",
            f"the longest prompt with an answer {needs.longest_row}",
        ],
    )


def _loading(needs: Needs) -> _Words:
    return "The model does not fit", []
