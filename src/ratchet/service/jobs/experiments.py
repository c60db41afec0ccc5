"""Experiments: measure the start, train, score on the same questions, and give the paired verdict; and replications.

An experiment is a row with settings and a status; what it has done is told by the runs and evaluations that name it as
their owner (``steps.py``). ``conduct`` looks at them and starts what comes next, as often as it is called.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ratchet.config import StartSettings
from ratchet.errors import Conflict, InvalidSetting
from ratchet.evaluation.comparison import SideBySide
from ratchet.evaluation.evaluation import QuestionResult
from ratchet.evaluation.experiment import (
    OPEN,
    ExperimentReport,
    ExperimentSettings,
    ExperimentStatus,
    Step,
    steps_of_experiment,
)
from ratchet.service.evaluations.benchmarks import find_benchmark
from ratchet.service.evaluations.contamination import refuse_shared
from ratchet.service.evaluations.evaluation_setup import Request, put_together
from ratchet.service.evaluations.evaluations import find_evaluation, questions_of
from ratchet.service.jobs.experiment_checks import (
    refuse_contradictions,
    refuse_other_base,
    refuse_other_baseline,
    refuse_other_origin,
)
from ratchet.service.jobs.experiment_reports import report_of
from ratchet.service.jobs.job_settings import source_of_run
from ratchet.service.jobs.job_steps import (
    Steps,
    ask_to_stop,
    begin_evaluation,
    begin_run,
    forget,
    resume_stopped,
    steps_of,
    stop_all,
    this_home,
)
from ratchet.service.runs.registry import open_store

if TYPE_CHECKING:
    from ratchet.store import RunStore
    from ratchet.store.job_rows import StoredPlan

_TRIES = {"evaluate": 2, "train": 1}
_MOST_SEEDS = 20


@dataclass(frozen=True)
class Experiment:
    """An experiment as it is shown: its row, its settings, its steps and, once it is done, its report."""

    stored: "StoredPlan"
    settings: ExperimentSettings
    steps: Steps
    report: ExperimentReport | None

    @property
    def plan(self) -> list[Step]:
        """All that it does, in order."""
        return steps_of_experiment(self.settings)

    def run_of(self, step: str) -> str:
        """Return the id of the run or evaluation that a step, which is done, has made or takes as it is."""
        if step.startswith("train/") and self.settings.adapter_of is not None:
            return self.settings.adapter_of
        run = self.steps.last(step)
        if run is None:
            raise AssertionError("a step builds upon one that is done")
        return run.id


def create_experiment(settings: ExperimentSettings, *, name: str = "", project: str = "") -> "StoredPlan":
    """Check an experiment and enter it; the keeper carries it out.

    Raises:
        NotFound, Conflict, InvalidSetting: a benchmark, baseline or run is not there or does not fit.
        IncompatibleData: rows to train on are questions of a benchmark.
    """
    if not settings.benchmarks:
        raise InvalidSetting("An experiment needs a benchmark to be judged by. Name one with --benchmark.", "benchmark")
    if not 1 <= len(set(settings.seeds)) == len(settings.seeds) <= _MOST_SEEDS:
        raise InvalidSetting(
            f"There are {len(settings.seeds)} seeds, some perhaps twice. Give 1 to {_MOST_SEEDS} different ones.",
            "seeds",
        )
    refuse_contradictions(settings)
    for number, benchmark in enumerate(settings.benchmarks):
        config, spec = put_together(_of_start(settings, benchmark, Steps("", {}), f"start/{number}"))
        if settings.adapter_of is not None:
            refuse_other_origin(settings.adapter_of, config, spec)
            scored = put_together(_scoring(settings, benchmark, settings.adapter_of, ""))
            refuse_other_base(settings.adapter_of, (config, spec), scored)
        if baseline := settings.baselines.get(benchmark):
            refuse_other_baseline(find_evaluation(baseline), spec)
    for trained in filter(None, [settings.sft, settings.config if settings.adapter_of is None else None]):
        refuse_shared(trained, settings.benchmarks)
    with open_store() as store:
        first = find_benchmark(settings.benchmarks[0]).spec.name
        title = name or f"{settings.config.model} on {first}"
        return store.experiments.add(
            settings.model_dump(mode="json"), name=title, project=project or settings.config.project, status="measuring"
        )


def find_experiment(id: str) -> Experiment:
    """Return an experiment.

    Raises:
        NotFound: there is none of this id.
    """
    with open_store() as store:
        return _read(store, store.experiments.get(id))


def list_experiments(project: str | None = None) -> list[Experiment]:
    """Return all experiments, oldest first, of one project if asked."""
    with open_store() as store:
        return [_read(store, one) for one in store.experiments.all(project)]


def _read(store: "RunStore", stored: "StoredPlan") -> Experiment:
    report = None if stored.report is None else ExperimentReport.model_validate(stored.report)
    # Through text: the settings are strict, and take a list for a tuple in JSON alone.
    settings = ExperimentSettings.model_validate_json(json.dumps(stored.settings))
    return Experiment(stored, settings, steps_of(store, f"experiment/{stored.id}"), report)


def stop_experiment(id: str) -> None:
    """Ask an experiment to end: what it has at work ends in good order, and nothing more is started.

    Raises:
        NotFound: there is none of this id.
        Conflict: it has ended.
    """
    with open_store() as store:
        ask_to_stop(store.experiments, id, OPEN)


def resume_experiment(id: str) -> None:
    """Let the keeper go on with an experiment that was stopped or has failed.

    Raises:
        NotFound: there is none of this id.
        Conflict: it has not ended, or is done.
    """
    with open_store() as store:
        one = _read(store, store.experiments.get(id))
        if one.stored.status not in ("stopped", "failed"):
            raise Conflict(f"Experiment {id} is {one.stored.status}: there is nothing to go on with.")
        resume_stopped(one.steps, [step.name for step in one.plan if not _is_built_upon(one, step)])
        steps = steps_of(store, f"experiment/{id}")
        forget(store, [run for step, tries in steps.tries.items() if steps.state(step) == "lost" for run in tries])
        changes = {"message": "", "ended_at": None, "stop_requested_at": None}
        store.experiments.move(id, ["stopped", "failed"], "measuring", **changes)


def conduct(store: "RunStore", stored: "StoredPlan") -> None:
    """Look at where an experiment stands and start what comes next, or end it.

    Raises:
        RatchetError: a step cannot be started.
    """
    one = _read(store, stored)
    if stored.stop_requested_at is not None:
        stop_all(one.steps.at_work)
        if not one.steps.at_work:
            _end(store, stored.id, "stopped", "Stopped as asked. What was measured and trained is kept.")
        return
    for step in one.plan:
        state = one.steps.state(step.name)
        if state == "lost" and one.steps.number(step.name) >= _TRIES[step.kind]:
            _fail(store, one, step)
            return
    ready = [step for step in one.plan if _is_next(one, step)]
    if ready:
        _move(store, stored, ready[0].phase)
    for step in ready:
        _begin(one, step)
    if not ready and not one.steps.at_work:
        report = report_of(one)
        _end(store, stored.id, "done", report.sentence, report)
    elif not ready:
        _move(store, stored, _phase(one))


def fail(store: "RunStore", id: str, message: str) -> None:
    """End an experiment whose next step cannot be started; what it has at work is asked to stop."""
    _end(store, id, "failed", message)
    stop_all(steps_of(store, f"experiment/{id}").at_work)


def _is_next(one: Experiment, step: Step) -> bool:
    """Tell whether a step is to be begun now: it is open, and what it builds upon is there."""
    if one.steps.state(step.name) not in ("none", "lost"):
        return False
    if step.run and one.settings.adapter_of is None and one.steps.state(step.run) != "done":
        return False
    # Nothing is trained before the start is measured: the baseline is what the training is judged by.
    earlier = [other for other in one.plan if other.phase == "measuring"]
    return step.phase == "measuring" or all(one.steps.state(other.name) == "done" for other in earlier)


def _is_built_upon(one: Experiment, step: Step) -> bool:
    """Tell whether a step has been begun that goes on from this one, or scores it."""
    return any(one.steps.number(other.name) for other in one.plan if other.run == step.name)


def _phase(one: Experiment) -> ExperimentStatus:
    """Return the phase of the first step that is not done."""
    return next((step.phase for step in one.plan if one.steps.state(step.name) != "done"), "scoring")


def _begin(one: Experiment, step: Step) -> None:
    settings = one.settings
    if step.kind == "evaluate":
        begin_evaluation(_request(one, step))
        return
    if step.name == "sft":
        if settings.sft is None:
            raise AssertionError("the step is there because of its settings")
        begin_run(settings.sft, None, one.steps, step.name)
        return
    config = settings.config.model_copy(update={"seed": step.seed})
    if step.run:
        config = config.model_copy(update={"start_from": StartSettings(adapter=one.run_of(step.run))})
    begin_run(config, settings.confirmation, one.steps, step.name)


def _request(one: Experiment, step: Step) -> Request:
    if step.run:
        run = one.run_of(step.run)
        return _scoring(one.settings, step.benchmark, run, one.steps.owner_of(step.name))
    return _of_start(one.settings, step.benchmark, one.steps, step.name)


def _of_start(settings: ExperimentSettings, benchmark: str, steps: Steps, step: str) -> Request:
    config = settings.config
    if step.startswith("base/"):
        config = config.model_copy(update={"start_from": StartSettings()})
    return Request(
        subject="",
        benchmark=benchmark,
        answers=settings.answers,
        owner=steps.owner_of(step),
        config=config,
        project=config.project,
    )


def _scoring(settings: ExperimentSettings, benchmark: str, run: str, owner: str) -> Request:
    """Score a run's adapter, asked as the experiment's own run is: an SFT stage may have another prompt."""
    return Request(
        subject=run,
        benchmark=benchmark,
        answers=settings.answers,
        owner=owner,
        project=settings.config.project,
        asked_as=settings.config,
    )


def _move(store: "RunStore", stored: "StoredPlan", status: ExperimentStatus) -> None:
    if stored.status != status:
        store.experiments.move(stored.id, OPEN, status)


def _end(
    store: "RunStore", id: str, status: ExperimentStatus, message: str, report: ExperimentReport | None = None
) -> None:
    changes = {} if report is None else {"report": report.model_dump(mode="json")}
    store.experiments.move(id, OPEN, status, message=message, ended_at=datetime.now(UTC), **changes)


def _fail(store: "RunStore", one: Experiment, step: Step) -> None:
    """End an experiment of which a step is lost for good; what else is at work is asked to stop first."""
    stop_all(one.steps.at_work)
    if one.steps.at_work:
        return
    run = one.steps.last(step.name)
    why = "" if run is None else f" {run.message}"
    what = "The evaluation" if step.kind == "evaluate" else "The run"
    name = "" if run is None else f" {run.id}"
    _end(store, one.stored.id, "failed", f"{what}{name} of the step {step.name} failed.{why}")


def hashes_of(benchmarks: Sequence[str]) -> tuple[str, ...]:
    """Return the content hashes of benchmarks by their names, each once.

    Raises:
        NotFound: there is no such benchmark.
    """
    return tuple(dict.fromkeys(find_benchmark(name).content_hash for name in benchmarks))


def baselines_of(evaluations: Sequence[str]) -> dict[str, str]:
    """Return benchmark -> evaluation for evaluations that are to be taken as they are.

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


def replication_of(run: str, seeds: int, benchmarks: Sequence[str], answers: int) -> ExperimentSettings:
    """Return the settings that repeat a run with seeds of which none is the run's own.

    Raises:
        NotFound: there is no such run or benchmark.
        Conflict: it is no full run.
    """
    source = source_of_run(run, {}, from_adapter=False)
    first = source.config.seed + 1
    return ExperimentSettings(
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
    """Return the table of an experiment's first benchmark and each side's questions.

    Raises:
        Conflict: it is not done.
    """
    if one.report is None:
        raise Conflict(f"Experiment {one.stored.id} is {one.stored.status}: there is nothing to report yet.")
    table = one.report.benchmarks[0].table
    return table, [questions_of(evaluation.folder) for evaluation in table.evaluations]
