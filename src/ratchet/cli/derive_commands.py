"""``ratchet runs retry | duplicate | continue | launch | drop``: new runs from old ones, and drafts."""

import json
from typing import Any

import click

from ratchet.cli.faults import tell
from ratchet.cli.options import (
    SettingsCommand,
    StartOptions,
    json_option,
    out_option,
    queue_option,
    run_argument,
    start_options,
)
from ratchet.cli.output import emit
from ratchet.cli.starting import launch
from ratchet.config.config_text import as_yaml
from ratchet.service.runs import derived_runs
from ratchet.service.runs.runs import commands
from ratchet.store import StoredRun


@click.command
@run_argument
@out_option
@queue_option
@start_options
def retry(run_or_folder: str, start: StartOptions) -> int:
    """Start a failed or cancelled run again, from round 1 with the same settings. It becomes a new run."""
    return _start(derived_runs.retry(run_or_folder), start)


@click.command("continue", cls=SettingsCommand)
@run_argument
@out_option
@queue_option
@start_options
def continue_(run_or_folder: str, start: StartOptions, flags: dict[str, str]) -> int:
    """Start a new run from the adapter of a run, with its settings and the changes given as flags."""
    return _start(derived_runs.continued(run_or_folder, flags), start)


@click.command("launch")
@click.argument("draft")
@out_option
@queue_option
@start_options
def launch_draft(draft: str, start: StartOptions) -> int:
    """Start the run of a draft."""
    return _start(derived_runs.launching(draft), start)


def _start(made: derived_runs.DerivedSettings, start: StartOptions) -> int:
    return launch(made.config, start, origin=made.origin)


@click.command(cls=SettingsCommand)
@run_argument
@json_option
def duplicate(run_or_folder: str, as_json: bool, flags: dict[str, str]) -> None:
    """Save the settings of a run, with the changes given as flags, as a draft. Starts nothing."""
    draft = derived_runs.duplicate(run_or_folder, flags)
    saved = f"Draft {draft.id} is saved; nothing was started. Start it: ratchet runs launch {draft.id}"
    tell(json.dumps(_draft_fields(draft)) if as_json else saved)


def emit_draft(draft: StoredRun, *, as_json: bool) -> None:
    """Print the settings of a draft, as a file that train takes, and what can be done with it."""
    possible = ", ".join(commands(draft.id, "draft", None, "full"))
    text = f"# Draft {draft.id}: nothing was started. Possible: {possible}\n{as_yaml(draft.config)}"
    emit(as_json, _draft_fields(draft), text)


def _draft_fields(draft: StoredRun) -> dict[str, Any]:
    config = draft.config.model_dump(mode="json")
    return {"run": draft.id, "status": "draft", "source_run": draft.source_run, "config": config}


@click.command
@click.argument("draft")
@json_option
def drop(draft: str, as_json: bool) -> None:
    """Remove a draft."""
    derived_runs.drop(draft)
    tell(json.dumps({"run": draft, "dropped": True}) if as_json else f"Draft {draft} is removed.")
