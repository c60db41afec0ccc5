"""Settings whose relative paths start where they were written, for whoever works on them somewhere else."""

import os
from pathlib import Path

from ratchet.config import RunConfig
from ratchet.files import expanded
from ratchet.models.model_files import SMOLLM2, TINY
from ratchet.run.run_folder import RunFolder
from ratchet.supervisor.executors import directory_of


def anchored(config: RunConfig, place: Path | None = None) -> RunConfig:
    """Return settings in which paths that exist are absolute; hub ids and names stay as they are.

    Args:
        config: Any settings.
        place: Where relative paths start, None for the current directory.
    """
    place = place or Path.cwd()
    changes: dict[str, object] = {}
    if config.model not in (TINY, SMOLLM2):
        changes["model"] = _absolute(config.model, place)
    if path := getattr(config.data, "path", ""):
        changes["data"] = config.data.model_copy(update={"path": _absolute(path, place)})
    if adapter := config.start_from.adapter:
        changes["start_from"] = config.start_from.model_copy(update={"adapter": _absolute(adapter, place)})
    return config.model_copy(update=changes)


def settings_of(run: RunFolder) -> RunConfig:
    """Return a run's settings, with its relative paths from where it was made.

    Raises:
        Conflict: its files are damaged.
    """
    return anchored(run.read_config(), directory_of(run))


def _absolute(path: str, place: Path) -> str:
    whole = place / expanded(path)
    return os.path.abspath(whole) if os.path.exists(whole) else path
