"""Loops: train and benchmark round after round, each on top of the best so far, until there is a reason to end.

What is to be done next is decided in ``supervisor/loops.py`` from the history alone; the history is told by the runs
and evaluations that name the loop as their owner (``steps.py``). ``conduct`` does what is decided, as often as it is
called.

The sealed half
---------------
It may have no say in what wins, so the winner is fixed as soon as an evaluation on it has begun. A wish to stop that
comes earlier leaves it sealed, and the loop may be gone on with under other limits. One that comes while it is asked
stops the loop too, and nothing that it found is reported; such a loop goes on with the sealed half alone, under the
same limits and with no round trained, benchmarked or tried anew. One that comes when start and winner have both
answered is too late: the loop closes under the ending that it came to without it, and is not gone on with.
"""

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ratchet.config import LoopSettings, MathPairsData, RunConfig, StartSettings
from ratchet.datasets import benchmark_folders
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting, NotFound, RatchetError
from ratchet.evaluation.benchmark import BenchmarkSpec
from ratchet.evaluation.evaluation_files import EvaluationFiles
from ratchet.evaluation.loop import (
    MOST_TRIES,
    BenchmarkRound,
    EndLoop,
    LoopReport,
    LoopRound,
    LoopStatus,
    LoopView,
    RoundEvaluation,
    RoundRun,
    TrainRound,
)
from ratchet.evaluation.loop_decisions import decide, halves, view
from ratchet.evaluation.loop_report import closing
from ratchet.run.records import Record
from ratchet.run.run_folder import RunFolder
from ratchet.service.evaluations.benchmarks import find_benchmark
from ratchet.service.evaluations.contamination import refuse_shared, seen
from ratchet.service.evaluations.evaluation_setup import Request, put_together
from ratchet.service.jobs.job_steps import (
    Steps,
    ask_to_stop,
    begin_evaluation,
    begin_run,
    forget,
    resume_stopped,
    state_of,
    steps_of,
    stop_all,
)
from ratchet.service.runs.registry import Origin, open_store

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun
    from ratchet.store.job_rows import StoredPlan

log = logging.getLogger(__name__)

OPEN: tuple[LoopStatus, ...] = ("queued", "training", "benchmarking")
_RESUMABLE: tuple[LoopStatus, ...] = ("stopped", "failed")
_LEAST_QUESTIONS = 2


class LoopPlan(Record):
    """What a loop is carried out with.

    Attributes:
        settings: Target, limits and column.
        config: Settings of its runs, resolved; a round takes another start and another seed.
        benchmark_hash: The benchmark.
        confirmation: Who has read the report of the runs' verifier.
        source_run: The run whose settings these are, None where they came from a file.
        home: The RATCHET_HOME whose keeper carries it out.
    """

    settings: LoopSettings
    config: RunConfig
    benchmark_hash: str
    confirmation: dict[str, Any] | None = None
    source_run: str | None = None
    home: str


@dataclass(frozen=True)
class Loop:
    """A loop as it is shown: its row, its plan, its rounds, and, once it has ended, its report."""

    stored: "StoredPlan"
    plan: LoopPlan
    benchmark: BenchmarkSpec
    steps: Steps
    history: list[LoopRound]
    report: LoopReport | None

    @cached_property
    def view(self) -> LoopView:
        """Its rounds as people see them. Tests every round against another: not for whoever looks each second."""
        return view(self.plan.settings, self.history)

    def run_of(self, number: int) -> "StoredRun | None":
        """Return the run of a round, None for the start and for one that has not begun."""
        return self.steps.last(_train(number)) if number else None

    def evaluation_of(self, number: int) -> "StoredRun | None":
        """Return the job that benchmarks, or has benchmarked, a round."""
        return self.steps.last(_score(number))


def create_loop(plan: LoopPlan) -> "StoredPlan":
    """Check a loop and enter it; the keeper carries it out.

    Raises:
        NotFound, Conflict, InvalidSetting: the benchmark or the start is not there, or they do not fit.
        IncompatibleData: rows to train on, or that the start was trained on, are questions of the benchmark.
    """
    benchmark = find_benchmark(plan.benchmark_hash).spec
    if benchmark.questions < _LEAST_QUESTIONS:
        raise InvalidSetting(
            f"Benchmark {benchmark.name} has 1 question. A loop needs {_LEAST_QUESTIONS} at least: one half of them "
            "chooses the best round, the other says what it is worth.",
            "benchmark",
        )
    name = plan.settings.name or f"{benchmark.name}, {plan.config.model}"
    plan = plan.model_copy(update={"settings": plan.settings.model_copy(update={"name": name})})
    start, spec = put_together(_of_start(plan, Steps("", {}).owner_of(_score(0)), "choosing", halves_of(plan)[0]))
    is_given = "score_column" in plan.settings.model_fields_set
    column = plan.settings.score_column if is_given else spec.main_column
    if column not in spec.score_columns:
        raise InvalidSetting(
            f"Score column is {column}, but benchmark {benchmark.name} has {', '.join(spec.score_columns)} with these "
            "settings. Choose one of these.",
            "score_column",
        )
    plan = plan.model_copy(update={"settings": plan.settings.model_copy(update={"score_column": column})})
    refuse_shared(plan.config, [plan.benchmark_hash])
    known = seen(start, spec.model_copy(update={"only": None, "questions": benchmark.questions}))
    if known.withheld:
        raise IncompatibleData(
            f"Nothing could be claimed against the start of this loop. {known.withheld} Or start from another adapter, "
            "or from the base model."
        )
    with open_store() as store:
        return store.loops.add(
            plan.model_dump(mode="json"), name=plan.settings.name, project=plan.config.project, status="queued"
        )


