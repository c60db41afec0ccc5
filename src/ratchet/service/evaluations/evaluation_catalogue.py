"""Evaluations that exist: find, list, rank and compare them, and write their failures as new rows.

Creates no evaluation and answers no question.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.datasets import benchmark_folders
from ratchet.errors import Conflict, InvalidSetting
from ratchet.evaluation.comparison import Side, SideBySide, side_by_side
from ratchet.evaluation.evaluation import Evaluation, EvaluationScores, EvaluationSpec, QuestionResult
from ratchet.evaluation.evaluation_files import EvaluationFiles, evaluation_of
from ratchet.files import expanded, unusable_as_error, write_atomically
from ratchet.service.evaluations.benchmarks import BUILT_INS, find_benchmark, list_benchmarks
from ratchet.service.reports.evaluation_words import ranked
from ratchet.service.runs.registry import all_runs, find_run, find_stored, open_store

if TYPE_CHECKING:
    from ratchet.store import StoredRun


@dataclass(frozen=True)
class ListedEvaluation:
    """One evaluation with its job as the database has it; ``is_whole``: it asks all of the benchmark."""

    evaluation: Evaluation
    job: "StoredRun"
    is_whole: bool = True


def find_evaluation(evaluation: str) -> Evaluation:
    """Find an evaluation by id or folder.

    Raises:
        NotFound: there is none.
        Conflict: it is another kind of job, or its files are damaged.
    """
    with open_store() as store:
        folder, job = find_stored(store, evaluation)
    files = EvaluationFiles(folder)
    return _shown(job, files.spec(), files.scores())


def questions_of(evaluation: str) -> list[QuestionResult]:
    """Questions of an evaluation that are answered and graded. Errors as of ``find_evaluation``."""
    files = EvaluationFiles(find_run(evaluation))
    files.spec()
    return files.questions()


def write_failures(evaluation: str, path: Path) -> int:
    """Write the rows whose answers were not all right to a JSONL file, ready to be added as a dataset; return how many.

    Raises:
        NotFound: there is no such evaluation.
        Conflict: all answers are right, or the file cannot be written.
    """
    files = EvaluationFiles(find_run(evaluation))
    content_hash = files.spec().benchmark_hash
    failed = {one.question for one in files.questions() if one.correctness < 1}
    if not failed:
        raise Conflict(f"Evaluation {evaluation} has no failures: all its questions were answered right.")
    _, prompts = benchmark_folders.read(content_hash)
    rows = [
        {"id": str(prompt.id), **prompt.extras, "prompt": list(prompt.messages), "ground_truth": prompt.ground_truth}
        for prompt in prompts
        if prompt.id in failed
    ]
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with unusable_as_error(path, "Choose another file."):
        write_atomically(expanded(path), content.encode("utf-8", "surrogatepass"), private=True)
    return len(rows)


def list_evaluations(benchmark: str | None = None, project: str | None = None) -> list[ListedEvaluation]:
    """All evaluations whose files are still there, oldest first; on one benchmark or of one project if given.

    Raises:
        NotFound: there is no such benchmark.
    """
    content_hash = None if benchmark is None else _hash_of(benchmark)
    if benchmark is not None and content_hash is None:
        return []
    with open_store() as store:
        jobs = {run.id: run for run in all_runs(store, project) if run.kind == "evaluation"}
        stored = store.evaluations.all(content_hash)
    found = []
    for run, one in stored.items():
        if run in jobs:
            spec = EvaluationSpec.model_validate(one.spec)
            scores = None if one.scores is None else EvaluationScores.model_validate(one.scores)
            found.append(ListedEvaluation(_shown(jobs[run], spec, scores), jobs[run], is_whole=spec.only is None))
    return found


def _hash_of(benchmark: str) -> str | None:
    """Content hash of a benchmark, None for a built-in one that does not exist yet: nothing was evaluated on it."""
    known = next((one.content_hash for one in list_benchmarks() if one.name == benchmark), None)
    return known if known or benchmark in BUILT_INS else find_benchmark(benchmark).content_hash


def leaderboard(benchmark: str, project: str | None = None) -> list[Evaluation]:
    """Evaluations of a benchmark with scores, the best first, of equal ones the earlier.

    Those of a part of the questions, such as a loop's selection half, are left out.

    Raises:
        NotFound: there is no such benchmark.
    """
    found = [one.evaluation for one in list_evaluations(benchmark, project) if one.is_whole]
    return ranked(found)


def _shown(job: "StoredRun", spec: EvaluationSpec, scores: EvaluationScores | None) -> Evaluation:
    return evaluation_of(
        job.id,
        job.project,
        spec,
        scores,
        status="scoring" if job.status == "training" else job.status,
        created_at=job.created_at.isoformat(timespec="seconds"),
        ended_at=None if job.ended_at is None else job.ended_at.isoformat(timespec="seconds"),
        message=job.message,
        folder=str(job.folder),
    )


def compare_evaluations(ids: Sequence[str]) -> tuple[SideBySide, list[list[QuestionResult]]]:
    """Put evaluations side by side, each later one against the first, and each side's questions.

    Args:
        ids: Two evaluations or more, by id or folder, also as LABEL=ID.

    Raises:
        NotFound: there is no such evaluation.
        Conflict: they are not comparable, in words; or one has not completed.
        InvalidSetting: fewer than two are named, or one twice.
    """
    named = [_labelled(one) for one in ids]
    if len(named) < 2:
        raise InvalidSetting("Name two evaluations or more to compare: ratchet compare LEFT RIGHT.")
    sides = [(label, find_evaluation(id), questions_of(id)) for label, id in named]
    if len({evaluation.id for _, evaluation, _ in sides}) < len(sides):
        raise InvalidSetting("An evaluation is named twice. Compare it with another one.")
    labels = _distinct([label or evaluation.subject.name for label, evaluation, _ in sides], [s[1] for s in sides])
    table = side_by_side([Side(label, *side[1:]) for label, side in zip(labels, sides, strict=True)])
    return table, [questions for _, _, questions in sides]


def _labelled(text: str) -> tuple[str, str]:
    label, sign, id = text.rpartition("=")
    return (label.strip(), id) if sign else ("", text)


def _distinct(labels: Sequence[str], evaluations: Sequence[Evaluation]) -> list[str]:
    """Labels of which no two are the same."""
    if len(set(labels)) == len(labels):
        return list(labels)
    return [f"{label} ({one.id})" for label, one in zip(labels, evaluations, strict=True)]
