"""``ratchet trial``: one small round, measured, and what it says of the full run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli import EXIT_TASK, tell
from ratchet.cli.flags import SettingsCommand, given
from ratchet.cli.train_commands import json_option, settings_of
from ratchet.config.config_text import as_yaml
from ratchet.files import unusable_as_error, write_atomically
from ratchet.run.display import counted, shown_bytes, shown_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from ratchet.cli.live import Live
    from ratchet.run.trial_report import Estimate, TrialReport
    from ratchet.service import Trial
    from ratchet.service.runs.trials import Launch


def trial() -> click.Command:
    """Return the command."""
    return SettingsCommand(
        "trial",
        callback=_trial,
        help="Try a run for minutes: one round on at most 8 prompts, from which the full run's time, memory and cost "
        "follow. Takes CONFIG and flags as ratchet train does, keeps no adapter and needs no confirmed report.",
        params=[
            click.Argument(["config"], required=False, type=click.Path(path_type=Path)),
            click.Option(
                ["--write"],
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="Write the full run's settings to this file, for ratchet train; a Time limit that is too short is "
                "raised to the estimate plus a quarter.",
            ),
            click.Option(["--of"], metavar="RUN", help="Show an earlier trial again, by id or folder, and make none."),
            click.Option(
                ["--out"],
                type=click.Path(path_type=Path),
                help="Folder of the trial; by default one under the user's data folder.",
            ),
            json_option(),
        ],
        context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    )


def _trial(
    config: Path | None, write: Path | None, of: str | None, out: Path | None, as_json: bool, **parameters: Any
) -> int:
    from rich.markup import escape

    from ratchet import service
    from ratchet.cli.console import console_for
    from ratchet.cli.live import Live

    console = console_for(as_json, of_a_run=True)
    if of is not None:
        if config is not None or out is not None or given(parameters):
            raise click.UsageError("--of shows a trial as it was: give no CONFIG, settings or --out with it.")
        made = service.find_trial(of)
    else:
        settings = settings_of(config, parameters)
        with Live(console, None) as live:
            made = service.run_trial(
                settings, out, watch=live.watch, on_launch=lambda launch: _print_launch(live, launch)
            )
    notes = _written(made, write) if write is not None and made.report.is_finished else []
    if as_json:
        fields = {"run": made.run, "folder": str(made.folder), "status": made.status, "ending": made.ending}
        written = str(write) if notes else None
        report = made.report.model_dump(mode="json")
        tell(json.dumps({**fields, "message": made.message, "written": written, "notes": notes, "report": report}))
    print_trial(console, made.report)
    console.print(f"{escape(made.message)} Trial {made.run} in {escape(str(made.folder))}")
    for note in notes:
        console.print(escape(note))
    return 0 if made.report.is_finished else EXIT_TASK


def _written(made: "Trial", path: Path) -> list[str]:
    """Write the full run's settings; return what to say of them."""
    settings, notes = made.full_run()
    text = (
        f"# The full run that trial {made.run} was made for. Start it: ratchet train {path.name} --trial {made.run}\n"
    )
    with unusable_as_error(path, "Choose another --write."):
        write_atomically(path, (text + as_yaml(settings)).encode())
    return [*notes, f"The full run's settings are in {path}. Start it: ratchet train {path} --trial {made.run}"]


def _print_launch(live: "Live", launch: "Launch") -> None:
    from rich.markup import escape

    live.console.print(f"Device   {escape(launch.device)}")
    live.console.print(f"Longest  {counted(float(f'{launch.minutes:.3g}'), 'minute')}")
    live.console.print(f"Writes   {escape(f'settings, journal, answers and the report to {launch.folder}')}")


def print_trial(console: "Console", report: "TrialReport") -> None:
    """Print what a trial found."""
    from rich.text import Text

    if held := report.holds_for:
        window = "" if held.window_tokens is None else f", window of {held.window_tokens:,} tokens"
        revision = held.identity or held.revision
        lines = [
            ("Device", held.device),
            ("Model", f"{held.model} ({revision[:19]})" + _quantized(held.quantization)),
            ("Adapter", f"rank {held.lora_rank}, alpha {held.lora_alpha}"),
            ("Round", f"{held.prompts_per_round} prompts x {held.answers_per_prompt} answers"),
            ("Length", f"answers of {held.max_answer_tokens:,} tokens at most{window}"),
        ]
        for label, value in lines:
            console.print(Text.assemble((f"{label:<8} ", "bold"), value))
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
        console.print(Text.assemble(("Note:", "yellow"), f" {sentence}"))
    if report.fix_first:
        console.print(Text.assemble(("To fix first:", "red"), f" {report.fix_first}"))


def _quantized(quantization: str) -> str:
    return "" if quantization == "none" else f" in {quantization}"


def _phase_table(report: "TrialReport") -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    on_device = any(phase.device_bytes is not None for phase in report.phases)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("phase", "seconds", "host memory", *(["GPU memory", "GPU reserved"] if on_device else [])):
        table.add_column(column, justify="left" if column == "phase" else "right", no_wrap=True)
    for phase in report.phases:
        cells = [phase.name, f"{phase.seconds:.2f}", shown_bytes(phase.host_bytes)]
        cells += [shown_bytes(phase.device_bytes), shown_bytes(phase.device_reserved_bytes)] if on_device else []
        table.add_row(*cells)
    return table


def _print_estimate(console: "Console", estimate: "Estimate") -> None:
    from rich.text import Text

    parts = ", ".join(
        f"{name} {shown_seconds(getattr(estimate, name))}"
        for name in ("sampling", "grading", "update", "validation", "saving")
    )
    rough = " (rough: there was no time to fill a batch)" if estimate.is_rough else ""
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
    for label, value in lines:
        console.print(Text.assemble((f"{label:<8} ", "bold"), value))


def _memory_lines(estimate: "Estimate") -> Sequence[tuple[str, str]]:
    lines = []
    for label, peak, phase, share in (
        ("GPU", estimate.device_reserved_bytes, estimate.device_phase, estimate.device_share),
        ("Memory", estimate.host_bytes, estimate.host_phase, estimate.host_share),
    ):
        if peak is not None:
            of = "" if share is None else f", {share:.0%} of all with what the process holds anyway"
            lines.append((label, f"{shown_bytes(peak)} at most, in {phase}{of}"))
    return lines
