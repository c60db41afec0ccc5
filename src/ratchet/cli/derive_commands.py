"""``ratchet runs retry | duplicate | continue | launch | drop``: new runs from old ones, and drafts."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli import tell
from ratchet.cli.flags import SettingsCommand, given
from ratchet.cli.starting import launch
from ratchet.cli.train_commands import json_option, queue_option, run_options

if TYPE_CHECKING:
    from ratchet.service.runs.derived_runs import Made
    from ratchet.store import StoredRun

_NAMES = {"token_normalize_func": lambda name: name.replace("_", "-")}


def commands() -> list[click.Command]:
    """Return the commands."""
    return [
        click.Command(
            "retry",
            callback=_retry,
            help="Start a failed or cancelled run again, from round 1 with the same settings. It becomes a new run.",
            params=[click.Argument(["run_or_folder"]), *run_options(), queue_option()],
        ),
        SettingsCommand(
            "duplicate",
            callback=_duplicate,
            help="Save the settings of a run, with those of flags laid over them, as a draft. Starts nothing.",
            params=[click.Argument(["run_or_folder"]), json_option()],
            context_settings=_NAMES,
        ),
        SettingsCommand(
            "continue",
            callback=_continue,
            help="Start a new run from the adapter of a run, with its settings and those of flags laid over them.",
            params=[click.Argument(["run_or_folder"]), *run_options(), queue_option()],
            context_settings=_NAMES,
        ),
        click.Command(
            "launch",
            callback=_launch,
            help="Start the run that a draft holds the settings of.",
            params=[click.Argument(["draft"]), *run_options(), queue_option()],
        ),
        click.Command(
            "drop", callback=_drop, help="Remove a draft.", params=[click.Argument(["draft"]), json_option()]
        ),
    ]


def _retry(run_or_folder: str, out: Path | None, as_json: bool, **parameters: Any) -> int:
    from ratchet.service.runs import derived_runs

    return _start(derived_runs.retry(run_or_folder), out, parameters, as_json=as_json)


def _continue(run_or_folder: str, out: Path | None, as_json: bool, **parameters: Any) -> int:
    from ratchet.service.runs import derived_runs

    made = derived_runs.continued(run_or_folder, given(parameters))
    return _start(made, out, parameters, as_json=as_json)


def _launch(draft: str, out: Path | None, as_json: bool, **parameters: Any) -> int:
    from ratchet.service.runs import derived_runs

    return _start(derived_runs.launching(draft), out, parameters, as_json=as_json)


def _start(made: "Made", out: Path | None, parameters: dict[str, Any], *, as_json: bool) -> int:
    return launch(made.config, out, parameters, as_json=as_json, origin=made.origin)


def _duplicate(run_or_folder: str, as_json: bool, **parameters: Any) -> None:
    from ratchet.service.runs import derived_runs

    draft = derived_runs.duplicate(run_or_folder, given(parameters))
    if as_json:
        tell(json.dumps(draft_fields(draft)))
        return
    tell(f"Draft {draft.id} is saved; nothing was started. Start it: ratchet runs launch {draft.id}")


def draft_fields(draft: "StoredRun") -> dict[str, Any]:
    """Return what a caller with ``--json`` is told of a draft."""
    config = draft.config.model_dump(mode="json")
    return {"run": draft.id, "status": "draft", "source_run": draft.source_run, "config": config}


def _drop(draft: str, as_json: bool) -> None:
    from ratchet.service.runs import derived_runs

    derived_runs.drop(draft)
    tell(json.dumps({"run": draft, "dropped": True}) if as_json else f"Draft {draft} is removed.")
