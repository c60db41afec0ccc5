"""A verifier on rows, without a model: what ``ratchet grade`` does, and whether a dataset version fits a verifier."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ratchet.config import RunConfig
from ratchet.datasets.canonical import prompt_of
from ratchet.datasets.leak_guard import RowText, find_leaks
from ratchet.datasets.readers import BadRow
from ratchet.datasets.reference_sets import text_of
from ratchet.datasets.row_columns import extras
from ratchet.datasets.rows import BadRows
from ratchet.datasets.tables import SPLITS
from ratchet.datasets.version_folders import read_rows, usability
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.readiness import Faults
from ratchet.readiness.leak_checks import leak_notes, refuse_leaks
from ratchet.readiness.row_checks import refuse_ungradable
from ratchet.run.records import OUTCOMES, Prompt
from ratchet.service.data.datasets import found_version
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


@dataclass(frozen=True)
class DatasetCheck:
    """What prevents training or scoring with a version, as sentences; none if it is fit for both."""

    name: str
    version: int
    verifier: str
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def check_dataset(reference: str, verifier: RunConfig) -> DatasetCheck:
    """Check whether a version can be trained on and scored with a verifier.

    Args:
        reference: NAME or NAME@VERSION.
        verifier: Resolved; its verifier is used, also one with an archived metric.

    Raises:
        NotFound: there is no such version of the dataset or of a metric, or its rows are not here.
        Conflict: its rows were changed.
    """
    verifier = with_source(verifier, is_new_run=False)
    if verifier.verifier is None:
        raise ValueError("the settings are not resolved")
    found = found_version(reference)
    faults, warnings, texts = Faults(), list(usability(found.rows)), []
    checking = make_verifier(verifier.verifier, prefer_answer_tag=verifier.reward.format_bonus == "tags")
    with closing(checking):
        if isinstance(checking, Tried):
            with faults.gathered():
                checking.load()
        for split in (split for split in SPLITS if found.rows[split]):
            prompts = [prompt_of(row) for row in read_rows(found.content_hash, split)]
            texts += [RowText(split, prompt.id, text_of(prompt.messages)) for prompt in prompts]
            with faults.gathered():
                refuse_ungradable(checking, prompts, f"{split} rows")
    leaks = find_leaks(texts, unshared=SPLITS)
    with faults.gathered():
        refuse_leaks(leaks)
    warnings += leak_notes(leaks)
    problems = tuple(str(fault) for fault in faults.found)
    return DatasetCheck(found.name, found.version, verifier.verifier.kind, problems, tuple(warnings))