def find_loop(id: str) -> Loop:
    """Return a loop.

    Raises:
        NotFound: there is none of this id, or files of its rounds are gone.
        Conflict: they are damaged.
    """
    with open_store() as store:
        return _read(store, store.loops.get(id))


def list_loops(project: str | None = None) -> list[Loop]:
    """Return all loops, oldest first, of one project if asked; one whose files are gone is named in the log."""
    found = []
    with open_store() as store:
        for one in store.loops.all(project):
            try:
                found.append(_read(store, one))
            except RatchetError as error:
                log.warning("loop %s cannot be shown: %s", one.id, error)
    return found


def stop_loop(id: str) -> None:
    """Ask a loop to end: what it has at work ends in good order, and nothing more is started.

    Raises:
        NotFound: there is none of this id.
        Conflict: it has ended.
    """
    with open_store() as store:
        ask_to_stop(store.loops, id, OPEN)


def resume_loop(id: str, changes: Mapping[str, Any] | None = None) -> None:
    """Let the keeper go on with a loop that was stopped or has failed; ``changes`` are laid over its settings.

    Raises:
        NotFound: there is none of this id.
        Conflict: it has not ended; or it has, and its sealed half is sealed no more; or its sealed half was begun, and
            other limits are given.
    """
    with open_store() as store:
        stored = store.loops.get(id)
        one = _read(store, stored)
        if stored.status in OPEN:
            raise Conflict(f"Loop {id} is {stored.status}: it goes on by itself while ratchet serve runs.")
        if stored.status not in _RESUMABLE:
            raise Conflict(
                f"Loop {id} has ended ({stored.status.replace('_', ' ')}), and the sealed half of its benchmark is "
                "sealed no more, so that it would choose by what it is judged by. Start a new loop from its best "
                "adapter: ratchet loop start RUN --from-adapter, with another --split-seed."
            )
        settings = one.plan.settings.model_copy(update=dict(changes or {}))
        sealed_steps = _sealed_steps(one.steps)
        if sealed_steps and settings != one.plan.settings:
            raise Conflict(
                f"Loop {id} has begun to ask the sealed half of its benchmark, so its winner is fixed: under other "
                f"limits it could choose by what it is judged by. Go on without them: ratchet loop resume {id}"
            )
        plan = one.plan.model_copy(update={"settings": settings})
        resume_stopped(one.steps, sealed_steps or [_last_step(one.steps)])
        forget(store, _lost_at_the_end(steps_of(store, f"loop/{id}")))
        fresh = {"settings": plan.model_dump(mode="json"), "message": "", "ended_at": None, "stop_requested_at": None}
        store.loops.move(id, [stored.status], "queued", report=None, **fresh)


def _last_round(steps: Steps) -> int:
    return max((int(step.partition("/")[0]) for step in steps.tries), default=0)


def _sealed_steps(steps: Steps) -> list[str]:
    return [step for step in steps.tries if step.endswith("/sealed")]


def _last_step(steps: Steps) -> str:
    """Return the step of the last round upon which nothing was built yet."""
    number = _last_round(steps)
    return _score(number) if steps.number(_score(number)) else _train(number)


def _lost_at_the_end(steps: Steps) -> "list[StoredRun]":
    """Return the jobs that are tried anew: those that failed after the last round that came to something.

    Once the sealed half was begun it is that half's jobs alone, since another round could be another winner.
    """
    if sealed_steps := _sealed_steps(steps):
        return [run for step in sealed_steps if steps.state(step) == "lost" for run in steps.tries[step]]
    lost: list[StoredRun] = []
    number = _last_round(steps)
    while number and steps.state(_train(number)) == "lost":
        lost += steps.tries[_train(number)]
        number -= 1
    if steps.state(_score(0)) == "lost":
        lost += steps.tries[_score(0)]
    return lost


