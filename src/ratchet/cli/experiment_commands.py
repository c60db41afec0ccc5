"""``ratchet experiment`` and ``ratchet replicate``: measure, train, score and compare in one job."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ratchet.cli.evaluation_tables import print_side_by_side
from ratchet.cli.job_commands import Jobs, add_shared_commands, follow_job, from_adapter_option, read_source
from ratchet.cli.options import PATH, SettingsCommand, StartOptions, json_option, queue_option, start_options
from ratchet.cli.output import console_for, plain, write_page
from ratchet.config.config_text import build, read_file
from ratchet.evaluation.experiment import ExperimentSpec
from ratchet.service.jobs import experiments
from ratchet.service.jobs.conductor import find_job, resume_job
from ratchet.service.jobs.experiments import Experiment
from ratchet.service.jobs.job_settings import source_of_settings
from ratchet.service.jobs.job_steps import this_home
from ratchet.service.reports.evaluation_page import comparison_page
from ratchet.service.reports.evaluation_plots import write_comparison_chart

_STATES = {"none": "waiting", "working": "running", "done": "done", "lost": "failed"}
_benchmarks_option = click.option(
    "--benchmark",
    "-b",
    "benchmarks",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Benchmark to give a verdict on. Repeatable: each gets its own verdict.",
)
_answers_option = click.option(
    "--answers",
    type=click.IntRange(1, 64),
    default=1,
    help="Answers per question; more than 1 are sampled.",
)


@click.group
def experiment() -> None:
    """Measure the start, train, score on the same questions, and give the verdict, in one job."""


@experiment.command(cls=SettingsCommand)
@click.argument("source", required=False, metavar="[SOURCE]")
@_benchmarks_option
@click.option("--experiment-name", "name", default="", help="A name of your own.")
@click.option(
    "--sft",
    "sft_file",
    type=PATH,
    metavar="FILE",
    help="Settings of an SFT run that comes first; the training then continues from its adapter.",
)
@click.option("--seeds", type=click.IntRange(1, 20), help="Train this many times, with different seeds.")
@click.option(
    "--reuse-baseline",
    "baselines",
    multiple=True,
    metavar="EVALUATION",
    help="A completed evaluation of the start, instead of measuring it again. Repeatable.",
)
@click.option("--adapter-of", metavar="RUN", help="Score this run's adapter instead of training.")
@_answers_option
@from_adapter_option
@queue_option
@start_options
def start(  # noqa: PLR0913 - one parameter for each option
    source: str | None,
    benchmarks: tuple[str, ...],
    name: str,
    sft_file: Path | None,
    seeds: int | None,
    baselines: tuple[str, ...],
    adapter_of: str | None,
    answers: int,
    from_adapter: bool,
    start: StartOptions,
    flags: dict[str, str],
) -> int:
    """Start an experiment with the settings of SOURCE: a settings file, or a run. Flags change them."""
    console = console_for(start.as_json, of_a_run=True)
    taken = read_source(source, start, flags, console, from_adapter=from_adapter)
    hashes = experiments.hashes_of(benchmarks)
    sft = None if sft_file is None else source_of_settings(build(read_file(sft_file)), None).config
    first = taken.config.seed
    spec = ExperimentSpec(
        config=taken.config,
        sft=sft,
        benchmarks=hashes,
        seeds=tuple(range(first, first + (seeds or 1))),
        confirmation=taken.confirmation,
        baselines=experiments.baselines_of(baselines),
        adapter_of=adapter_of,
        source_run=taken.run,
        answers=answers,
        home=this_home(),
    )
    id = experiments.create_experiment(spec, name=name).id
    return follow_job(_EXPERIMENTS, id, queue=start.queue, as_json=start.as_json)


@experiment.command
@click.argument("id", metavar="EXPERIMENT")
@queue_option
@json_option
def resume(id: str, queue: bool, as_json: bool) -> int:
    """Resume an experiment that was stopped or failed."""
    if find_job(Experiment, id).stored.status not in Experiment.open_statuses:  # else it only waits for the scheduler
        resume_job(Experiment, id)
    return follow_job(_EXPERIMENTS, id, queue=queue, as_json=as_json)


@click.command
@click.argument("run")
@click.option("--seeds", type=click.IntRange(2, 20), default=3, help="How many repetitions (3).")
@_benchmarks_option
@_answers_option
@queue_option
@json_option
def replicate(run: str, seeds: int, benchmarks: tuple[str, ...], answers: int, queue: bool, as_json: bool) -> int:
    """Train a run again with other seeds, to tell whether its gain was learning or luck.

    Every adapter is scored on the same questions. The run itself is left out: it may have been chosen because it went
    well.
    """
    spec = experiments.replication_of(run, seeds, benchmarks, answers)
    id = experiments.create_experiment(spec, name="").id
    return follow_job(_EXPERIMENTS, id, queue=queue, as_json=as_json)


def _line(one: Experiment) -> str:
    done = sum(one.steps.state(step.name) == "done" for step in one.all_steps)
    return f"Experiment {one.stored.id}: {one.stored.status}, {done} of {len(one.all_steps)} steps done"


def _fields(one: Experiment) -> dict[str, Any]:
    """Fields of an experiment for JSON."""
    stored = one.stored
    steps = []
    for step in one.all_steps:
        job = one.steps.last(step.name)
        steps.append(
            {"step": step.name, "kind": step.kind, "state": one.steps.state(step.name), "job": job.id if job else None}
        )
    return {
        "experiment": stored.id,
        "kind": one.spec.kind,
        "name": stored.name,
        "project": stored.project,
        "status": stored.status,
        "message": stored.message,
        "created_at": stored.created_at.isoformat(timespec="seconds"),
        "ended_at": None if stored.ended_at is None else stored.ended_at.isoformat(timespec="seconds"),
        "steps": steps,
        "report": None if one.report is None else one.report.model_dump(mode="json"),
    }


def _cells(one: Experiment) -> list[str]:
    done = sum(one.steps.state(step.name) == "done" for step in one.all_steps)
    return [one.stored.id, one.stored.status, one.stored.name, f"{done} / {len(one.all_steps)}"]


def _write(one: Experiment, report: Path | None, chart: Path | None) -> None:
    if report is None and chart is None:
        return
    both, questions = experiments.first_table(one)
    if report is not None:
        write_page(comparison_page(both, questions), report)
    if chart is not None:
        write_comparison_chart(both, chart)


def print_experiment(console: Console, one: Experiment) -> None:
    """Print an experiment: its steps and, once it is done, the tables and the verdict."""
    stored = one.stored
    console.print(plain(f"{'Experiment':<11} {stored.id}  {stored.name}"))
    console.print(plain(f"{'Status':<11} {stored.status}"))
    for step in one.all_steps:
        job = one.steps.last(step.name)
        state = _STATES[one.steps.state(step.name)]
        console.print(plain(f"{'':<11} {step.name:<14} {state:<8} {job.id if job else ''}".rstrip()))
    if one.report is None:
        if stored.message:
            console.print(plain(stored.message))
        return
    for found in one.report.benchmarks:
        console.print(plain(f"\n{found.benchmark}", "bold"))
        print_side_by_side(console, found.table)
        for together in filter(None, (found.across_seeds, found.from_start)):
            console.print(plain(together.sentence))


_EXPERIMENTS: Jobs[Experiment] = Jobs(
    kind=Experiment,
    noun="experiment",
    kept="everything measured and trained so far",
    columns=("experiment", "status", "name", "steps"),
    folding=("name",),
    cells=_cells,
    is_good=lambda one: one.stored.status != "failed",
    line=_line,
    fields=_fields,
    show=print_experiment,
    write=_write,
)
add_shared_commands(experiment, _EXPERIMENTS)
