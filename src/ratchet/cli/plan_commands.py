"""``ratchet plan``: what a run would be, whether it fits, and what to change first. Starts nothing."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli import exit_code, tell
from ratchet.cli.flags import SettingsCommand
from ratchet.cli.train_commands import against_option, json_option, settings_of
from ratchet.run.display import counted, most_expensive

if TYPE_CHECKING:
    from rich.table import Table

    from ratchet.readiness.memory_estimate import Lower, MemoryPlan
    from ratchet.service.runs.run_plan import Plan


def plan() -> click.Command:
    """Return the command."""
    return SettingsCommand(
        "plan",
        callback=_plan,
        help="Say what a run with the settings of CONFIG (YAML) and of flags would be: its checks, its steps, the "
        "memory of each phase here and on usual cards, and which objective goes with data and verifier. Starts "
        "nothing.",
        params=[
            click.Argument(["config"], required=False, type=click.Path(path_type=Path)),
            click.Option(
                ["--write"],
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Write the checked settings to a YAML file that ratchet train takes unchanged.",
            ),
            against_option(),
            json_option(),
        ],
        context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    )


def _plan(config: Path | None, write: Path | None, against: tuple[Path, ...], as_json: bool, **parameters: Any) -> int:
    from ratchet.service.runs import run_plan as plans

    planned = plans.plan(settings_of(config, parameters), against=against)
    if write is not None:
        plans.write_plan(planned, write)
    if as_json:
        tell(json.dumps(_fields(planned, write)))
        return min((exit_code(fault) for fault in planned.report.faults), default=0)
    _print(planned)
    if write is not None:
        tell(f"Written to {write}. Start it: ratchet train {write}")
    planned.report.raise_faults()
    return 0


def _print(planned: "Plan") -> None:
    from rich.markup import escape

    from ratchet.cli.check_output import print_report
    from ratchet.cli.console import console_for

    console = console_for(as_json=False)
    print_report(planned.report, _lines(planned))
    if not planned.memory:
        console.print(escape(planned.why_no_memory))
        return
    console.print("\n[bold]Memory of each phase, GB[/bold]")
    console.print(memory_table(planned.memory))
    for one in planned.memory:
        if not one.fits:
            console.print(escape(f"{one.device}: {what_to_lower(one)}"))
    console.print("Figures of cards are computed, not measured; beside a GPU main memory is needed too.")


def _lines(planned: "Plan") -> dict[str, str]:
    config, steps = planned.report.config, planned.steps
    lines = {}
    if steps is not None:
        lines["Steps"] = (
            f"{counted(steps.rounds, 'round')} x {steps.per_round} a round = {steps.total}, "
            f"of {steps.batch_size} answers each"
        )
    chosen = "" if planned.objective.objective == config.objective else f" (chosen: {config.objective})"
    lines["Objective advised"] = f"{planned.objective.objective}{chosen}. {planned.objective.why}"
    by_trial = "not known before a trial: ratchet trial measures it"
    lines["Expected duration"] = by_trial if config.objective == "rl" else "not known before it runs"
    if cost := most_expensive(config.limits):
        lines["Cost"] = cost
    return lines


def memory_table(plans: "tuple[MemoryPlan, ...]") -> "Table":
    """Return phases by device, in decimal gigabytes."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("device", overflow="fold")
    for column in (*(phase.name for phase in plans[0].phases), "has", "fits"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in plans:
        cells = [f"{phase.bytes / 1e9:.1f}" for phase in one.phases]
        table.add_row(one.device, *cells, f"{one.total_bytes / 1e9:.0f}", "yes" if one.fits else "[red]no[/red]")
    return table


def what_to_lower(one: "MemoryPlan") -> str:
    """Say what to change, by name and value, where a run does not fit."""
    peak = f"{one.peak.name} takes {one.peak.bytes / 1e9:.1f} of {one.total_bytes / 1e9:.0f} GB."
    if one.lower is None:
        return f"{peak} No setting makes it fit: choose a smaller model or a device with more memory."
    return f"{peak} To make it fit, set {' and '.join(_changed(lower) for lower in one.lower)}."


def _changed(lower: "Lower") -> str:
    value = f"{lower.value:,}" if isinstance(lower.value, int) else str(lower.value)
    return f"{lower.label} to {value}"


def _fields(planned: "Plan", written: Path | None) -> dict[str, Any]:
    from ratchet.cli.check_output import report_fields

    steps = planned.steps
    return {
        **report_fields(planned.report),
        "steps": None
        if steps is None
        else {
            "rounds": steps.rounds,
            "prompts_per_round": steps.prompts,
            "answers_per_round": steps.answers,
            "batch_size": steps.batch_size,
            "steps_per_round": steps.per_round,
            "steps": steps.total,
        },
        "objective_advised": {"objective": planned.objective.objective, "why": planned.objective.why},
        "memory": [_memory_fields(one) for one in planned.memory],
        "why_no_memory": planned.why_no_memory,
        "written": None if written is None else str(written),
    }


def _memory_fields(one: "MemoryPlan") -> dict[str, Any]:
    return {
        "device": one.device,
        "kind": one.kind,
        "total_bytes": one.total_bytes,
        "fits": one.fits,
        "phases": {phase.name: {"bytes": phase.bytes, "parts": phase.parts} for phase in one.phases},
        "micro_batch_tokens": one.budgets.micro_batch_tokens,
        "sampling_tokens": one.budgets.sampling_tokens,
        "gradient_checkpointing": one.budgets.gradient_checkpointing,
        "lower": None
        if one.lower is None
        else [{"setting": lower.key, "label": lower.label, "value": lower.value} for lower in one.lower],
    }
