"""Loops: train and benchmark round after round, each on top of the best so far, until there is a reason to end.

What comes next is decided in ``evaluation/loop_decisions.py`` from the history alone; the history is read from the runs
and evaluations that name the loop as their owner (``job_steps.py``). ``conductor.py`` carries it out.

The held-out half
-----------------
It must not influence which round wins, so the winner is fixed as soon as an evaluation on it has begun. A stop request
before that leaves it untouched, and the loop may be resumed under other limits. One during these evaluations stops the
loop too, and nothing of them is reported; such a loop resumes with the held-out half alone, under the same limits, and
trains, benchmarks or retries no round. One that comes when start and winner are both evaluated is too late: the loop
ends as it would have without it, and cannot be resumed.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ratchet.config import LoopSettings, MathPairsData, RunConfig
from ratchet.config.changes import with_values
from ratchet.datasets import benchmark_folders
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting, NotFound
from ratchet.evaluation.benchmark import BenchmarkSpec
from ratchet.evaluation.evaluation_files import EvaluationFiles
from ratchet.evaluation.loop import (
    MOST_TRIES,
    BenchmarkRound,
    EndLoop,
    LoopReport,
    LoopRound,
    LoopView,
    RoundEvaluation,
    RoundRun,
    TrainRound,
)
from ratchet.evaluation.loop_decisions import decide, split_halves, view
from ratchet.evaluation.loop_report import closing
from ratchet.run.records import Record
from ratchet.run.run_folder import RunFolder
from ratchet.service.evaluations.benchmarks import find_benchmark
from ratchet.service.evaluations.contamination import find_contamination, refuse_shared
from ratchet.service.evaluations.evaluation_setup import Request, put_together
from ratchet.service.evaluations.evaluations import queue_evaluation
from ratchet.service.jobs.job_steps import JobSteps, NextMove, begin_run, state_of
from ratchet.service.runs.registry import Origin, open_store

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun
    from ratchet.store.job_rows import JobStore, StoredJob

Half = Literal["selection", "held-out"]
_LEAST_QUESTIONS = 2


class LoopSpec(Record):
    """What a loop is carried out with.

    Attributes:
        settings: Target, limits and column.
        config: Settings of its runs, resolved; a round takes another start and another seed.
        benchmark_hash: The benchmark.
        confirmation: Who has read the report of the runs' verifier.
        source_run: The run whose settings these are, None where they came from a file.
        home: The RATCHET_HOME whose scheduler carries it out.
    """

    settings: LoopSettings
    config: RunConfig
    benchmark_hash: str
    confirmation: dict[str, Any] | None = None
    source_run: str | None = None
    home: str

    @property
    def column(self) -> str:
        """The score column that rounds are compared by."""
        if self.settings.score_column is None:
            raise ValueError("the loop's settings are not resolved")
        return self.settings.score_column

    def halves(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Numbers of the benchmark's questions in the selection half, and in the held-out half."""
        benchmark, prompts = benchmark_folders.read(self.benchmark_hash)
        difficulty = {prompt.id: prompt.extras["difficulty"] for prompt in prompts if "difficulty" in prompt.extras}
        has_bands = benchmark.difficulty != "none"
        return split_halves([prompt.id for prompt in prompts], self.settings.seed, difficulty if has_bands else None)


