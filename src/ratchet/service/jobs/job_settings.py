"""What loops and experiments take their settings from: a run, whose report was confirmed, or settings as given."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.config import RunConfig
from ratchet.config.changes import with_changes, with_values
from ratchet.errors import Conflict
from ratchet.run.events import OnProgress
from ratchet.run.refusals import KIND_WORDS
from ratchet.service.runs.registry import find_run
from ratchet.service.runs.start_checks import prepared_run
from ratchet.service.runs.storage_paths import anchored, settings_of
from ratchet.service.verification.report_gate import AskToConfirm, confirmed


@dataclass(frozen=True)
class Source:
    """Settings, resolved, with absolute paths, who has read the report of their verifier, and the run they are from."""

    config: RunConfig
    confirmation: dict[str, Any] | None
    run: str | None = None


def source_of_settings(
    config: RunConfig,
    ask: AskToConfirm | None,
    on_progress: OnProgress = lambda phase, done, total: None,
) -> Source:
    """Check settings as a run's are and have the report of their verifier confirmed. Starts nothing.

    Raises:
        RatchetError: what the checks found, or the report is not confirmed.
    """
    prepared = prepared_run(config)
    try:
        confirmation = None
        if prepared.config.objective == "rl":
            confirmation = confirmed(prepared, ask, on_progress).model_dump(mode="json")
        return Source(anchored(prepared.config), confirmation)
    finally:
        prepared.close()


def source_of_run(
    run_or_folder: str,
    changes: Mapping[str, str],
    *,
    from_adapter: bool,
    ask: AskToConfirm | None = None,
    on_progress: OnProgress = lambda phase, done, total: None,
) -> Source:
    """Settings of a run, with changes.

    They start from what the run started from, or from the run's own adapter. With changes they are checked, and where
    these are of what a report holds for, confirmed anew.

    Raises:
        NotFound: there is no such run.
        Conflict: it is no full run, or has no adapter to start from.
        RatchetError: what the checks of changed settings found.
    """
    folder = find_run(run_or_folder)
    if folder.kind != "full":
        raise Conflict(f"{folder.run_id} is {KIND_WORDS[folder.kind]}, not a full run.")
    config = settings_of(folder)
    if from_adapter:
        config = with_values(config, {"start_from": {"adapter": folder.run_id}})
    elif config.start_from.adapter is not None and not Path(config.start_from.adapter).exists():
        start = config.start_from.model_dump(mode="json")
        config = with_values(config, {"start_from": {**start, "adapter": str(folder.start_path)}})
    if changes:
        found = source_of_settings(with_changes(config, changes), ask, on_progress)
        return Source(found.config, found.confirmation, folder.run_id)
    return Source(config, folder.read_run().get("report"), folder.run_id)