def conduct(store: "RunStore", stored: "StoredPlan") -> None:
    """Look at where a loop stands and do what is decided.

    Raises:
        RatchetError: a step cannot be started.
    """
    one = _read(store, stored)
    is_stopping = stored.stop_requested_at is not None and not _has_answered_sealed(one)
    if is_stopping:
        stop_all(one.steps.at_work)
    decision = decide(one.plan.settings, one.history, stop_requested=is_stopping)
    if isinstance(decision, EndLoop):
        if _asks_sealed(one, decision):
            _move(store, stored, "benchmarking")
            return
        if one.steps.at_work:  # of the sealed half, and asked to stop
            return
        _reclaim(one, decision.best)
        _end(store, one, decision)
    elif isinstance(decision, TrainRound):
        _move(store, stored, "training")
        _train_round(one, decision)
    elif isinstance(decision, BenchmarkRound):
        _move(store, stored, "benchmarking")
        _benchmark_round(one, decision)
    else:
        _move(store, stored, decision.status)


def fail(store: "RunStore", id: str, message: str) -> None:
    """End a loop whose next step cannot be started; what it has at work is asked to stop."""
    store.loops.move(id, OPEN, "failed", message=message, ended_at=datetime.now(UTC))
    stop_all(steps_of(store, f"loop/{id}").at_work)


def _read(store: "RunStore", stored: "StoredPlan") -> Loop:
    plan = LoopPlan.model_validate_json(json.dumps(stored.settings))  # strict: a list is a tuple in JSON alone
    steps = steps_of(store, f"loop/{stored.id}")
    report = None if stored.report is None else LoopReport.model_validate(stored.report)
    return Loop(stored, plan, benchmark_folders.read_spec(plan.benchmark_hash), steps, _history(plan, steps), report)


def _column(plan: LoopPlan) -> str:
    if plan.settings.score_column is None:
        raise ValueError("the loop's settings are not resolved")
    return plan.settings.score_column


def _sealed(number: int) -> str:
    return f"{number}/sealed"


def _train(number: int) -> str:
    return f"{number}/train"


def _score(number: int) -> str:
    return f"{number}/score"


def _history(plan: LoopPlan, steps: Steps) -> list[LoopRound]:
    """Return the rounds so far as the decision takes them, from what their jobs have left."""
    rounds = []
    number = 0
    while steps.number(_train(number)) or steps.number(_score(number)):
        rounds.append(_round(plan, steps, number))
        number += 1
    return rounds


def _round(plan: LoopPlan, steps: Steps, number: int) -> LoopRound:
    trained: dict[str, RoundRun] = {"none": "none", "working": "at_work", "done": "adapter", "lost": "no_adapter"}
    scored: dict[str, RoundEvaluation] = {"none": "none", "working": "at_work", "done": "scored", "lost": "failed"}
    job = steps.last(_score(number))
    evaluation = scored[state_of(job)]
    scores, withheld = None, ""
    if evaluation == "scored" and job is not None:
        scores, withheld = _scores(job, _column(plan))
    return LoopRound(
        number=number,
        run="none" if number == 0 else trained[steps.state(_train(number))],
        evaluation=evaluation,
        tries=steps.number(_score(number)),
        scores=scores,
        withheld=withheld,
    )


def _scores(job: "StoredRun", column: str) -> tuple[tuple[float, ...], str]:
    """Return the score of each question, and why no verdict is given on them.

    Raises:
        NotFound: the files of the evaluation are gone.
    """
    if job.folder is None:
        raise AssertionError("a job that has ended has a folder")
    folder = RunFolder(job.folder)
    files = EvaluationFiles(folder)
    found, scores = (files.column(column), files.scores()) if folder.is_there() else ((), None)
    if not found or scores is None:
        raise NotFound(f"The answers of evaluation {job.id} are not in {job.folder} any more: its round has no score.")
    return found, scores.withheld


def halves_of(plan: LoopPlan) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of the benchmark's questions that choose, and those that are sealed until the end."""
    benchmark, prompts = benchmark_folders.read(plan.benchmark_hash)
    difficulty = {prompt.id: prompt.extras["difficulty"] for prompt in prompts if "difficulty" in prompt.extras}
    is_told = benchmark.difficulty != "none"
    return halves([prompt.id for prompt in prompts], plan.settings.seed, difficulty if is_told else None)


def _of_start(plan: LoopPlan, owner: str, half: str, questions: tuple[int, ...]) -> Request:
    """Return what is asked to benchmark the start on one half of the questions."""
    return Request(
        subject="",
        benchmark=plan.benchmark_hash,
        owner=owner,
        config=plan.config,
        project=plan.config.project,
        only=questions,
        name=f"{plan.settings.name}: start, {half} half",
    )


def _benchmark_round(one: Loop, decision: BenchmarkRound) -> None:
    begin_evaluation(_of_round(one, decision.round, _score(decision.round), halves_of(one.plan)[0]))


