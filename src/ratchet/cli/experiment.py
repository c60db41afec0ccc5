"""``ratchet experiment`` and ``ratchet replicate``: measure, train, score and compare as one thing."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli import EXIT_TASK, tell
from ratchet.cli.conducting import carry_out, read_source, starting_options, tell_without_keeper
from ratchet.cli.flags import SettingsCommand
from ratchet.cli.train import json_option, queue_option
from ratchet.config_text import build, read_file

if TYPE_CHECKING:
    from rich.console import Console

    from ratchet.experiment import ExperimentSettings
    from ratchet.service.experiments import Experiment

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
            click.Command(
                "list",
                callback=_list,
                help="List experiments, newest last.",
                params=[
                    click.Option(["--project"], metavar="LABEL", help="Only this project's."),
                    json_option(),
                ],
            ),
            click.Command(
                "show",
                callback=_show,
                help="Show an experiment: what is done, and the verdict.",
                params=[
                    click.Argument(["experiment_id"], metavar="EXPERIMENT"),
                    click.Option(["--report"], type=click.Path(path_type=Path), help="Write a page to this file."),
                    click.Option(["--chart"], type=click.Path(path_type=Path), help="Draw the scores (PNG)."),
                    json_option(),
                ],
            ),
            click.Command(
                "stop",
                callback=_stop,
                help="End an experiment; what was measured and trained is kept.",
                params=[click.Argument(["experiment_id"], metavar="EXPERIMENT"), json_option()],
            ),
            click.Command(
                "resume",
                callback=_resume,
                help="Go on with an experiment that was stopped or failed.",
                params=[click.Argument(["experiment_id"], metavar="EXPERIMENT"), queue_option(), json_option()],
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
    from ratchet.experiment import ExperimentSettings
    from ratchet.service import experiments
    from ratchet.service.sources import source_of_settings
    from ratchet.service.steps import this_home

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
    from ratchet.service import experiments

    settings = experiments.replication_of(run, seeds, benchmarks, answers)
    return _created(settings, "", console_for(as_json, of_a_run=True), queue=queue, as_json=as_json)


def _created(settings: "ExperimentSettings", name: str, console: "Console", *, queue: bool, as_json: bool) -> int:
    from ratchet.service import experiments

    return _followed(experiments.create_experiment(settings, name=name).id, console, queue=queue, as_json=as_json)


def _followed(id: str, console: "Console", *, queue: bool, as_json: bool) -> int:
    """Follow an experiment to its end, or leave it to the keeper; return the exit code."""
    from ratchet.experiment import OPEN
    from ratchet.service.experiments import find_experiment
    from ratchet.supervisor import KeeperHome

    if queue:
        if as_json:
            tell(json.dumps(_fields(find_experiment(id))))
        else:
            tell(f"Experiment {id} is queued.")
            if not KeeperHome().is_held():
                tell("No keeper runs here: start it with ratchet serve.")
        return 0
    console.print(f"Experiment {id}", markup=False)
    resume = f"ratchet experiment resume {id}"
    carry_out(
        id, console, resume, lambda: find_experiment(id).stored.status in OPEN, lambda: _line(find_experiment(id))
    )
    ended = find_experiment(id)
    if as_json:
        tell(json.dumps(_fields(ended)))
    else:
        print_experiment(console, ended)
    return EXIT_TASK if ended.stored.status == "failed" else 0


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


def _list(project: str | None, as_json: bool) -> None:
    from ratchet.service.experiments import list_experiments

    found = list_experiments(project)
    if as_json:
        click.echo(json.dumps({"experiments": [_fields(one) for one in found]}))
        return
    if not found:
        click.echo("No experiments yet. Start one with ratchet experiment start." if project is None else "None.")
        return
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from ratchet.cli.console import console_for

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("experiment", "status", "name", "steps"):
        table.add_column(column, no_wrap=column != "name", overflow="fold")
    for one in found:
        done = sum(one.steps.state(step.name) == "done" for step in one.plan)
        table.add_row(*map(escape, [one.stored.id, one.stored.status, one.stored.name, f"{done} / {len(one.plan)}"]))
    console_for(as_json).print(table)


def _show(experiment_id: str, report: Path | None, chart: Path | None, as_json: bool) -> None:
    from ratchet.cli.console import console_for
    from ratchet.service import experiments

    one = experiments.find_experiment(experiment_id)
    console = console_for(as_json)
    if as_json:
        click.echo(json.dumps(_fields(one)))
    else:
        print_experiment(console, one)
    if report is None and chart is None:
        return
    table, questions = experiments.first_table(one)
    if report is not None:
        from ratchet.cli.evaluations import write_page
        from ratchet.service.evaluation_page import comparison_page

        write_page(comparison_page(table, questions), report)
        console.print(f"Report   {report}", markup=False)
    if chart is not None:
        from ratchet.service.evaluation_plots import write_comparison_chart

        write_comparison_chart(table, chart)
        console.print(f"Chart    {chart}", markup=False)


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
        if found.across_seeds is not None:
            console.print(escape(found.across_seeds.sentence))


def _stop(experiment_id: str, as_json: bool) -> None:
    from ratchet.service.experiments import stop_experiment

    stop_experiment(experiment_id)
    if as_json:
        click.echo(json.dumps({"experiment": experiment_id, "stop": "asked"}))
    else:
        click.echo("Asked to stop: what is at work ends in good order, and everything is kept.")
        tell_without_keeper(f"ratchet experiment resume {experiment_id}")


def _resume(experiment_id: str, queue: bool, as_json: bool) -> int:
    from ratchet.cli.console import console_for
    from ratchet.experiment import OPEN
    from ratchet.service.experiments import find_experiment, resume_experiment

    if find_experiment(experiment_id).stored.status not in OPEN:  # else it only waits for a keeper
        resume_experiment(experiment_id)
    return _followed(experiment_id, console_for(as_json, of_a_run=True), queue=queue, as_json=as_json)