@dataclass(frozen=True)
class Loop:
    """A loop: its row, its spec, its rounds, and, once it has ended, its report. A ``Job``."""

    open_statuses: ClassVar[tuple[str, ...]] = ("queued", "training", "benchmarking")
    resumable: ClassVar[tuple[str, ...]] = ("stopped", "failed")

    stored: "StoredJob"
    spec: LoopSpec
    benchmark: BenchmarkSpec
    steps: JobSteps
    history: list[LoopRound]
    report: LoopReport | None

    @staticmethod
    def rows(store: "RunStore") -> "JobStore":
        """All loops in the database."""
        return store.loops

    @classmethod
    def read(cls, store: "RunStore", stored: "StoredJob") -> "Loop":
        """Read a loop from its row and its steps.

        Raises:
            NotFound, Conflict: files of its rounds are gone or damaged.
        """
        spec = LoopSpec.model_validate_json(json.dumps(stored.settings))  # strict: a list is a tuple in JSON alone
        steps = JobSteps.of(store, f"loop/{stored.id}")
        report = None if stored.report is None else LoopReport.model_validate(stored.report)
        benchmark = benchmark_folders.read_spec(spec.benchmark_hash)
        return cls(stored, spec, benchmark, steps, _history(spec, steps), report)

    @cached_property
    def view(self) -> LoopView:
        """Its rounds as people see them. Tests every round against another: not for whoever looks each second."""
        return view(self.spec.settings, self.history)

    def run_of(self, number: int) -> "StoredRun | None":
        """The run of a round, None for the start and for one that has not begun."""
        return self.steps.last(_train(number)) if number else None

    def evaluation_of(self, number: int) -> "StoredRun | None":
        """The last evaluation of a round on the selection half."""
        return self.steps.last(_score(number))

    def next_move(self) -> NextMove:
        """Decide from the history what the loop does now."""
        steps = self.steps
        is_stopping = self.stored.stop_requested_at is not None and not self._is_revealed()
        stop = steps.at_work if is_stopping else []
        decision = decide(self.spec.settings, self.history, stop_requested=is_stopping)
        if isinstance(decision, TrainRound):
            return NextMove("training", [partial(self._train_round, decision)])
        if isinstance(decision, BenchmarkRound):
            return NextMove("benchmarking", [partial(self._evaluate, decision.round, _score(decision.round))])
        if not isinstance(decision, EndLoop):
            return NextMove(decision.status, stop=stop)
        wanted = _held_out_steps(decision)
        pending = [step for step in wanted if _is_open(steps, step)]
        if pending:
            start = [partial(self._evaluate, wanted[step], step) for step in pending if steps.state(step) != "working"]
            return NextMove("benchmarking", start)
        if steps.at_work:  # on the held-out half, and asked to stop
            return NextMove(self.stored.status, stop=stop)
        self._reclaim(decision.best)
        return self._ended(decision)

    def why_final(self) -> str:
        """Why the loop cannot be resumed, and what to do instead."""
        return (
            "The held-out half of its benchmark is already revealed; continuing would select on test data. Start a new "
            "loop from its best adapter, with another split: ratchet loop start RUN --from-adapter --split-seed N"
        )

    def resumed(self, changes: Mapping[str, Any]) -> LoopSpec:
        """The spec with other limits.

        Raises:
            Conflict: the held-out half was begun, and the limits differ.
        """
        settings = self.spec.settings.model_copy(update=dict(changes))
        if _begun_held_out(self.steps) and settings != self.spec.settings:
            raise Conflict(
                f"Loop {self.stored.id} has begun to evaluate the held-out half of its benchmark, so its winner is "
                f"fixed: other limits could select on test data. Resume without them: ratchet loop resume "
                f"{self.stored.id}"
            )
        return self.spec.model_copy(update={"settings": settings})

    def continued_steps(self) -> list[str]:
        """The steps on the held-out half, or else the step of the last round, upon which nothing was built yet."""
        if held_out := _begun_held_out(self.steps):
            return held_out
        number = _last_round(self.steps)
        return [_score(number) if self.steps.number(_score(number)) else _train(number)]

    def repeated_runs(self) -> "list[StoredRun]":
        """Runs and evaluations that failed after the last round that was scored.

        Once the held-out half was begun only those on that half, since another round could be another winner.
        """
        steps = self.steps
        if held_out := _begun_held_out(steps):
            return [run for step in held_out if steps.state(step) == "lost" for run in steps.tries[step]]
        lost: list[StoredRun] = []
        number = _last_round(steps)
        while number and steps.state(_train(number)) == "lost":
            lost += steps.tries[_train(number)]
            number -= 1
        return lost + list(steps.tries[_score(0)] if steps.state(_score(0)) == "lost" else ())

    def _is_revealed(self) -> bool:
        """Whether start and winner are both evaluated on the held-out half: the loop is over, stop request or not."""
        if not _begun_held_out(self.steps):
            return False
        ending = decide(self.spec.settings, self.history)
        wanted = _held_out_steps(ending) if isinstance(ending, EndLoop) else {}
        return bool(wanted) and all(self.steps.state(step) == "done" for step in wanted)

    def _evaluate(self, number: int, step: str) -> None:
        """Queue the evaluation of a round on the half of the questions that the step is about."""
        half: Half = "held-out" if step == _held_out(number) else "selection"
        request = _of_start(self.spec, self.steps.owner_of(step), half)
        if number:
            run = self._trained(number)
            name = f"{self.spec.settings.name}: round {number}, {half} half"
            request = replace(request, subject=run.id, config=None, set_up_as=self.spec.config, name=name)
        queue_evaluation(request)

    def _train_round(self, decision: TrainRound) -> None:
        """Queue a round's run: the loop's settings on a copy of the best adapter, with another seed."""
        config = with_values(self.spec.config, {"seed": self.spec.config.seed + decision.round})
        if isinstance(config.data, MathPairsData):
            # The benchmark scores the round: the run need not score held-out problems as well.
            config = with_values(config, {"data.heldout": 0})
        origin = None
        if decision.on_top_of:
            best = self._trained(decision.on_top_of)
            config = with_values(config, {"start_from": {"adapter": best.id}})
            origin = Origin(best.id, "continue")
        begin_run(config, self.spec.confirmation, self.steps, _train(decision.round), origin)

    def _trained(self, number: int) -> "StoredRun":
        run = self.run_of(number)
        if run is None:
            raise AssertionError(f"round {number} was trained")
        return run

    def _ended(self, ending: EndLoop) -> NextMove:
        """The end of the loop: its winner is reported once, on the held-out half, where that could be evaluated."""
        wanted = _held_out_steps(ending)
        report = None if ending.best is None or not wanted else self._closed(ending.best)
        if report:
            sentences = report.sentences
        elif not wanted and _begun_held_out(self.steps):
            sentences = ["The held-out half of the benchmark was not fully evaluated. Resume to finish it."]
        else:
            sentences = [f"The held-out half of the benchmark {'could not be' if wanted else 'was not'} evaluated."]
        message = " ".join([ending.reason, *sentences])
        return NextMove(ending.status, has_ended=True, message=message, report=report)

    def _closed(self, best: int) -> LoopReport | None:
        """The report of start and winner on the held-out half; None where that could not be evaluated."""
        sides, reasons = [], []
        for number in (0, best):
            job = self.steps.last(_held_out(number))
            if job is None or job.folder is None or state_of(job) != "done":
                return None
            side, reason = _scores(job, self.spec.column)
            sides.append(side)
            reasons.append(reason)
        withheld = " ".join(dict.fromkeys(filter(None, reasons)))
        return closing(self.spec.settings, self.history, sides[0], sides[1], withheld=withheld)

    def _reclaim(self, best: int | None) -> None:
        """Remove merged exports of rounds that are not the best one. Adapters are always kept."""
        if not self.spec.settings.reclaims_storage:
            return
        for past in self.history:
            run = self.run_of(past.number)
            if run is not None and run.folder is not None and past.number != best:
                shutil.rmtree(run.folder / "merged", ignore_errors=True)


