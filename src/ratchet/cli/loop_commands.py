"""``ratchet loop``: start, list, show, stop and resume loops of training and benchmarking."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli.conducting import read_source, starting_options
from ratchet.cli.eval_commands import write_page
from ratchet.cli.flags import SettingsCommand
from ratchet.cli.job_commands import Plans, argument, followed, shared_commands
from ratchet.cli.train_commands import json_option, queue_option
from ratchet.run.display import counted

if TYPE_CHECKING:
    from rich.console import Console

    from ratchet.evaluation.loop import RoundView
    from ratchet.service.jobs.loops import Loop

_FEW_QUESTIONS = 100
# A loop that came to one of these did what it was for, or what somebody asked of it.
_GOOD = ("target_reached", "rounds_spent", "plateaued", "stopped")


def loop() -> click.Command:
    """Return the group."""
    return click.Group(
        "loop",
        help="Train and benchmark round after round, each on top of the best so far, until a target, a plateau or a "
        "limit; start, list, show, stop, go on.",
        commands=[
            _start_command(),
            *shared_commands(
                "loop",
                _loops,
                show="Show a loop: its rounds, the best of them, and how it ended.",
                chart="Draw the rounds (PNG).",
                stop="End a loop: what is at work ends in good order, and its best is kept.",
            ),
            click.Command(
                "resume",
                callback=_resume,
                help="Go on with a loop that was stopped or failed, if asked under other limits.",
                params=[
                    argument("loop"),
                    *_limits(),
                    queue_option(),
                    json_option(),
                ],
            ),
        ],
    )


def _limits() -> list[click.Parameter]:
    """Return the options that say when a loop ends."""
    from ratchet.config import LoopSettings

    texts = {name: field.description for name, field in LoopSettings.model_fields.items()}
    return [
        click.Option(["--target", "target_percent"], metavar="PERCENT", help=texts["target_percent"]),
        click.Option(["--max-rounds", "max_rounds"], metavar="N", help=f"{texts['max_rounds']} [default: 8]"),
        click.Option(["--patience", "--give-up-after"], metavar="N", help=f"{texts['patience']} [default: 2]"),
    ]


def _start_command() -> click.Command:
    from ratchet.config import LoopSettings

    texts = {name: field.description for name, field in LoopSettings.model_fields.items()}
    return SettingsCommand(
        "start",
        callback=_start,
        help="Start a loop with the settings of SOURCE: a settings file, or a run. Every round is a whole run; flags "
        "change its settings.",
        params=[
            click.Argument(["source"], required=False, metavar="[SOURCE]"),
            click.Option(["--benchmark", "-b"], required=True, metavar="NAME", help="What scores each round."),
            click.Option(["--loop-name", "name"], default="", help=texts["name"]),
            click.Option(["--score-column"], metavar="COLUMN", help=texts["score_column"]),
            *_limits(),
            click.Option(["--keep-merged"], is_flag=True, help="Keep merged exports of all rounds."),
            click.Option(["--split-seed"], metavar="N", help=texts["seed"]),
            *starting_options(),
        ],
        context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    )


def _start(  # noqa: PLR0913 - one parameter for each option
    source: str | None,
    benchmark: str,
    name: str,
    score_column: str | None,
    target_percent: str | None,
    max_rounds: str | None,
    patience: str | None,
    keep_merged: bool,
    split_seed: str | None,
    as_json: bool,
    **parameters: Any,
) -> int:
    from ratchet.cli.console import console_for
    from ratchet.config import LoopSettings
    from ratchet.config.section_text import build_section
    from ratchet.service.evaluations.benchmarks import find_benchmark
    from ratchet.service.jobs import loops
    from ratchet.service.jobs.job_steps import this_home

    limits = {
        "target_percent": target_percent,
        "max_rounds": max_rounds,
        "patience": patience,
        "seed": split_seed,
        "score_column": score_column,
    }
    given_limits = {key: value for key, value in limits.items() if value is not None}
    named: dict[str, Any] = {"name": name, "reclaims_storage": not keep_merged}
    settings = build_section(LoopSettings, {**named, **given_limits})
    found = find_benchmark(benchmark)
    console = console_for(as_json, of_a_run=True)
    if found.spec.questions < _FEW_QUESTIONS:
        console.print(
            f"[yellow]Note:[/yellow] Benchmark {found.spec.name} has {counted(found.spec.questions, 'question')}, of "
            "which half choose: only very large gains can be told from chance (ratchet bench power says which)."
        )
    taken = read_source(source, parameters, console, as_json=as_json)
    stored = loops.create_loop(
        loops.LoopPlan(
            settings=settings,
            config=taken.config,
            benchmark_hash=found.content_hash,
            confirmation=taken.confirmation,
            source_run=taken.run,
            home=this_home(),
        )
    )
    return followed(_loops(), stored.id, console, queue=parameters["queue"], as_json=as_json)


def _loops() -> "Plans[Loop]":
    from ratchet.service.jobs import loops

    return Plans(
        noun="loop",
        kept="the best",
        columns=("loop", "status", "name", "benchmark", "rounds", "start", "best", "target"),
        folding=("name", "benchmark"),
        cells=_cells,
        find=loops.find_loop,
        every=loops.list_loops,
        stop=loops.stop_loop,
        is_open=lambda one: one.stored.status in loops.OPEN,
        is_good=lambda one: one.stored.status in _GOOD,
        line=_line,
        fields=_fields,
        show=print_loop,
        write=_write,
    )


def _line(one: "Loop") -> str:
    last = one.view.rounds[-1].number if one.view.rounds else 0
    return f"Loop {one.stored.id}: {one.stored.status.replace('_', ' ')}, round {last} of {one.view.max_rounds}"


def _fields(one: "Loop") -> dict[str, Any]:
    """Return a loop as machines read it."""
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
        "settings": one.plan.settings.model_dump(mode="json"),
        "created_at": stored.created_at.isoformat(timespec="seconds"),
        "ended_at": None if stored.ended_at is None else stored.ended_at.isoformat(timespec="seconds"),
        **one.view.model_dump(mode="json", exclude={"rounds"}),
        "rounds": rounds,
        "report": None if one.report is None else one.report.model_dump(mode="json"),
    }


def loop_seconds(one: "Loop", number: int) -> float:
    """Return how long the jobs of a round took."""
    jobs = [one.run_of(number), one.evaluation_of(number)]
    return sum(job.seconds for job in jobs if job is not None)


def _cells(one: "Loop") -> list[str]:
    view, stored = one.view, one.stored
    start = view.rounds[0].percent if view.rounds else None
    cells = [stored.id, stored.status.replace("_", " "), stored.name, one.benchmark.name]
    cells += [f"{view.rounds_used} / {view.max_rounds}", _percent(start), _percent(view.best_percent)]
    return [*cells, _percent(view.target_percent)]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}%"


def _write(one: "Loop", report: Path | None, chart: Path | None) -> None:
    from ratchet.service.reports import loop_report_files

    if report is not None:
        write_page(loop_report_files.page_of(one), report)
    if chart is not None:
        loop_report_files.write_chart(one, chart)


def print_loop(console: "Console", one: "Loop") -> None:
    """Print a loop: what stands above its rounds, the rounds, and how it ended."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from ratchet.run.display import shown_seconds

    view, stored = one.view, one.stored
    target = "none" if view.target_percent is None else f"{view.target_percent:g}%"
    best = "none, no verdict is given" if any(row.withheld for row in view.rounds) else "nothing scored yet"
    if view.best_percent is not None:
        gain = "" if not view.gain_over_start else f", {view.gain_over_start:+.1f} points over the start"
        best = f"{view.best_percent:.1f}% (round {view.best}{gain})"
    for label, text in (
        ("Loop", f"{stored.id}  {stored.name}"),
        ("Status", stored.status.replace("_", " ")),
        ("Scored by", f"{one.benchmark.name}, {one.plan.settings.score_column}; rounds are chosen on one half of it"),
        ("Best", best),
        ("Target", target),
        ("Rounds", f"{view.rounds_used} of at most {view.max_rounds}"),
    ):
        console.print(f"{label:<10} {escape(text)}")
    if view.rounds:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for column in ("round", "run", "time", "score", "change", ""):
            table.add_column(column, no_wrap=True, overflow="fold")
        for row in view.rounds:
            run = one.run_of(row.number)
            cells = [str(row.number), "the start" if run is None else run.id]
            cells += [shown_seconds(loop_seconds(one, row.number)), _score_of(row), _change(row)]
            table.add_row(*map(escape, cells), _badge(row))
        console.print(table)
    if stored.message:
        console.print(escape(stored.message))


