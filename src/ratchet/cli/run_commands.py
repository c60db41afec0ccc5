"""``ratchet runs``: list | show | stop | health | samples | rounds here, the other commands in modules of their own."""

import json
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console

from ratchet import service
from ratchet.cli import LazyGroup
from ratchet.cli.faults import tell
from ratchet.cli.options import PATH, json_option, project_option, run_argument
from ratchet.cli.output import console_for, emit, table
from ratchet.cli.run_output import (
    history_table,
    print_health,
    print_samples,
    print_summary,
    shown_score,
    summary_fields,
)
from ratchet.errors import Conflict, NotFound
from ratchet.run.endings import RunStatus
from ratchet.service.runs.runs import ListedRun, RunSummary, commands

_STATUSES = [*get_args(RunStatus), "interrupted"]
RUN_COMMANDS = {
    "list": ("run_commands", "List runs, newest last."),
    "show": ("run_commands", "Show a run: its rounds and how it ended."),
    "follow": ("follow_commands", "Follow a run until it ends: its rounds, the time left, the cost so far."),
    "rounds": ("run_commands", "Show a run's rounds and where the time went, newest first; export them."),
    "log": ("follow_commands", "Read a run's log."),
    "samples": ("run_commands", "Read what the model answered in a round."),
    "health": ("run_commands", "Diagnose a run's curves."),
    "stop": ("run_commands", "Stop a run cleanly with its best adapter, or take it out of the queue."),
    "retry": ("derive_commands", "Start a failed or cancelled run again as a new run."),
    "duplicate": ("derive_commands", "Save the settings of a run, with changes, as a draft."),
    "continue": ("derive_commands", "Start a new run from the adapter of a run."),
    "launch": ("derive_commands", "Start the run of a draft."),
    "drop": ("derive_commands", "Remove a draft."),
    "fetch": ("adapter_commands", "Download a run's files from the artifact storage."),
    "upload": ("adapter_commands", "Upload what the artifact storage lacks of a run."),
}


@click.group(cls=LazyGroup, table=RUN_COMMANDS, aliases={"watch": "follow"})
def runs() -> None:
    """List runs; show, follow, stop, retry, duplicate or continue one; read its rounds, log and samples."""


@click.command("list")
@project_option
@click.option("--status", type=click.Choice(_STATUSES), help="Only those of this status.")
@json_option
def list_runs(project: str | None, status: Any, as_json: bool) -> None:
    """List runs, newest last."""
    found = service.list_runs(project, status)
    none = "No runs yet. Start one with ratchet demo." if project is None and status is None else "No such runs."
    columns = ("run", "status", "model", "data", "rounds", "start", "best")
    shown = table(*columns, rows=map(_listed_cells, found), folding=("model",)) if found else none
    emit(as_json, {"runs": [_listed_fields(listed) for listed in found]}, shown)


def _listed_cells(listed: ListedRun) -> list[str]:
    run = listed.stored
    start, best = shown_score(run.start_accuracy, run.start_loss), shown_score(run.best_accuracy, run.best_loss)
    done = f"{run.rounds_done or 0} / {run.rounds or run.config.rounds}"
    status = ("trial " if run.kind == "trial" else "") + listed.status.replace("_", " ")
    return [run.id, status, run.config.model, run.config.data.source, done, start, best]


def _listed_fields(listed: ListedRun) -> dict[str, Any]:
    run = listed.stored
    return {
        "run": run.id,
        "folder": None if run.folder is None else str(run.folder),
        "project": run.project,
        "kind": run.kind,
        "status": listed.status,
        "ending": run.ending,
        "rounds": run.rounds,
        "rounds_done": run.rounds_done or 0,
        "best_round": run.best_round,
        "start_accuracy": run.start_accuracy,
        "best_accuracy": run.best_accuracy,
        "seconds": run.seconds,
        "created_at": run.created_at.isoformat(timespec="seconds"),
    }


