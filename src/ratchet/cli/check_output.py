"""What ``ratchet train --check`` and ``ratchet plan`` show: the run in a few lines, and whether it can start."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from ratchet.cli.faults import fault, problems
from ratchet.cli.output import console_for, note, print_fields
from ratchet.config import RunConfig
from ratchet.errors import NotReady
from ratchet.readiness import Readiness
from ratchet.run.display import counted


def print_report(report: Readiness, further: Mapping[str, str] | None = None) -> None:
    """Print a report, and ``further`` lines by their label, but not its faults: the command ends with those."""
    console = console_for(as_json=False)
    print_fields(console, {**_summary(report), **(further or {})}.items(), 17)
    for text in report.notes:
        note(console, text)
    for text in report.warnings:
        note(console, text, "Warning:")
    if not report.faults:
        what = (
            " These checks passed; the run was not started. Whether its verifier's report is confirmed is checked when "
            "it starts."
        )
        console.print(Text.assemble(("Ready.", "green"), what))


def report_fields(report: Readiness) -> dict[str, Any]:
    """Fields of a report for JSON; ``error`` is there if the run could not start."""
    fields: dict[str, Any] = {
        "ready": not report.faults,
        "device": report.device,
        "time_limit_hours": report.config.limits.time_hours,
        "rows": report.row_counts,
        "longest_prompt_tokens": report.longest_prompt,
        "window_tokens": report.window,
        "notes": list(report.notes),
        "warnings": list(report.warnings),
        "config": report.config.model_dump(mode="json"),
    }
    if report.faults:
        error = report.faults[0] if len(report.faults) == 1 else NotReady(report.faults)
        told = fault(error.code, str(error))
        told["error"]["problems"] = problems(error)
        fields |= told
    return fields


def _rounds(config: RunConfig) -> str:
    rl, tuning = config.rl, config.tuning
    if tuning is None:
        return f"{rl.rounds}, of {rl.prompts_per_round} prompts with {rl.answers_per_prompt} answers each"
    epochs = counted(tuning.epochs, "epoch")
    return f"{tuning.evaluations}, over {epochs} of {config.objective} in steps of {tuning.batch_size} rows"


def _summary(report: Readiness) -> dict[str, str]:
    config, rl, start = report.config, report.config.rl, report.config.start_from
    hours = config.limits.time_hours
    rows = ", ".join(f"{count:,} {split}" for split, count in report.row_counts.items() if count)
    prompt = "unknown" if report.longest_prompt is None else f"{report.longest_prompt:,} tokens"
    window = "unknown" if report.window is None else f"{report.window:,} tokens"
    return {
        "Base model": config.model,
        **({"Starts from": start.run or start.adapter} if start.adapter else {}),
        "Device": report.device or f"{config.device}, which this machine does not have",
        "Data": f"{config.data.source}: {rows} rows" if rows else f"{config.data.source}: not read",
        "Verifier": config.verifier.kind if config.verifier else "none",
        **({"Watch metric": config.watch.kind} if config.watch else {}),
        "Rounds": _rounds(config),
        "Longest prompt": prompt,
        "Max answer tokens": f"{rl.max_answer_tokens:,}",
        "Context length": window,
        "Time limit": "no limit" if hours is None else counted(hours, "hour"),
    }