def create_loop(spec: LoopSpec) -> "StoredJob":
    """Check a loop and queue it; the scheduler carries it out.

    Raises:
        NotFound, Conflict, InvalidSetting: the benchmark or the start is not there, or they do not fit.
        IncompatibleData: rows to train on, or that the start was trained on, are questions of the benchmark.
    """
    benchmark = find_benchmark(spec.benchmark_hash).spec
    if benchmark.questions < _LEAST_QUESTIONS:
        raise InvalidSetting(
            f"Benchmark {benchmark.name} has 1 question. A loop needs {_LEAST_QUESTIONS} at least: one half of them "
            "selects the best round, the other measures it. Choose a larger benchmark.",
            "benchmark",
        )
    name = spec.settings.name or f"{benchmark.name}, {spec.config.model}"
    spec = _with_settings(spec, name=name)
    start, evaluation = put_together(_of_start(spec, "", "selection"))
    is_given = "score_column" in spec.settings.model_fields_set
    column = spec.settings.score_column if is_given else evaluation.main_column
    if column not in evaluation.score_columns:
        raise InvalidSetting(
            f"Score column is {column}, but benchmark {benchmark.name} has {', '.join(evaluation.score_columns)} with "
            "these settings. Choose one of these.",
            "score_column",
        )
    spec = _with_settings(spec, score_column=column)
    refuse_shared(spec.config, [spec.benchmark_hash])
    whole = evaluation.model_copy(update={"only": None, "questions": benchmark.questions})
    if withheld := find_contamination(start, whole).withheld:
        raise IncompatibleData(
            f"No gain over the start of this loop could be claimed. {withheld} Or start from another adapter, or from "
            "the base model."
        )
    with open_store() as store:
        return store.loops.add(
            spec.model_dump(mode="json"), name=spec.settings.name, project=spec.config.project, status="queued"
        )


