"""``ratchet trial``: one small round, measured, and the full run estimated from it."""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from ratchet import service
from ratchet.cli.faults import EXIT_TASK, tell
from ratchet.cli.live import Live
from ratchet.cli.options import PATH, SettingsCommand, config_argument, json_option, settings_of
from ratchet.cli.output import console_for, note, plain, print_fields, table
from ratchet.config.config_text import as_yaml
from ratchet.files import unusable_as_error, write_atomically
from ratchet.run.display import counted, shown_bytes, shown_seconds
from ratchet.run.trial_report import Estimate, TrialReport
from ratchet.service import Trial
from ratchet.service.runs.trials import TrialLaunch

_LABEL_WIDTH = 8


@click.command(cls=SettingsCommand)
@config_argument
@click.option(
    "--write",
    metavar="FILE",
    type=PATH,
    help="Write the full run's settings to this file, for ratchet train; a time limit that is too short is raised to "
    "the estimate plus a quarter.",
)
@click.option("--of", metavar="RUN", help="Show an earlier trial, by id or folder, instead of making one.")
@click.option("--out", type=PATH, help="Folder of the trial; by default one under the user's data folder.")
@json_option
def trial(
    config: Path | None, write: Path | None, of: str | None, out: Path | None, as_json: bool, flags: dict[str, str]
) -> int:
    """Try a run for minutes: one round on at most 8 prompts, from which time, memory and cost are estimated.

    Takes CONFIG and flags as ratchet train does, keeps no adapter and needs no confirmed report.
    """
    console = console_for(as_json, of_a_run=True)
    if of is not None:
        if config is not None or out is not None or flags:
            raise click.UsageError("--of shows a trial as it was: give no CONFIG, settings or --out with it.")
        made = service.find_trial(of)
    else:
        settings = settings_of(config, flags)
        with Live(console, None) as live:
            made = service.run_trial(
                settings, out, listeners=[live.listener], on_launch=lambda launch: _print_launch(console, launch)
            )
    notes = _written(made, write) if write is not None and made.report.is_finished else []
    if as_json:
        fields = {"run": made.run, "folder": str(made.folder), "status": made.status, "ending": made.ending}
        written = str(write) if notes else None
        report = made.report.model_dump(mode="json")
        tell(json.dumps({**fields, "message": made.message, "written": written, "notes": notes, "report": report}))
    print_trial(console, made.report)
    console.print(plain(f"{made.message} Trial {made.run} in {made.folder}"))
    for text in notes:
        console.print(plain(text))
    return 0 if made.report.is_finished else EXIT_TASK


def _written(made: Trial, path: Path) -> list[str]:
    """Write the full run's settings; what to print about them."""
    settings, notes = made.full_run()
    text = (
        f"# The full run that trial {made.run} was made for. Start it: ratchet train {path.name} --trial {made.run}\n"
    )
    with unusable_as_error(path, "Choose another --write."):
        write_atomically(path, (text + as_yaml(settings)).encode())
    return [*notes, f"The full run's settings are in {path}. Start it: ratchet train {path} --trial {made.run}"]


def _print_launch(console: Console, launch: TrialLaunch) -> None:
    fields = [("Device", launch.device), ("Limit", counted(float(f"{launch.minutes:.3g}"), "minute"))]
    fields += [("Writes", f"settings, journal, answers and the report to {launch.folder}")]
    print_fields(console, fields, _LABEL_WIDTH)


def print_trial(console: Console, report: TrialReport) -> None:
    """Print what a trial found."""
    if held := report.holds_for:
        window = "" if held.window_tokens is None else f", context length {held.window_tokens:,} tokens"
        revision = held.identity or held.revision
        quantized = "" if held.quantization == "none" else f" in {held.quantization}"
        fields = [
            ("Device", held.device),
            ("Model", f"{held.model} ({revision[:19]}){quantized}"),
            ("Adapter", f"rank {held.lora_rank}, alpha {held.lora_alpha}"),
            ("Round", f"{held.prompts_per_round} prompts x {held.answers_per_prompt} answers"),
            ("Length", f"answers of {held.max_answer_tokens:,} tokens at most{window}"),
        ]
        print_fields(console, fields, _LABEL_WIDTH)
    if report.phases:
        console.print(_phase_table(report))
    if found := report.answers:
        outcomes = [f"{count} {name.replace('_', ' ')}" for name, count in found.outcomes.items() if count]
        console.print(
            f"Answers of the starting model: {found.answers} to {found.prompts} prompts, {found.accuracy:.1%} right; "
            f"{', '.join(outcomes)}; {found.informative_groups} of {found.groups} prompts with a signal"
        )
    if report.estimate:
        _print_estimate(console, report.estimate)
    for sentence in report.advice:
        note(console, sentence)
    if report.fix_first:
        note(console, report.fix_first, "Fix first:", "red")


def _phase_table(report: TrialReport) -> Table:
    on_device = any(phase.device_bytes is not None for phase in report.phases)
    rows = []
    for phase in report.phases:
        cells = [phase.name, f"{phase.seconds:.2f}", shown_bytes(phase.host_bytes)]
        cells += [shown_bytes(phase.device_bytes), shown_bytes(phase.device_reserved_bytes)] if on_device else []
        rows.append(cells)
    on_gpu = ("GPU memory", "GPU reserved") if on_device else ()
    return table("phase", "seconds", "host memory", *on_gpu, rows=rows, left=("phase",))


def _print_estimate(console: Console, estimate: Estimate) -> None:
    parts = ", ".join(
        f"{name} {shown_seconds(getattr(estimate, name))}"
        for name in ("sampling", "grading", "update", "validation", "saving")
    )
    rough = " (rough: not enough time to fill a batch)" if estimate.is_rough else ""
    lines = [
        ("Full run", f"{shown_seconds(estimate.seconds)} for {counted(estimate.rounds, 'round')}{rough}"),
        ("Before", f"{shown_seconds(estimate.preparation)} until round 0 starts"),
        ("A round", f"{shown_seconds(estimate.round)}: {parts}"),
    ]
    if estimate.heldout:
        lines.append(("Held-out", f"{shown_seconds(estimate.heldout)}, before and after together"))
    lines += _memory_lines(estimate)
    if estimate.cost is not None:
        lines.append(("Cost", f"{estimate.cost:.2f} {estimate.currency}"))
    print_fields(console, lines, _LABEL_WIDTH)


def _memory_lines(estimate: Estimate) -> list[tuple[str, str]]:
    lines = []
    for label, peak, phase, share in (
        ("GPU", estimate.device_reserved_bytes, estimate.device_phase, estimate.device_share),
        ("Memory", estimate.host_bytes, estimate.host_phase, estimate.host_share),
    ):
        if peak is not None:
            of = "" if share is None else f", {share:.0%} of all, with what the process holds anyway"
            lines.append((label, f"{shown_bytes(peak)} at most, in {phase}{of}"))
    return lines
