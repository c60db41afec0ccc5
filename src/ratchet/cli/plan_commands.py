"""``ratchet plan``: what a run would be, whether it fits, and what to change first. Starts nothing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ratchet.cli.check_output import print_report, report_fields
from ratchet.cli.faults import exit_code, tell
from ratchet.cli.options import PATH, SettingsCommand, against_option, config_argument, json_option, settings_of
from ratchet.cli.output import console_for, plain, table
from ratchet.models.memory_estimate import Lower, MemoryEstimate
from ratchet.run.display import counted, most_expensive
from ratchet.service.runs import run_plan
from ratchet.service.runs.run_plan import RunPlan


@click.command(cls=SettingsCommand)
@config_argument
@click.option(
    "--write",
    type=PATH,
    metavar="FILE",
    help="Write the checked settings to a YAML file that ratchet train takes unchanged.",
)
@against_option
@json_option
def plan(
    config: Path | None, write: Path | None, against: tuple[Path, ...], as_json: bool, flags: dict[str, str]
) -> int:
    """Show what a run with the settings of CONFIG (YAML) and of flags would be. Starts nothing.

    Shows its checks, its steps, the memory of each phase here and on common cards, and which objective suits data and
    verifier.
    """
    planned = run_plan.plan(settings_of(config, flags), against=against)
    if write is not None:
        run_plan.write_plan(planned, write)
    if as_json:
        tell(json.dumps(_fields(planned, write)))
        return min((exit_code(fault) for fault in planned.report.faults), default=0)
    _print(planned)
    if write is not None:
        tell(f"Written to {write}. Start it: ratchet train {write}")
    planned.report.raise_faults()
    return 0


def _print(planned: RunPlan) -> None:

    console = console_for(as_json=False)
    print_report(planned.report, _lines(planned))
    if not planned.memory:
        console.print(plain(planned.why_no_memory))
        return
    console.print(plain("\nMemory of each phase, GB", "bold"))
    console.print(memory_table(planned.memory))
    for one in planned.memory:
        if not one.fits:
            console.print(plain(f"{one.device}: {what_to_lower(one)}"))
    console.print("Figures of cards are computed, not measured. A GPU run needs main memory too.")


def _lines(planned: RunPlan) -> dict[str, str]:
    config, steps = planned.report.config, planned.steps
    lines = {}
    if steps is not None:
        lines["Steps"] = (
            f"{counted(steps.rounds, 'round')} x {steps.per_round} a round = {steps.total}, "
            f"of {steps.batch_size} answers each"
        )
    chosen = "" if planned.objective.objective == config.objective else f" (chosen: {config.objective})"
    lines["Suggested"] = f"{planned.objective.objective}{chosen}. {planned.objective.why}"
    by_trial = "unknown before a trial; measure it with ratchet trial"
    lines["Expected duration"] = by_trial if config.objective == "rl" else "unknown before it runs"
    if cost := most_expensive(config.limits):
        lines["Cost"] = cost
    return lines


def memory_table(plans: tuple[MemoryEstimate, ...]) -> Table:
    """Phases by device, in decimal gigabytes."""
    phases = [phase.name for phase in plans[0].phases]
    rows: list[Sequence[str | Text]] = []
    for one in plans:
        cells = [f"{phase.bytes / 1e9:.1f}" for phase in one.phases]
        fits = Text("yes") if one.fits else Text("no", style="red")
        rows.append([one.device, *cells, f"{one.total_bytes / 1e9:.0f}", fits])
    return table("device", *phases, "has", "fits", rows=rows, left=("device",), folding=("device",))


def what_to_lower(one: MemoryEstimate) -> str:
    """What to change, by name and value, where a run does not fit."""
    peak = f"{one.peak.name} takes {one.peak.bytes / 1e9:.1f} of {one.total_bytes / 1e9:.0f} GB."
    if one.lower is None:
        return f"{peak} No setting makes it fit: choose a smaller model or a device with more memory."
    return f"{peak} To make it fit, set {' and '.join(_changed(lower) for lower in one.lower)}."


def _changed(lower: Lower) -> str:
    value = f"{lower.value:,}" if isinstance(lower.value, int) else str(lower.value)
    return f"{lower.label} to {value}"


def _fields(planned: RunPlan, written: Path | None) -> dict[str, Any]:
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


def _memory_fields(one: MemoryEstimate) -> dict[str, Any]:
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
