"""Experiments: measure the start, train, score on the same questions, and give the paired verdict; and replications.

An experiment is a row with its spec and a status; what it has done is read from the runs and evaluations that name it
as their owner (``job_steps.py``). ``conductor.py`` carries it out.

Parts that do not fit together are refused before anything is measured: a difference measures the training only if both
sides have one base model, and the left one is what was trained from.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.config import RunConfig, StartSettings
from ratchet.config.changes import with_values
from ratchet.errors import Conflict, InvalidSetting
from ratchet.evaluation import ExperimentStatus
from ratchet.evaluation.comparison import SideBySide
from ratchet.evaluation.evaluation import Evaluation, EvaluationSpec, QuestionResult
from ratchet.evaluation.experiment import (
    ExperimentReport,
    ExperimentSpec,
    ExperimentStep,
    steps_of_experiment,
)
from ratchet.readiness.start_adapter import with_start
from ratchet.service.evaluations.benchmarks import find_benchmark
from ratchet.service.evaluations.contamination import refuse_shared
from ratchet.service.evaluations.evaluation_catalogue import find_evaluation, questions_of
from ratchet.service.evaluations.evaluation_setup import Request, put_together
from ratchet.service.evaluations.evaluations import queue_evaluation
from ratchet.service.jobs.experiment_reports import report_of
from ratchet.service.jobs.job_settings import source_of_run
from ratchet.service.jobs.job_steps import JobSteps, NextMove, begin_run, this_home
from ratchet.service.runs.registry import find_run, open_store
from ratchet.service.runs.storage_paths import with_source_found

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun
    from ratchet.store.job_rows import JobStore, StoredJob


_TRIES = {"evaluate": 2, "train": 1}
_MOST_SEEDS = 20


@dataclass(frozen=True)
class Experiment:
    """An experiment: its row, its spec, its steps and, once it is done, its report. A ``Job``."""

    open_statuses: ClassVar[tuple[str, ...]] = ("measuring", "training", "scoring")
    resumable: ClassVar[tuple[str, ...]] = ("stopped", "failed")

    stored: "StoredJob"
    spec: ExperimentSpec
    steps: JobSteps
    report: ExperimentReport | None

    @staticmethod
    def rows(store: "RunStore") -> "JobStore":
        """All experiments in the database."""
        return store.experiments

    @classmethod
    def read(cls, store: "RunStore", stored: "StoredJob") -> "Experiment":
        """Read an experiment from its row and its steps."""
        report = None if stored.report is None else ExperimentReport.model_validate(stored.report)
        # Through text: the settings are strict, and take a list for a tuple in JSON alone.
        spec = ExperimentSpec.model_validate_json(json.dumps(stored.settings))
        return cls(stored, spec, JobSteps.of(store, f"experiment/{stored.id}"), report)

    @cached_property
    def all_steps(self) -> list[ExperimentStep]:
        """All steps, begun or not, in order."""
        return steps_of_experiment(self.spec)

    def run_of(self, step: str) -> str:
        """The id of the run or evaluation of a step that is done, or that is taken as it is."""
        if step.startswith("train/") and self.spec.adapter_of is not None:
            return self.spec.adapter_of
        run = self.steps.last(step)
        if run is None:
            raise AssertionError("a step builds upon one that is done")
        return run.id

    def next_move(self) -> NextMove:
        """Decide from the steps what the experiment does now."""
        at_work = self.steps.at_work
        if self.stored.stop_requested_at is not None:
            if at_work:
                return NextMove(self.stored.status, stop=at_work)
            return NextMove(
                "stopped", has_ended=True, message="Stopped on request. What was measured and trained is kept."
            )
        for step in self.all_steps:
            if self.steps.state(step.name) == "lost" and self.steps.number(step.name) >= _TRIES[step.kind]:
                if at_work:
                    return NextMove(self.stored.status, stop=at_work)
                return NextMove("failed", has_ended=True, message=self._failure(step))
        ready = [step for step in self.all_steps if self._is_next(step)]
        if ready:
            return NextMove(ready[0].phase, [partial(self._begin, step) for step in ready])
        if at_work:
            return NextMove(self._phase())
        report = report_of(self)
        return NextMove("done", has_ended=True, message=report.sentence, report=report)

    def why_final(self) -> str:
        """Why the experiment cannot be resumed, and what to do instead."""
        return f"Nothing is left to do. Show it: ratchet experiment show {self.stored.id}"

    def resumed(self, changes: Mapping[str, Any]) -> ExperimentSpec:
        """The spec as it is: an experiment takes no changes."""
        return self.spec.model_copy(update=dict(changes))

    def continued_steps(self) -> list[str]:
        """Steps from whose adapter no other step has continued, or that none has scored."""
        built_upon = {step.run for step in self.all_steps if self.steps.number(step.name)}
        return [step.name for step in self.all_steps if step.name not in built_upon]

    def repeated_runs(self) -> "list[StoredRun]":
        """All tries of steps that failed."""
        tries = self.steps.tries
        return [run for step, runs in tries.items() if self.steps.state(step) == "lost" for run in runs]

    def _is_next(self, step: ExperimentStep) -> bool:
        """Whether a step is to be begun now: it is open, and what it builds upon is there."""
        if self.steps.state(step.name) not in ("none", "lost"):
            return False
        if step.run and self.spec.adapter_of is None and self.steps.state(step.run) != "done":
            return False
        # Nothing is trained before the start is measured: the baseline is what the training is judged by.
        earlier = [other for other in self.all_steps if other.phase == "measuring"]
        return step.phase == "measuring" or all(self.steps.state(other.name) == "done" for other in earlier)

    def _phase(self) -> ExperimentStatus:
        """Phase of the first step that is not done."""
        return next((step.phase for step in self.all_steps if self.steps.state(step.name) != "done"), "scoring")

    def _begin(self, step: ExperimentStep) -> None:
        spec = self.spec
        if step.kind == "evaluate":
            owner = self.steps.owner_of(step.name)
            if step.run:
                queue_evaluation(_scoring(spec, step.benchmark, self.run_of(step.run), owner))
            else:
                queue_evaluation(_of_start(spec, step.benchmark, owner, is_base=step.name.startswith("base/")))
            return
        if step.name == "sft":
            if spec.sft is None:
                raise AssertionError("the step is there because of its settings")
            begin_run(spec.sft, None, self.steps, step.name)
            return
        config = with_values(spec.config, {"seed": step.seed})
        if step.run:
            config = with_values(config, {"start_from": {"adapter": self.run_of(step.run)}})
        begin_run(config, spec.confirmation, self.steps, step.name)

    def _failure(self, step: ExperimentStep) -> str:
        run = self.steps.last(step.name)
        if run is None:
            raise AssertionError("a step that is lost has been tried")
        what = "Evaluation" if step.kind == "evaluate" else "Run"
        return f"{what} {run.id} of step {step.name} failed. {run.message}"


def create_experiment(spec: ExperimentSpec, *, name: str = "", project: str = "") -> "StoredJob":
    """Check an experiment and queue it; the scheduler carries it out.

    Raises:
        NotFound, Conflict, InvalidSetting: a benchmark, baseline or run is not there or does not fit.
        IncompatibleData: rows to train on are questions of a benchmark.
    """
    if not spec.benchmarks:
        raise InvalidSetting("An experiment needs a benchmark to be judged by. Name one with --benchmark.", "benchmark")
    if not 1 <= len(set(spec.seeds)) == len(spec.seeds) <= _MOST_SEEDS:
        raise InvalidSetting(
            f"There are {len(spec.seeds)} seeds, of which {len(set(spec.seeds))} differ. Give 1 to {_MOST_SEEDS} "
            "different ones.",
            "seeds",
        )
    refuse_contradictions(spec)
    for benchmark in spec.benchmarks:
        config, evaluation = put_together(_of_start(spec, benchmark, ""))
        if spec.adapter_of is not None:
            refuse_other_origin(spec.adapter_of, config, evaluation)
            scored = put_together(_scoring(spec, benchmark, spec.adapter_of, ""))
            refuse_other_base(spec.adapter_of, (config, evaluation), scored)
        if baseline := spec.baselines.get(benchmark):
            refuse_other_baseline(find_evaluation(baseline), evaluation)
    for trained in filter(None, [spec.sft, spec.config if spec.adapter_of is None else None]):
        refuse_shared(trained, spec.benchmarks)
    with open_store() as store:
        first = find_benchmark(spec.benchmarks[0]).spec.name
        title = name or f"{spec.config.model} on {first}"
        return store.experiments.add(
            spec.model_dump(mode="json"), name=title, project=project or spec.config.project, status="measuring"
        )


def _of_start(spec: ExperimentSpec, benchmark: str, owner: str, *, is_base: bool = False) -> Request:
    """Request that measures what the experiment starts from, or the base model under it."""
    config = spec.config
    if is_base:
        config = config.model_copy(update={"start_from": StartSettings()})
    return Request(
        subject="", benchmark=benchmark, answers=spec.answers, owner=owner, config=config, project=config.project
    )


def _scoring(spec: ExperimentSpec, benchmark: str, run: str, owner: str) -> Request:
    """Request that scores a run's adapter, set up as the experiment's own run: an SFT stage may have another prompt."""
    return Request(
        subject=run,
        benchmark=benchmark,
        answers=spec.answers,
        owner=owner,
        project=spec.config.project,
        set_up_as=spec.config,
    )


def hashes_of(benchmarks: Sequence[str]) -> tuple[str, ...]:
    """Content hashes of benchmarks by their names, each once.

    Raises:
        NotFound: there is no such benchmark.
    """
    return tuple(dict.fromkeys(find_benchmark(name).content_hash for name in benchmarks))


def baselines_of(evaluations: Sequence[str]) -> dict[str, str]:
    """Benchmark -> evaluation, for evaluations that are taken as they are.

    Raises:
        NotFound: there is no such evaluation.
        InvalidSetting: two of them are of one benchmark.
    """
    found: dict[str, str] = {}
    for one in map(find_evaluation, evaluations):
        if found.setdefault(one.benchmark_hash, one.id) != one.id:
            raise InvalidSetting(
                f"Evaluations {found[one.benchmark_hash]} and {one.id} are both of benchmark {one.benchmark}. Name one "
                "baseline for each benchmark.",
                "baselines",
            )
    return found


def replication_of(run: str, seeds: int, benchmarks: Sequence[str], answers: int) -> ExperimentSpec:
    """Spec of an experiment that repeats a run with seeds of which none is the run's own.

    Raises:
        NotFound: there is no such run or benchmark.
        Conflict: it is no full run.
    """
    source = source_of_run(run, {}, from_adapter=False)
    first = source.config.seed + 1
    return ExperimentSpec(
        kind="replication",
        config=source.config,
        benchmarks=hashes_of(benchmarks),
        seeds=tuple(range(first, first + seeds)),
        confirmation=source.confirmation,
        source_run=source.run,
        answers=answers,
        home=this_home(),
    )


def first_table(one: Experiment) -> tuple[SideBySide, list[list[QuestionResult]]]:
    """Table of an experiment's first benchmark, and each side's questions.

    Raises:
        Conflict: it is not done.
    """
    if one.report is None:
        raise Conflict(f"Experiment {one.stored.id} is {one.stored.status}: there is nothing to report yet.")
    table = one.report.benchmarks[0].table
    return table, [questions_of(evaluation.folder) for evaluation in table.evaluations]


def refuse_contradictions(spec: ExperimentSpec) -> None:
    """Refuse parts of an experiment that do not go together."""
    if spec.adapter_of is not None:
        find_run(spec.adapter_of)
        if spec.sft is not None or len(spec.seeds) > 1:
            raise InvalidSetting(
                f"The adapter of run {spec.adapter_of} is scored as it is, so there is nothing to train with an SFT "
                "stage or several seeds. Remove these, or --adapter-of.",
                "adapter_of",
            )
    if spec.sft is not None:
        _refuse_other_stage(spec.sft, spec.config)
    for benchmark, baseline in spec.baselines.items():
        if benchmark not in spec.benchmarks:
            raise Conflict(
                f"Evaluation {baseline} cannot be the baseline: it is on none of this experiment's benchmarks. "
                "Remove it to measure one."
            )
    if spec.sft is not None and spec.sft.objective != "sft":
        raise InvalidSetting(
            f"The SFT stage has Objective {spec.sft.objective}. Set objective: sft in its file.",
            "objective",
        )


def _refuse_other_stage(sft: RunConfig, config: RunConfig) -> None:
    """Refuse an SFT stage that the training cannot continue from, or that begins elsewhere than the experiment."""
    for name, label in (("model", ""), ("revision", "revision "), ("quantization", "quantization ")):
        one, other = getattr(sft, name), getattr(config, name)
        if one != other:
            raise InvalidSetting(
                f"The SFT stage trains {label}{one}, but the experiment trains {label}{other}, which continues from "
                "its adapter. Choose the same model, revision and quantization.",
                name,
            )
    if _start_sha256(sft) != _start_sha256(config):
        places = [one.start_from.run or one.start_from.adapter or "the base model" for one in (sft, config)]
        raise InvalidSetting(
            f"The SFT stage starts from {places[0]}, but the experiment from {places[1]}, so the gain of one would "
            "be counted for the other. Start both from the same.",
            "start_from.adapter",
        )


def _start_sha256(config: RunConfig) -> str:
    """Checksum of the adapter that settings start from, "" for a new one."""
    return with_start(with_source_found(config)).config.start_from.sha256


def refuse_other_origin(run: str, config: RunConfig, spec: EvaluationSpec) -> None:
    """Refuse to score a run's adapter against something that it was not trained from."""
    source = find_run(run).read_config().start_from
    if source.sha256 != config.start_from.sha256:
        raise InvalidSetting(
            f"Run {run} was trained from {source.run or source.adapter or 'the base model'}, but this experiment "
            f"measures {spec.subject.name} first, so the difference would not be that run's. Use the run's own "
            f"settings: ratchet experiment start {run} --adapter-of {run}",
            "adapter_of",
        )


