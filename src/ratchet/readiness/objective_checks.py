"""What sft and dpo ask of machine and rows: TRL, and answers to learn from. RL asks for a verifier instead."""

from collections.abc import Sequence
from importlib.util import find_spec

from ratchet.config import Objective
from ratchet.datasets.rows import MOST_NAMED_ROWS
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.run.records import Prompt

_INSTALL = "pip install 'ratchet-rl[trl]'"


def refuse_absent_trl(objective: Objective) -> None:
    """Refuse an objective that is trained by TRL where that is not installed.

    Raises:
        InvalidSetting: it is not.
    """
    if objective != "rl" and find_spec("trl") is None:
        raise InvalidSetting(
            f"Objective is {objective}, but the package trl is not installed. Run: {_INSTALL}", "objective"
        )


def refuse_unanswered(objective: Objective, prompts: Sequence[Prompt], what: str) -> None:
    """Refuse rows without the answers that the objective learns from; ``what`` is such as "training rows".

    Raises:
        IncompatibleData: there are such rows, up to 20 of them named by number, or there are no rows at all.
    """
    if objective == "rl":
        return
    if not prompts:
        raise IncompatibleData(f"There are no {what}. Give a dataset with rows for training and validation.")
    lacking = [prompt.id for prompt in prompts if _lacks(objective, prompt)]
    if not lacking:
        return
    named = ", ".join(map(str, lacking[:MOST_NAMED_ROWS]))
    more = f" and {len(lacking) - MOST_NAMED_ROWS:,} more" if len(lacking) > MOST_NAMED_ROWS else ""
    if objective == "sft":
        missing = "demonstration (messages that end with the assistant's, or a column completion)"
        way_out = "Add the whole answers, or choose Objective rl, which takes prompts and a verifier"
    else:
        missing = "pair of answers (columns chosen and rejected)"
        way_out = "Give preference pairs, or choose another Objective: sft for demonstrations, rl for a verifier"
    raise IncompatibleData(
        f"Objective is {objective}, but {len(lacking):,} of {len(prompts):,} {what} have no {missing}: "
        f"{'row' if len(lacking) == 1 else 'rows'} {named}{more}. {way_out}."
    )


def _lacks(objective: Objective, prompt: Prompt) -> bool:
    return not prompt.demonstration or (objective == "dpo" and not prompt.rejected)