def _of_round(one: Loop, number: int, step: str, questions: tuple[int, ...]) -> Request:
    """Return what is asked to benchmark a round on some of the questions."""
    half = "sealed" if step == _sealed(number) else "choosing"
    asked = _of_start(one.plan, one.steps.owner_of(step), half, questions)
    if number == 0:
        return asked
    run = one.run_of(number)
    if run is None:
        raise AssertionError("what is benchmarked was trained")
    name = f"{one.plan.settings.name}: round {number}, {half} half"
    return replace(asked, subject=run.id, config=None, asked_as=one.plan.config, name=name)


def _asks_sealed(one: Loop, ending: EndLoop) -> bool:
    """Ask the sealed half of the start and of the winner, once the rounds are over; tell whether that goes on.

    A loop that was stopped or failed leaves it sealed: it may be gone on with.
    """
    numbers = _to_ask_sealed(ending)
    open_steps = [step for step in numbers if _is_open(one.steps, step)]
    for step in open_steps:
        if one.steps.state(step) != "working":
            begin_evaluation(_of_round(one, numbers[step], step, halves_of(one.plan)[1]))
    return bool(open_steps)


def _to_ask_sealed(ending: EndLoop) -> dict[str, int]:
    """Return step -> round of what the sealed half is asked of at this ending."""
    if ending.best is None or ending.status in _RESUMABLE:
        return {}
    return {_sealed(number): number for number in (0, ending.best)}


def _has_answered_sealed(one: Loop) -> bool:
    """Tell whether start and winner have both answered the sealed half: the loop is over, whatever is wished since."""
    if not _sealed_steps(one.steps):
        return False
    ending = decide(one.plan.settings, one.history)
    asked = _to_ask_sealed(ending) if isinstance(ending, EndLoop) else {}
    return bool(asked) and all(one.steps.state(step) == "done" for step in asked)


def _is_open(steps: Steps, step: str) -> bool:
    state = steps.state(step)
    return state in ("none", "working") or (state == "lost" and steps.number(step) < MOST_TRIES)


def _train_round(one: Loop, decision: TrainRound) -> None:
    """Start a round's run: the loop's settings on a copy of the best adapter, with draws of its own."""
    config = one.plan.config.model_copy(update={"seed": one.plan.config.seed + decision.round})
    if isinstance(config.data, MathPairsData):
        # The benchmark scores the round: the run need not score problems kept apart as well.
        config = config.model_copy(update={"data": config.data.model_copy(update={"heldout": 0})})
    origin = None
    if decision.on_top_of:
        best = one.run_of(decision.on_top_of)
        if best is None:
            raise AssertionError("the best round was trained")
        config = config.model_copy(update={"start_from": StartSettings(adapter=best.id)})
        origin = Origin(best.id, "continue")
    begin_run(config, one.plan.confirmation, one.steps, _train(decision.round), origin)


def _move(store: "RunStore", stored: "StoredPlan", status: LoopStatus) -> None:
    if stored.status != status:
        store.loops.move(stored.id, OPEN, status)


def _end(store: "RunStore", one: Loop, decision: EndLoop) -> None:
    """Close a loop: report its winner once on the sealed half, where both have answered that."""
    asked = _to_ask_sealed(decision)
    report = None if decision.best is None or not asked else _closed(one, decision.best)
    unasked = "could not be asked" if asked else "was not asked"
    if not asked and _sealed_steps(one.steps):
        unasked = "was not asked to the end. Going on asks it, and trains nothing more"
    words = report.sentences if report else [f"The sealed half of the benchmark {unasked}."]
    message = " ".join([decision.reason, *words])
    changes = {} if report is None else {"report": report.model_dump(mode="json")}
    store.loops.move(one.stored.id, OPEN, decision.status, message=message, ended_at=datetime.now(UTC), **changes)


def _closed(one: Loop, best: int) -> LoopReport | None:
    """Return what the sealed half says; None where it could not be asked."""
    column = _column(one.plan)
    sides, reasons = [], []
    for number in (0, best):
        job = one.steps.last(_sealed(number))
        if job is None or job.folder is None or state_of(job) != "done":
            return None
        side, reason = _scores(job, column)
        sides.append(side)
        reasons.append(reason)
    withheld = " ".join(dict.fromkeys(filter(None, reasons)))
    return closing(one.plan.settings, one.history, sides[0], sides[1], withheld=withheld)


def _reclaim(one: Loop, best: int | None) -> None:
    """Remove merged exports of rounds that are not the best one. Adapters are always kept."""
    if not one.plan.settings.reclaims_storage:
        return
    for past in one.history:
        run = one.run_of(past.number)
        if run is not None and run.folder is not None and past.number != best:
            shutil.rmtree(run.folder / "merged", ignore_errors=True)
