"""``ratchet loop``: start, list, show, stop and resume loops of training and benchmarking."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from ratchet.cli.job_commands import Jobs, add_shared_commands, follow_job, from_adapter_option, read_source
from ratchet.cli.options import SettingsCommand, StartOptions, json_option, queue_option, start_options
from ratchet.cli.output import console_for, note, plain, print_fields, table, write_page
from ratchet.config import LoopSettings
from ratchet.config.config_text import build_section
from ratchet.evaluation.loop import RoundView
from ratchet.run.display import counted, shown_seconds
from ratchet.service.evaluations.benchmarks import find_benchmark
from ratchet.service.jobs.conductor import find_job, resume_job
from ratchet.service.jobs.job_steps import this_home
from ratchet.service.jobs.loops import Loop, LoopSpec, create_loop
from ratchet.service.reports import loop_page

_FEW_QUESTIONS = 100
# A loop that ended like this did its work, or was stopped by the user.
_GOOD = ("target_reached", "rounds_spent", "plateaued", "stopped")
_HELP = {name: field.description or "" for name, field in LoopSettings.model_fields.items()}


@click.group
def loop() -> None:
    """Train and benchmark round after round, each on top of the best so far, until a target, a plateau or a limit."""


def _limit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say when a loop ends."""
    for option in (
        click.option("--patience", "--give-up-after", metavar="N", help=f"{_HELP['patience']} [default: 2]"),
        click.option("--max-rounds", metavar="N", help=f"{_HELP['max_rounds']} [default: 8]"),
        click.option("--target", "target_percent", metavar="PERCENT", help=_HELP["target_percent"]),
    ):
        function = option(function)
    return function


def _given(**texts: str | None) -> dict[str, str]:
    return {key: value for key, value in texts.items() if value is not None}


@loop.command(cls=SettingsCommand)
@click.argument("source", required=False, metavar="[SOURCE]")
@click.option("--benchmark", "-b", required=True, metavar="NAME", help="What scores each round.")
@click.option("--loop-name", "name", default="", help=_HELP["name"])
@click.option("--score-column", metavar="COLUMN", help=_HELP["score_column"])
@_limit_options
@click.option("--keep-merged", is_flag=True, help="Keep merged exports of all rounds.")
@click.option("--split-seed", metavar="N", help=_HELP["seed"])
@from_adapter_option
@queue_option
@start_options
def start(  # noqa: PLR0913 - one parameter for each option
    source: str | None,
    benchmark: str,
    name: str,
    keep_merged: bool,
    split_seed: str | None,
    from_adapter: bool,
    start: StartOptions,
    flags: dict[str, str],
    **limits: str | None,
) -> int:
    """Start a loop with the settings of SOURCE: a settings file, or a run.

    Every round is a whole run; flags change its settings.
    """
    given: dict[str, Any] = {"name": name, "reclaims_storage": not keep_merged, **_given(seed=split_seed, **limits)}
    settings = build_section(LoopSettings, given)
    found = find_benchmark(benchmark)
    console = console_for(start.as_json, of_a_run=True)
    if found.spec.questions < _FEW_QUESTIONS:
        questions = counted(found.spec.questions, "question")
        note(
            console,
            f"Benchmark {found.spec.name} has {questions}, half of them for selection: small gains will not be "
            "detectable. See ratchet bench power.",
        )
    taken = read_source(source, start, flags, console, from_adapter=from_adapter)
    stored = create_loop(
        LoopSpec(
            settings=settings,
            config=taken.config,
            benchmark_hash=found.content_hash,
            confirmation=taken.confirmation,
            source_run=taken.run,
            home=this_home(),
        )
    )
    return follow_job(_LOOPS, stored.id, queue=start.queue, as_json=start.as_json)


@loop.command
@click.argument("id", metavar="LOOP")
@_limit_options
@queue_option
@json_option
def resume(id: str, queue: bool, as_json: bool, **limits: str | None) -> int:
    """Resume a loop that was stopped or failed, optionally with other limits."""
    texts = _given(**limits)
    settings = build_section(LoopSettings, texts)
    if texts or find_job(Loop, id).stored.status not in Loop.open_statuses:  # else it only waits for the scheduler
        resume_job(Loop, id, {key: getattr(settings, key) for key in texts})
    return follow_job(_LOOPS, id, queue=queue, as_json=as_json)


def _line(one: Loop) -> str:
    last = one.view.rounds[-1].number if one.view.rounds else 0
    return f"Loop {one.stored.id}: {one.stored.status.replace('_', ' ')}, round {last} of {one.view.max_rounds}"