def _with_settings(spec: LoopSpec, **changes: Any) -> LoopSpec:
    return spec.model_copy(update={"settings": spec.settings.model_copy(update=changes)})


# --- steps: names of them are in the database and in run folders -----------------------------------------------------


def _train(number: int) -> str:
    return f"{number}/train"


def _score(number: int) -> str:
    return f"{number}/score"


def _held_out(number: int) -> str:
    return f"{number}/sealed"


def _begun_held_out(steps: JobSteps) -> list[str]:
    return [step for step in steps.tries if step.endswith("/sealed")]


def _last_round(steps: JobSteps) -> int:
    return max((int(step.partition("/")[0]) for step in steps.tries), default=0)


def _is_open(steps: JobSteps, step: str) -> bool:
    state = steps.state(step)
    return state in ("none", "working") or (state == "lost" and steps.number(step) < MOST_TRIES)


def _held_out_steps(ending: EndLoop) -> dict[str, int]:
    """Step -> round of what is evaluated on the held-out half at this ending.

    None at all for a loop that was stopped or failed: it may be resumed.
    """
    if ending.best is None or ending.status in Loop.resumable:
        return {}
    return {_held_out(number): number for number in (0, ending.best)}


def _of_start(spec: LoopSpec, owner: str, half: Half) -> Request:
    """Request that benchmarks the start on one half of the questions."""
    selection, held_out = spec.halves()
    return Request(
        subject="",
        benchmark=spec.benchmark_hash,
        owner=owner,
        config=spec.config,
        project=spec.config.project,
        only=selection if half == "selection" else held_out,
        name=f"{spec.settings.name}: start, {half} half",
    )


# --- history: what the steps have left -------------------------------------------------------------------------------


def _history(spec: LoopSpec, steps: JobSteps) -> list[LoopRound]:
    rounds = []
    number = 0
    while steps.number(_train(number)) or steps.number(_score(number)):
        rounds.append(_round(spec, steps, number))
        number += 1
    return rounds


def _round(spec: LoopSpec, steps: JobSteps, number: int) -> LoopRound:
    trained: dict[str, RoundRun] = {"none": "none", "working": "at_work", "done": "adapter", "lost": "no_adapter"}
    scored: dict[str, RoundEvaluation] = {"none": "none", "working": "at_work", "done": "scored", "lost": "failed"}
    job = steps.last(_score(number))
    evaluation = scored[state_of(job)]
    scores, withheld = None, ""
    if evaluation == "scored" and job is not None:
        scores, withheld = _scores(job, spec.column)
    return LoopRound(
        number=number,
        run="none" if number == 0 else trained[steps.state(_train(number))],
        evaluation=evaluation,
        tries=steps.number(_score(number)),
        scores=scores,
        withheld=withheld,
    )


def _scores(job: "StoredRun", column: str) -> tuple[tuple[float, ...], str]:
    """Score of each question, and why no verdict is given on them.

    Raises:
        NotFound: the files of the evaluation are gone.
    """
    if job.folder is None:
        raise AssertionError("a job that has ended has a folder")
    folder = RunFolder(job.folder)
    files = EvaluationFiles(folder)
    found, scores = (files.column(column), files.scores()) if folder.is_there() else ((), None)
    if not found or scores is None:
        raise NotFound(f"The answers of evaluation {job.id} are no longer in {job.folder}: its round has no score.")
    return found, scores.withheld
