"""What to say where memory ran out: what did not fit, the settings that decide how much is needed, and what to lower.

Pure functions of settings and budgets. Only what can be lowered is named. vLLM has words of its own (``vllm.py``).
"""

from dataclasses import dataclass

from ratchet.config import RunConfig
from ratchet.errors import Stage
from ratchet.models.footprint import Budgets


@dataclass(frozen=True)
class Needs:
    """What decides how much memory a run takes: its settings, its budgets, and its longest prompt with an answer."""

    config: RunConfig
    budgets: Budgets
    longest_row: int


def out_of_memory_message(stage: Stage, needs: Needs) -> str:
    """Say what did not fit, with the values that count, and what to lower.

    Args:
        stage: What the run was doing.
        needs: What decides how much memory that takes.
    """
    what, facts, remedies = {
        "sampling": _sampling,
        "validation": _validation,
        "update": _update,
        "loading": _loading,
    }[stage](needs)
    values = f": {', '.join(facts)}" if facts else ""
    return f"{what} in this device's memory{values}. Choose {', '.join(remedies)}."


_Words = tuple[str, list[str], list[str]]
_LARGER_DEVICE = "or a device with more memory"


def _sampling(needs: Needs) -> _Words:
    rl = needs.config.rl
    return (
        "Sampling does not fit",
        [
            f"Answers per prompt is {rl.answers_per_prompt}",
            f"Longest answer {rl.max_answer_tokens} tokens",
            f"Sampling budget {needs.budgets.sampling_tokens} tokens",
        ],
        ["fewer Answers per prompt", "a shorter Longest answer", "a smaller Sampling budget", _LARGER_DEVICE],
    )


def _validation(needs: Needs) -> _Words:
    return (
        "Validation does not fit",
        [
            f"Longest answer is {needs.config.rl.max_answer_tokens} tokens",
            f"Sampling budget {needs.budgets.sampling_tokens} tokens",
        ],
        ["a shorter Longest answer", "a smaller Sampling budget", _LARGER_DEVICE],
    )


def _update(needs: Needs) -> _Words:
    tokens, longest = needs.budgets.micro_batch_tokens, needs.longest_row
    remedies = []
    # One answer with its prompt is never split.
    if tokens > longest:
        remedies.append("a smaller Micro batch")
    if not needs.budgets.gradient_checkpointing:
        remedies.append("Gradient checkpointing on")
    remedies += ["a shorter Longest answer", _LARGER_DEVICE]
    facts = [
        f"Micro batch is {tokens} tokens",
        f"Longest answer {needs.config.rl.max_answer_tokens}",
        f"the longest prompt with an answer {longest}",
    ]
    return "The update does not fit", facts, remedies


def _loading(needs: Needs) -> _Words:
    return "The model does not fit", [], ["a smaller model", _LARGER_DEVICE]