def _score_of(row: "RoundView") -> str:
    if row.percent is not None:
        return f"{row.percent:.1f}%"
    return {"waiting": "", "failed": "no adapter"}.get(row.state, row.state)


def _change(row: "RoundView") -> str:
    return "" if row.change is None else f"{row.change:+.1f}"


def _badge(row: "RoundView") -> str:
    if row.withheld:
        return "[yellow]no verdict[/yellow]"
    best = "[green]BEST[/green]" if row.best else ""
    gain = f"a real gain over round {row.real_gain_over}" if row.real_gain_over is not None else ""
    return "  ".join(filter(None, [best, gain]))


def _resume(
    id: str, target_percent: str | None, max_rounds: str | None, patience: str | None, queue: bool, as_json: bool
) -> int:
    from ratchet.cli.console import console_for
    from ratchet.config import LoopSettings
    from ratchet.config.section_text import build_section
    from ratchet.service.jobs import loops

    asked = {"target_percent": target_percent, "max_rounds": max_rounds, "patience": patience}
    texts = {key: value for key, value in asked.items() if value is not None}
    settings = build_section(LoopSettings, texts)
    if texts or loops.find_loop(id).stored.status not in loops.OPEN:  # else it only waits for a keeper
        loops.resume_loop(id, {key: getattr(settings, key) for key in texts})
    return followed(_loops(), id, console_for(as_json, of_a_run=True), queue=queue, as_json=as_json)
