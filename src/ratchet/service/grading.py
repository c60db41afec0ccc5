"""Grading rows without a model: what ``ratchet grade`` does, with the verifier and reward of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.config import RunConfig
from ratchet.errors import IncompatibleData
from ratchet.records import OUTCOMES, Prompt
from ratchet.verifiers import compile_pattern, earns_format, make_verifier

_ROWS_NAMED = 20


def grade_rows(rows: Sequence[Mapping[str, Any]], config: RunConfig) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Grade rows ``{answer, ground_truth}``; return them with what was found, and how many there are of each outcome.

    Args:
        rows: Each with texts ``answer`` and ``ground_truth``; further columns are kept.
        config: Resolved; its verifier and reward settings are used.

    Raises:
        IncompatibleData: the verifier cannot check some ground truths; up to 20 rows are named.
    """
    if config.verifier is None:
        raise ValueError("the settings are not resolved")
    kind, weight = config.reward.format_bonus or "off", config.reward.format_weight
    pattern = compile_pattern(config.reward.format_pattern) if config.reward.format_pattern else None
    verifier = make_verifier(config.verifier, prefer_answer_tag=kind == "tags")
    try:
        prompts = [Prompt(number, (), str(row["ground_truth"]).strip()) for number, row in enumerate(rows, start=1)]
        reasons = [(prompt.id, reason) for prompt in prompts if (reason := verifier.check_ground_truth(prompt))]
        if reasons:
            named = "; ".join(f"row {number}: {reason}" for number, reason in reasons[:_ROWS_NAMED])
            raise IncompatibleData(f"{len(reasons)} rows have a ground truth that cannot be checked: {named}.")
        graded = []
        counts: dict[str, int] = {"right": 0, **dict.fromkeys(OUTCOMES, 0)}
        for row, prompt in zip(rows, prompts, strict=True):
            grade = verifier.grade(row["answer"], prompt)
            earned = grade.outcome != "failed" and earns_format(row["answer"], kind, pattern)
            reward = grade.correctness if kind == "off" else (grade.correctness + weight * earned) / (1 + weight)
            counts[grade.outcome] += 1
            counts["right"] += grade.correctness == 1
            found = {"correctness": grade.correctness, "outcome": grade.outcome, "parts": dict(grade.parts)}
            graded.append({**row, "reward": reward, **found, "failure": grade.failure})
    finally:
        verifier.close()
    return graded, counts