def refuse_other_base(
    run: str, start: tuple[RunConfig, EvaluationSpec], of_run: tuple[RunConfig, EvaluationSpec]
) -> None:
    """Refuse to score a run's adapter on another base model than the experiment measures."""
    (ours, our_spec), (theirs, their_spec) = start, of_run
    if our_spec.subject.identity != their_spec.subject.identity or ours.quantization != theirs.quantization:
        raise InvalidSetting(
            f"The adapter of run {run} is on {theirs.model} ({_held(theirs)}), but this experiment measures "
            f"{ours.model} ({_held(ours)}): other weights, so the difference would not be that run's. Choose the same.",
            "adapter_of",
        )


def _held(config: RunConfig) -> str:
    return f"revision {config.revision}, quantization {config.quantization}"


def refuse_other_baseline(baseline: Evaluation, spec: EvaluationSpec) -> None:
    """Refuse a baseline that is not a measurement, with the same set-up, of what the experiment starts from."""
    why = ""
    measured, start = ((one.kind, one.identity, one.sha256) for one in (baseline.subject, spec.subject))
    if baseline.scores is None:
        why = f"it is {baseline.status}, not completed"
    elif baseline.questions_sha256 != spec.questions_sha256:
        why = "its questions differ"
    elif measured != start:
        why = f"it is of {baseline.subject.name}, which is not what this experiment starts from"
    elif parts := [
        name for name in {**spec.setup, **baseline.setup} if baseline.setup.get(name) != spec.setup.get(name)
    ]:
        why = f"its {parts[0]} differs"
    if why:
        raise Conflict(f"Evaluation {baseline.id} cannot be the baseline: {why}. Remove it to measure one.")