@click.command
@run_argument
@json_option
def stop(run_or_folder: str, as_json: bool) -> None:
    """Stop a run cleanly with its best adapter, or take it out of the queue."""
    became = service.stop(run_or_folder)
    text = (
        "Removed from the queue."
        if became == "cancelled"
        else "Stop requested: the run stops cleanly and keeps the best adapter it has."
    )
    emit(as_json, {"run": service.find_run(run_or_folder).run_id, "stop": became}, text)


@click.command
@run_argument
@json_option
def show(run_or_folder: str, as_json: bool) -> None:
    """Show a run: its rounds and how it ended; with --json all settings too."""
    from ratchet.service.runs.derived_runs import find_draft

    try:
        summary = service.summary(run_or_folder)
    except (Conflict, NotFound):
        draft = find_draft(run_or_folder)
        if draft is None:
            raise
        from ratchet.cli.derive_commands import emit_draft

        emit_draft(draft, as_json=as_json)
        return
    if as_json:
        rounds = [record.model_dump(mode="json") for record in summary.records]
        fields = {**summary_fields(summary), "created_at": summary.created_at}
        fields |= {"config": summary.config.model_dump(mode="json"), "rounds": rounds}
        click.echo(json.dumps({**fields, "health": service.run_health(summary).model_dump(mode="json")}))
        return
    console = console_for(as_json)
    print_summary(console, summary)
    if summary.records:
        print_health(console, service.run_health(summary))
    if summary.kind == "trial" and summary.ended:
        from ratchet.cli.trial_commands import print_trial

        print_trial(console, service.find_trial(run_or_folder).report)
    ending = summary.ended.ending if summary.ended else None
    for number, command in enumerate(commands(summary.run, summary.status, ending, summary.kind)):
        console.print(f"{'' if number else 'Possible':<9}{command}")


@click.command
@run_argument
@json_option
def health(run_or_folder: str, as_json: bool) -> None:
    """Diagnose a run's curves: what is wrong, the evidence, what to do, and where each curve went."""
    summary = service.summary(run_or_folder)
    found = service.run_health(summary)
    emit(as_json, {"run": summary.run, **found.model_dump(mode="json")}, lambda console: print_health(console, found))


@click.command
@run_argument
@click.option("--round", "number", type=click.IntRange(min=0), help="Round; the last by default. 0: held-out.")
@click.option("--prompts", type=click.IntRange(min=1), default=3, help="How many prompts are open (3).")
@click.option("--full", "--whole", "full", is_flag=True, help="Do not shorten long texts.")
@json_option
def samples(run_or_folder: str, number: int | None, prompts: int, full: bool, as_json: bool) -> None:
    """Read what the model answered in a round."""
    title, rows = service.samples(run_or_folder, number)

    def print_all(console: Console) -> None:
        print_samples(console, title, rows, opened=prompts, full=full)

    emit(as_json, {"title": title, "prompts": rows}, print_all)


@click.command
@run_argument
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, oldest round first.")
@click.option("--export", type=PATH, metavar="FILE", help="Write the history to FILE: .csv, .json or .parquet.")
@json_option
def rounds(run_or_folder: str, as_csv: bool, export: Path | None, as_json: bool) -> None:
    """Show a run's rounds and where the time went, newest first.

    Reward (of sampled answers, not held out), validation, from how many prompts it learned, and how many answers were
    cut off, unparseable or failed.
    """
    from ratchet.service.runs import round_history

    summary = service.summary(run_or_folder)
    if export is not None:
        round_history.export_history(summary.records, export)
    if as_json:
        rows = [round_history.history_row(record) for record in reversed(summary.records)]
        tell(json.dumps({"run": summary.run, "status": summary.status, "rounds": rows}))
    elif as_csv:
        click.echo(round_history.as_csv(summary.records), nl=False)
    else:
        _print_history(summary, export)


def _print_history(summary: RunSummary, export: Path | None) -> None:
    console = console_for(as_json=False)
    if not summary.records:
        console.print(f"Run {summary.run} has no finished round yet.")
        return
    console.print(history_table(summary.records))
    console.print("* best round; learns from: prompts whose answers scored differently")
    console.print("unparseable: no answer found to grade; failed: the metric failed")
    console.print("last column: seconds of sampling, grading after it, update and validation")
    if export is not None:
        console.print(f"Written to {export}", markup=False)
