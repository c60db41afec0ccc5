"""The sentences that end a run: what is kept, and why nothing could be learned.

Shared by the worker, which ends its own run, and by ``outside.py``, which ends one for a worker that cannot. Made from
records alone: numbers, never the text of a prompt or an answer.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ratchet.run.records import RoundRecord


def kept(records: Sequence[RoundRecord], rounds: int | None) -> str:
    """Say how far a run came and which adapter is kept.

    Args:
        records: Those of round 0 and of every finished round.
        rounds: How many the run was to have, None where that is not known.
    """
    last = records[-1]
    if last.best_round == 0:
        adapter = "No round beat the starting point on validation, so training brought no gain; the starting adapter "
        adapter += "is kept."
    else:
        adapter = f"The adapter of round {last.best_round} is kept."
    # Fewer rounds than it takes to call the task at fault; said all the same.
    if len(records) > 1 and has_no_signal(records):
        adapter += f" {no_signal(records[1:])}"
    of = "" if rounds is None else f" of {rounds}"
    return f"{last.round}{of} rounds done. {adapter}"


def has_no_signal(records: Sequence[RoundRecord]) -> bool:
    """Tell whether no round so far had an answer to learn from. False for rounds that do not compare answers."""
    sampled = [record for record in records if record.groups]
    return bool(sampled) and not any(record.informative_groups for record in sampled)


class DeadSignal(NamedTuple):
    """Why groups of rounds had no signal: the cause, the counts it was read off, and what to do about it."""

    cause: str
    counts: str
    remedy: str


def no_signal(rounds: Sequence[RoundRecord]) -> str:
    """Say in words why no group of these rounds had a signal, and what to do about it."""
    found = why_no_signal(rounds)
    return (
        f"There was no learning signal in rounds {rounds[0].round} to {rounds[-1].round}: {found.cause} "
        f"({found.counts}). {found.remedy}"
    )


def why_no_signal(rounds: Sequence[RoundRecord]) -> DeadSignal:
    """Find out why answers to a prompt scored alike in these rounds, by what became of most of them."""
    total = {outcome: sum(record.outcomes[outcome] for record in rounds) for outcome in rounds[0].outcomes}
    answers = sum(total.values())
    score_sum = sum((record.reward or 0.0) for record in rounds) / len(rounds)
    common = max(total, key=lambda outcome: total[outcome])
    counted = ", ".join(f"{number} {outcome.replace('_', ' ')}" for outcome, number in total.items() if number)
    counts = f"{counted} of {answers} answers; mean score {score_sum:.2f}"
    if common == "graded":
        accuracy = sum(record.accuracy or 0.0 for record in rounds) / len(rounds)
        easier = "Start from a model that sometimes succeeds, show worked examples, give partial credit, or choose "
        easier += "easier prompts."
        if accuracy == 1.0:
            cause, remedy = "every answer was right", "Choose harder prompts: there is nothing to learn on these."
        elif accuracy == 0.0:
            cause, remedy = "all answers were wrong", easier
        else:
            cause = f"all answers to a prompt scored alike, {accuracy:.0%} of them right"
            remedy = "Raise Temperature or Answers per prompt, so that answers differ, or choose other prompts."
    else:
        cause, remedy = {
            "cut_off": ("most answers were cut off", "Raise Longest answer."),
            "unparseable": (
                "most answers could not be read",
                "Ask for the answer's place in the System prompt, show worked examples, or check the verifier.",
            ),
            "failed": ("the verifier failed on most answers", "Check the verifier."),
        }[common]
    return DeadSignal(cause, counts, remedy)
