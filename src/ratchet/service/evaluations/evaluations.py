"""Evaluations: create one, queue it or do it now, resume it.

How one is set up is in ``evaluation_setup.py``, those that exist are in ``evaluation_catalogue.py``. The answering is a
worker's job.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ratchet.evaluation.evaluation import Evaluation
from ratchet.evaluation.evaluation_files import EVALUATION_KEY, EvaluationFiles
from ratchet.run.events import Listener
from ratchet.run.run_folder import RunFolder
from ratchet.service.evaluations.contamination import find_contamination
from ratchet.service.evaluations.evaluation_catalogue import find_evaluation
from ratchet.service.evaluations.evaluation_setup import Request, put_together
from ratchet.service.runs.registry import bring_up_to_date, find_run, new_run, open_store
from ratchet.service.runs.scheduling import Queued, queue_again, take_inline, waiting
from ratchet.service.runs.storage_paths import refuse_unusable


def evaluate(request: Request, *, listeners: Sequence[Listener] = ()) -> Evaluation:
    """Create an evaluation, do it here and return it.

    Raises:
        NotFound, Conflict, InvalidSetting, IncompatibleData, ModelUnavailable, DiskFull: nothing was started.
        RatchetError: what failed it afterwards; what is answered is kept.
    """
    return _worked_on(_made(request, is_kept=False), listeners)


def request_like(request: Request, evaluation: str) -> Request:
    """Request for the same questions, prompts, sampling and grading as an evaluation that exists.

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
        set_up_as=folder.read_config(),
    )


def queue_evaluation(request: Request) -> Queued:
    """Create an evaluation and queue it. Errors as of ``evaluate`` before anything is started."""
    folder = _made(request, is_kept=True)
    with open_store() as store:
        return waiting(store, store.get(folder.run_id))


def resume_evaluation(evaluation: str, *, listeners: Sequence[Listener] = ()) -> Evaluation:
    """Resume an evaluation that was killed or stopped.

    Raises:
        NotFound: there is no such evaluation.
        Conflict: it has ended, another process works on it, or it cannot be resumed here to the same result.
    """
    return _worked_on(take_inline(evaluation, "evaluation"), listeners)


def _worked_on(folder: RunFolder, listeners: Sequence[Listener]) -> Evaluation:
    from ratchet import worker

    try:
        worker.run(folder, listeners=listeners)
    finally:
        bring_up_to_date(folder)
    return find_evaluation(str(folder.path))


def queue_evaluation_again(evaluation: str) -> Queued:
    """Queue an evaluation again. Errors as of ``resume_evaluation``."""
    return queue_again(evaluation, "evaluation")


def _made(request: Request, *, is_kept: bool) -> RunFolder:
    """Set an evaluation up, check it, and create its folder and row."""
    refuse_unusable(None)
    config, spec = put_together(request)
    found = find_contamination(config, spec)
    spec = spec.model_copy(update={"withheld": found.withheld, "notes": (*spec.notes, *found.notes)})
    further: dict[str, Any] = {EVALUATION_KEY: spec.model_dump(mode="json")}
    if request.owner:
        further["owner"] = request.owner
    return new_run(config, None, kind="evaluation", is_kept=is_kept, further=further)
