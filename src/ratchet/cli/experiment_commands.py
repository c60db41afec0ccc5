"""``ratchet experiment`` and ``ratchet replicate``: measure, train, score and compare as one thing."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli.conducting import read_source, starting_options
from ratchet.cli.eval_commands import write_page
from ratchet.cli.flags import SettingsCommand
from ratchet.cli.job_commands import Plans, argument, followed, shared_commands
from ratchet.cli.train_commands import json_option, queue_option
from ratchet.config.config_text import build, read_file

if TYPE_CHECKING:
    from rich.console import Console

    from ratchet.evaluation.experiment import ExperimentSettings
    from ratchet.service.jobs.experiments import Experiment

_STATES = {"none": "waits", "working": "at work", "done": "done", "lost": "failed"}


def experiment() -> click.Command:
    """Return the group."""
    return click.Group(
        "experiment",
        help="Measure the start, train, score on the same questions, and give the verdict, as one thing.",
        commands=[
            SettingsCommand(
                "start",
                callback=_start,
                help="Start an experiment with the settings of SOURCE: a settings file, or a run. Flags change them.",
                params=[
                    click.Argument(["source"], required=False, metavar="[SOURCE]"),
                    _benchmarks(),
                    click.Option(["--experiment-name", "name"], default="", help="A name of your own."),
                    click.Option(
                        ["--sft", "sft_file"],
                        type=click.Path(path_type=Path),
                        metavar="FILE",
                        help="Settings of an SFT run that comes first; the training then goes on from its adapter.",
                    ),
                    click.Option(["--seeds"], type=click.IntRange(1, 20), help="Train so many times, by other seeds."),
                    click.Option(
                        ["--reuse-baseline", "baselines"],
                        multiple=True,
                        metavar="EVALUATION",
                        help="A completed evaluation of the start, instead of measuring it again. May be repeated.",
                    ),
                    click.Option(["--adapter-of"], metavar="RUN", help="Score this run's adapter instead of training."),
                    _answers(),
                    *starting_options(),
                ],
                context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
            ),
            *shared_commands(
                "experiment",
                _experiments,
                show="Show an experiment: what is done, and the verdict.",
                chart="Draw the scores (PNG).",
                stop="End an experiment; what was measured and trained is kept.",
            ),
            click.Command(
                "resume",
                callback=_resume,
                help="Go on with an experiment that was stopped or failed.",
                params=[argument("experiment"), queue_option(), json_option()],
            ),
        ],
    )


def replicate() -> click.Command:
    """Return the command that repeats a run."""
    return click.Command(
        "replicate",
        callback=_replicate,
        help="Train a run again with other seeds, score every adapter on the same questions, and say whether its gain "
        "was learning or luck. The run itself is left out: it may have been chosen because it went well.",
        params=[
            click.Argument(["run"]),
            click.Option(["--seeds"], type=click.IntRange(2, 20), default=3, help="How many repetitions (3)."),
            _benchmarks(),
            _answers(),
            queue_option(),
            json_option(),
        ],
    )


def _benchmarks() -> click.Option:
    return click.Option(
        ["--benchmark", "-b", "benchmarks"],
        multiple=True,
        required=True,
        metavar="NAME",
        help="What the verdict is given on. May be repeated: each gets its own verdict.",
    )


def _answers() -> click.Option:
    return click.Option(
        ["--answers"],
        type=click.IntRange(1, 64),
        default=1,
        help="Answers per question; more than 1 are sampled.",
    )


def _start(  # noqa: PLR0913 - one parameter for each option
    source: str | None,
    benchmarks: tuple[str, ...],
    name: str,
    sft_file: Path | None,
    seeds: int | None,
    baselines: tuple[str, ...],
    adapter_of: str | None,
    answers: int,
    as_json: bool,
    **parameters: Any,
) -> int:
    from ratchet.cli.console import console_for
    from ratchet.evaluation.experiment import ExperimentSettings
    from ratchet.service.jobs import experiments
    from ratchet.service.jobs.job_settings import source_of_settings
    from ratchet.service.jobs.job_steps import this_home

    console = console_for(as_json, of_a_run=True)
    taken = read_source(source, parameters, console, as_json=as_json)
    hashes = experiments.hashes_of(benchmarks)
    sft = None if sft_file is None else source_of_settings(build(read_file(sft_file)), None).config
    first = taken.config.seed
    settings = ExperimentSettings(
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
    return _created(settings, name, console, queue=parameters["queue"], as_json=as_json)


def _replicate(run: str, seeds: int, benchmarks: tuple[str, ...], answers: int, queue: bool, as_json: bool) -> int:
    from ratchet.cli.console import console_for
    from ratchet.service.jobs import experiments

    settings = experiments.replication_of(run, seeds, benchmarks, answers)
    return _created(settings, "", console_for(as_json, of_a_run=True), queue=queue, as_json=as_json)


def _created(settings: "ExperimentSettings", name: str, console: "Console", *, queue: bool, as_json: bool) -> int:
    from ratchet.service.jobs import experiments

    id = experiments.create_experiment(settings, name=name).id
    return followed(_experiments(), id, console, queue=queue, as_json=as_json)


def _experiments() -> "Plans[Experiment]":
    from ratchet.evaluation.experiment import OPEN
    from ratchet.service.jobs import experiments

    return Plans(
        noun="experiment",
        kept="everything",
        columns=("experiment", "status", "name", "steps"),
        folding=("name",),
        cells=_cells,
        find=experiments.find_experiment,
        every=experiments.list_experiments,
        stop=experiments.stop_experiment,
        is_open=lambda one: one.stored.status in OPEN,
        is_good=lambda one: one.stored.status != "failed",
        line=_line,
        fields=_fields,
        show=print_experiment,
        write=_write,
    )


def _line(one: "Experiment") -> str:
    done = sum(one.steps.state(step.name) == "done" for step in one.plan)
    return f"Experiment {one.stored.id}: {one.stored.status}, {done} of {len(one.plan)} steps done"


def _fields(one: "Experiment") -> dict[str, Any]:
    """Return an experiment as machines read it."""
    stored = one.stored
    steps = []
    for step in one.plan:
        job = one.steps.last(step.name)
        steps.append(
            {"step": step.name, "kind": step.kind, "state": one.steps.state(step.name), "job": job.id if job else None}
        )
    return {
        "experiment": stored.id,
        "kind": one.settings.kind,
        "name": stored.name,
        "project": stored.project,
        "status": stored.status,
        "message": stored.message,
        "created_at": stored.created_at.isoformat(timespec="seconds"),
        "ended_at": None if stored.ended_at is None else stored.ended_at.isoformat(timespec="seconds"),
        "steps": steps,
        "report": None if one.report is None else one.report.model_dump(mode="json"),
    }


def _cells(one: "Experiment") -> list[str]:
    done = sum(one.steps.state(step.name) == "done" for step in one.plan)
    return [one.stored.id, one.stored.status, one.stored.name, f"{done} / {len(one.plan)}"]


def _write(one: "Experiment", report: Path | None, chart: Path | None) -> None:
    from ratchet.service.jobs import experiments

    if report is None and chart is None:
        return
    table, questions = experiments.first_table(one)
    if report is not None:
        from ratchet.service.reports.evaluation_page import comparison_page

        write_page(comparison_page(table, questions), report)
    if chart is not None:
        from ratchet.service.reports.evaluation_plots import write_comparison_chart

        write_comparison_chart(table, chart)


def print_experiment(console: "Console", one: "Experiment") -> None:
    """Print an experiment: its steps and, once it is done, the tables and the verdict."""
    from rich.markup import escape

    from ratchet.cli.evaluation_tables import print_side_by_side

    stored = one.stored
    console.print(f"{'Experiment':<11} {escape(f'{stored.id}  {stored.name}')}")
    console.print(f"{'Status':<11} {stored.status}")
    for step in one.plan:
        job = one.steps.last(step.name)
        state = _STATES[one.steps.state(step.name)]
        console.print(f"{'':<11} {escape(step.name):<14} {state:<8} {escape(job.id) if job else ''}".rstrip())
    if one.report is None:
        if stored.message:
            console.print(escape(stored.message))
        return
    for found in one.report.benchmarks:
        console.print(f"\n[bold]{escape(found.benchmark)}[/bold]")
        print_side_by_side(console, found.table)
        for together in filter(None, (found.across_seeds, found.from_start)):
            console.print(escape(together.sentence))


def _resume(id: str, queue: bool, as_json: bool) -> int:
    from ratchet.cli.console import console_for
    from ratchet.evaluation.experiment import OPEN
    from ratchet.service.jobs.experiments import find_experiment, resume_experiment

    if find_experiment(id).stored.status not in OPEN:  # else it only waits for a keeper
        resume_experiment(id)
    return followed(_experiments(), id, console_for(as_json, of_a_run=True), queue=queue, as_json=as_json)
