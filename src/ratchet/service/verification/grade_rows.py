"""Grading rows without a model: what ``ratchet grade`` does, with the verifier and reward of a run."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.config import RunConfig
from ratchet.datasets.readers import BadRow
from ratchet.datasets.row_columns import extras
from ratchet.datasets.rows import BadRows
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.readiness.row_checks import refuse_ungradable
from ratchet.run.records import OUTCOMES, Prompt
from ratchet.service.verification.user_metrics import with_source
from ratchet.verifiers import Shaping, Tried, make_verifier, takes_function


def grade_rows(
    rows: Sequence[Mapping[str, Any]], config: RunConfig, *, prefilled_think: bool = False
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Grade rows ``{answer, ground_truth}``; return them with what was found, and how many there are of each outcome.

    Args:
        rows: Each with a text ``answer`` and a ``ground_truth``: text, number, or an object or list that stands for its
            JSON. It may be left out beside ``tests``. ``tools``, ``schema`` and ``tests`` are the row's own for
            verifiers that read them; further columns are kept.
        config: Resolved; its verifier and reward settings are used, also with an archived metric. An overlong buffer
            needs tokens and does nothing.
        prefilled_think: Whether the prompts of these answers end in an opened ``<think>``.

    Raises:
        IncompatibleData: some rows cannot be read or checked by the verifier; up to 20 are named.
        InvalidSetting: the verifier cannot be built, or is a Python function.
        NotFound: there is no such metric, or no such version of it.
        MetricRefused, SandboxUnavailable: the metric cannot be loaded, or this machine cannot run it.
    """
    config = with_source(config, is_new_run=False)
    if config.verifier is None:
        raise ValueError("the settings are not resolved")
    if takes_function(config.verifier):
        raise InvalidSetting(
            "The verifier is a Python function of your own, which ratchet grade cannot call. Choose another kind, or "
            "call the function in Python.",
            field="verifier.kind",
        )
    prompts = _prompts(rows)
    shaping = Shaping(config.reward, prefilled_think)
    verifier = make_verifier(config.verifier, prefer_answer_tag=config.reward.format_bonus == "tags")
    try:
        refuse_ungradable(verifier, prompts, "rows")
        if isinstance(verifier, Tried):
            verifier.load()  # one that cannot be used is no failure of each answer
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


def _prompts(rows: Sequence[Mapping[str, Any]]) -> list[Prompt]:
    prompts, bad = [], BadRows()
    for number, row in enumerate(rows, start=1):
        try:
            prompts.append(Prompt(number, (), _ground_truth(row), extras(row)))
        except BadRow as reason:
            bad.add(number, str(reason))
    if bad.count:
        raise IncompatibleData(f"{bad.count} of {len(rows)} rows cannot be graded: {bad.named()}. Correct them.")
    return prompts


def _ground_truth(row: Mapping[str, Any]) -> str:
    truth = row.get("ground_truth")
    if truth is None:
        return ""
    return json.dumps(truth) if isinstance(truth, dict | list) else str(truth).strip()