def _fields(one: Loop) -> dict[str, Any]:
    """Fields of a loop for JSON."""
    rounds = []
    for view in one.view.rounds:
        run, job = one.run_of(view.number), one.evaluation_of(view.number)
        jobs = {"run": None if run is None else run.id, "evaluation": None if job is None else job.id}
        rounds.append({**view.model_dump(mode="json"), **jobs, "seconds": loop_seconds(one, view.number)})
    stored = one.stored
    return {
        "loop": stored.id,
        "name": stored.name,
        "project": stored.project,
        "status": stored.status,
        "message": stored.message,
        "benchmark": one.benchmark.name,
        "settings": one.spec.settings.model_dump(mode="json"),
        "created_at": stored.created_at.isoformat(timespec="seconds"),
        "ended_at": None if stored.ended_at is None else stored.ended_at.isoformat(timespec="seconds"),
        **one.view.model_dump(mode="json", exclude={"rounds"}),
        "rounds": rounds,
        "report": None if one.report is None else one.report.model_dump(mode="json"),
    }


def loop_seconds(one: Loop, number: int) -> float:
    """How long the jobs of a round took."""
    jobs = [one.run_of(number), one.evaluation_of(number)]
    return sum(job.seconds for job in jobs if job is not None)


def _cells(one: Loop) -> list[str]:
    view, stored = one.view, one.stored
    start = view.rounds[0].percent if view.rounds else None
    cells = [stored.id, stored.status.replace("_", " "), stored.name, one.benchmark.name]
    cells += [f"{view.rounds_used} / {view.max_rounds}", _percent(start), _percent(view.best_percent)]
    return [*cells, _percent(view.target_percent)]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}%"


def _write(one: Loop, report: Path | None, chart: Path | None) -> None:
    if report is not None:
        write_page(loop_page.page_of(one), report)
    if chart is not None:
        loop_page.write_chart(one, chart)


def print_loop(console: Console, one: Loop) -> None:
    """Print a loop: its state, its rounds, and how it ended."""
    view, stored = one.view, one.stored
    best = "none: no verdict was given" if any(row.withheld for row in view.rounds) else "nothing scored yet"
    if view.best_percent is not None:
        gain = "" if not view.gain_over_start else f", {view.gain_over_start:+.1f} points over the start"
        best = f"{view.best_percent:.1f}% (round {view.best}{gain})"
    score_column = one.spec.settings.score_column
    fields = [
        ("Loop", f"{stored.id}  {stored.name}"),
        ("Status", stored.status.replace("_", " ")),
        ("Scored by", f"{one.benchmark.name}, {score_column}; its selection half chooses the best round"),
        ("Best", best),
        ("Target", "none" if view.target_percent is None else f"{view.target_percent:g}%"),
        ("Rounds", f"{view.rounds_used} of at most {view.max_rounds}"),
    ]
    print_fields(console, fields, 10)
    if view.rounds:
        rows: list[Sequence[str | Text]] = []
        for row in view.rounds:
            run = one.run_of(row.number)
            cells = [str(row.number), "the start" if run is None else run.id]
            cells += [shown_seconds(loop_seconds(one, row.number)), _score_of(row), _change(row)]
            rows.append([*cells, _badge(row)])
        console.print(table("round", "run", "time", "score", "change", "", rows=rows))
    if stored.message:
        console.print(plain(stored.message))


def _score_of(row: RoundView) -> str:
    if row.percent is not None:
        return f"{row.percent:.1f}%"
    return {"waiting": "", "failed": "no adapter"}.get(row.state, row.state)


def _change(row: RoundView) -> str:
    return "" if row.change is None else f"{row.change:+.1f}"


def _badge(row: RoundView) -> Text:
    if row.withheld:
        return Text("no verdict", style="yellow")
    gain = f"a real gain over round {row.real_gain_over}" if row.real_gain_over is not None else ""
    best = Text("BEST", style="green") if row.best else Text()
    return Text("  ").join([one for one in (best, Text(gain)) if one])


_LOOPS: Jobs[Loop] = Jobs(
    kind=Loop,
    noun="loop",
    kept="the best adapter",
    columns=("loop", "status", "name", "benchmark", "rounds", "start", "best", "target"),
    folding=("name", "benchmark"),
    cells=_cells,
    is_good=lambda one: one.stored.status in _GOOD,
    line=_line,
    fields=_fields,
    show=print_loop,
    write=_write,
)
add_shared_commands(loop, _LOOPS)
