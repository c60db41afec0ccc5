"""Grading rows without a model: what ``ratchet grade`` does, with the verifier and reward of a run."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.config import RunConfig
from ratchet.datasets.columns import extras
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.records import OUTCOMES, Prompt
from ratchet.verifiers import Shaping, Verifier, make_verifier, takes_function

_ROWS_NAMED = 20


def grade_rows(
    rows: Sequence[Mapping[str, Any]], config: RunConfig, *, prefilled_think: bool = False
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Grade rows ``{answer, ground_truth}``; return them with what was found, and how many there are of each outcome.

    Args:
        rows: Each with a text ``answer`` and a ``ground_truth``: text, number, or an object or list that stands for its
            JSON. ``tools``, ``schema`` and ``tests`` are the row's own for verifiers that read them; further columns
            are kept.
        config: Resolved; its verifier and reward settings are used. An overlong buffer needs tokens and does nothing.
        prefilled_think: Whether the prompts of these answers end in an opened ``<think>``.

    Raises:
        IncompatibleData: the verifier cannot check some ground truths; up to 20 rows are named.
        InvalidSetting: the verifier cannot be built, or is a Python function.
    """
    if config.verifier is None:
        raise ValueError("the settings are not resolved")
    if takes_function(config.verifier):
        raise InvalidSetting(
            "The verifier is a Python function of your own, which ratchet grade cannot call. Choose another kind, or "
            "call the function in Python.",
            field="verifier.kind",
        )
    shaping = Shaping(config.reward, prefilled_think)
    verifier = make_verifier(config.verifier, prefer_answer_tag=config.reward.format_bonus == "tags")
    try:
        prompts = [_prompt(number, row) for number, row in enumerate(rows, start=1)]
        _refuse_ungradable(verifier, prompts)
        graded = []
        counts: dict[str, int] = {"right": 0, **dict.fromkeys(OUTCOMES, 0)}
        for row, prompt in zip(rows, prompts, strict=True):
            grade = verifier.grade(row["answer"], prompt)
            reward = shaping.earned(grade, row["answer"]).reward
            counts[grade.outcome] += 1
            counts["right"] += grade.correctness == 1
            found = {"correctness": grade.correctness, "outcome": grade.outcome, "parts": dict(grade.parts)}
            graded.append({**row, "reward": reward, **found, "failure": grade.failure})
    finally:
        verifier.close()
    return graded, counts


def _prompt(number: int, row: Mapping[str, Any]) -> Prompt:
    truth = row["ground_truth"]
    text = json.dumps(truth) if isinstance(truth, dict | list) else str(truth).strip()
    return Prompt(number, (), text, extras(row))


def _refuse_ungradable(verifier: Verifier, prompts: Sequence[Prompt]) -> None:
    reasons = [(prompt.id, reason) for prompt in prompts if (reason := verifier.check_ground_truth(prompt))]
    if reasons:
        named = "; ".join(f"row {number}: {reason}" for number, reason in reasons[:_ROWS_NAMED])
        raise IncompatibleData(f"{len(reasons)} rows have a ground truth that cannot be checked: {named}.")
