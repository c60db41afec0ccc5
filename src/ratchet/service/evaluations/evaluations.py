"""Evaluations: make one, go on with one, show it, list them by benchmark.

How one is put together is in ``evaluation_making.py``. The answering is a worker's job.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.datasets import benchmark_folders
from ratchet.errors import Conflict
from ratchet.evaluation.evaluation import Evaluation, EvaluationScores, EvaluationSpec, QuestionResult
from ratchet.evaluation.evaluation_files import EVALUATION_KEY, EvaluationFiles, evaluation_of
from ratchet.files import expanded, unusable_as_error, write_atomically
from ratchet.run.run_folder import RunFolder
from ratchet.service.evaluations.benchmarks import BUILT_INS, find_benchmark, list_benchmarks
from ratchet.service.evaluations.contamination import seen
from ratchet.service.evaluations.evaluation_setup import Request, put_together
from ratchet.service.reports.evaluation_words import ranked
from ratchet.service.runs.registry import all_runs, bring_up_to_date, find_run, find_stored, new_run, open_store
from ratchet.service.runs.scheduling import Queued, queue_again, take_inline, waiting
from ratchet.service.runs.start_checks import refuse_unusable

if TYPE_CHECKING:
    from ratchet.store import StoredRun
    from ratchet.worker import Watch


@dataclass(frozen=True)
class ListedEvaluation:
    """One evaluation with its job as the database has it; ``is_whole``: it asks all of the benchmark."""

    evaluation: Evaluation
    job: "StoredRun"
    is_whole: bool = True


def evaluate(request: Request, *, watch: "Watch | None" = None) -> Evaluation:
    """Make an evaluation and work on it until it ends; return it.

    Raises:
        NotFound, Conflict, InvalidSetting, IncompatibleData, ModelUnavailable, DiskFull: nothing was started.
        RatchetError: what failed it afterwards; what is answered is kept.
    """
    return _worked_on(_made(request, is_kept=False), watch)


def as_asked(request: Request, evaluation: str) -> Request:
    """Return a request for the same questions, asked and graded in the same way, as an evaluation that exists.

    An endpoint is sent the extra fields of the endpoint there, unless it is given its own.

    Raises:
        NotFound: there is no such evaluation.
        Conflict: it is another kind of job, or its files are damaged.
    """
    folder = find_run(evaluation)
    spec = EvaluationFiles(folder).spec()
    endpoint = request.endpoint
    if endpoint is not None and spec.endpoint is not None and "extra_body" not in endpoint.model_fields_set:
        endpoint = endpoint.model_copy(update={"extra_body": spec.endpoint.get("extra_body", {})})
    return replace(
        request,
        endpoint=endpoint,
        benchmark=spec.benchmark_hash,
        answers=spec.answers_per_question,
        only=spec.only,
        asked_as=folder.read_config(),
    )


def queue_evaluation(request: Request) -> Queued:
    """Make an evaluation and leave the work to the keeper. Errors as of ``evaluate`` before anything is started."""
    folder = _made(request, is_kept=True)
    with open_store() as store:
        return waiting(store, store.get(folder.run_id))


def resume_evaluation(evaluation: str, *, watch: "Watch | None" = None) -> Evaluation:
    """Go on with an evaluation that was killed or stopped.

    Raises:
        NotFound: there is no such evaluation.
        Conflict: it has ended, another process works on it, or it cannot go on here to the same result.
    """
    return _worked_on(take_inline(evaluation, "evaluation"), watch)


def _worked_on(folder: RunFolder, watch: "Watch | None") -> Evaluation:
    from ratchet import worker

    try:
        worker.run(folder, watch=watch)
    finally:
        bring_up_to_date(folder)
    return find_evaluation(str(folder.path))


def queue_evaluation_again(evaluation: str) -> Queued:
    """Let the keeper go on with an evaluation. Errors as of ``resume_evaluation``."""
    return queue_again(evaluation, "evaluation")


def find_evaluation(evaluation: str) -> Evaluation:
    """Return an evaluation by id or folder.

    Raises:
        NotFound: there is none.
        Conflict: it is another kind of job, or its files are damaged.
    """
    with open_store() as store:
        folder, job = find_stored(store, evaluation)
    files = EvaluationFiles(folder)
    return _shown(job, files.spec(), files.scores())


def questions_of(evaluation: str) -> list[QuestionResult]:
    """Return the questions that an evaluation has graded answers to. Errors as of ``find_evaluation``."""
    files = EvaluationFiles(find_run(evaluation))
    files.spec()
    return files.questions()


def write_failures(evaluation: str, path: Path) -> int:
    """Write the rows whose answers were not all right to a JSONL file, as a new dataset takes them; return how many.

    Raises:
        NotFound: there is no such evaluation.
        Conflict: all answers are right, or the file cannot be written.
    """
    files = EvaluationFiles(find_run(evaluation))
    content_hash = files.spec().benchmark_hash
    failed = {one.question for one in files.questions() if one.correctness < 1}
    if not failed:
        raise Conflict(f"Evaluation {evaluation} has no question that was not answered right.")
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
    """Return all evaluations whose files are still there, oldest first; on one benchmark, of one project, if asked.

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
    """Return a benchmark's content hash, None for a built-in one that was not made yet: nothing was evaluated on it."""
    known = next((one.content_hash for one in list_benchmarks() if one.name == benchmark), None)
    return known if known or benchmark in BUILT_INS else find_benchmark(benchmark).content_hash


def leaderboard(benchmark: str, project: str | None = None) -> list[Evaluation]:
    """Return a benchmark's evaluations with scores, the best first, of equal ones the earlier.

    Those of a part of the questions, by which a loop chooses, are left out.

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


def _made(request: Request, *, is_kept: bool) -> RunFolder:
    """Put an evaluation together, check it, and make its folder and row."""
    refuse_unusable(None)
    config, spec = put_together(request)
    found = seen(config, spec)
    spec = spec.model_copy(update={"withheld": found.withheld, "notes": (*spec.notes, *found.notes)})
    further: dict[str, Any] = {EVALUATION_KEY: spec.model_dump(mode="json")}
    if request.owner:
        further["owner"] = request.owner
    return new_run(config, None, kind="evaluation", is_kept=is_kept, further=further)
