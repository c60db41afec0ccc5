"""Where runs read and write: relative paths start where they were written, and a new folder must be empty and fit."""

import os
from pathlib import Path

from ratchet.config import RunConfig
from ratchet.config.changes import with_values
from ratchet.errors import Conflict, NotFound
from ratchet.files import check_room, expanded, ratchet_home, resolved, unusable_as_error
from ratchet.models.adapter_files import holds_adapter
from ratchet.models.model_files import SMOLLM2, TINY
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.registry import find_run
from ratchet.supervisor.executors import directory_of

# Room for samples, log and journal; the adapter and checkpoint come on top once the model is known.
_LEAST_ROOM_BYTES = 32 << 20


def anchored(config: RunConfig, place: Path | None = None) -> RunConfig:
    """Settings in which paths that exist are absolute; hub ids and names stay as they are.

    Args:
        config: Any settings.
        place: Where relative paths start, None for the current directory.
    """
    place = place or Path.cwd()
    values: dict[str, object] = {}
    if config.model not in (TINY, SMOLLM2) and (model := _absolute(config.model, place)) != config.model:
        values["model"] = model
    if (path := getattr(config.data, "path", "")) and (whole := _absolute(path, place)) != path:
        values["data.path"] = whole
    adapter = config.start_from.adapter
    if adapter and (whole := _absolute(adapter, place)) != adapter:
        values["start_from"] = {**config.start_from.model_dump(mode="json"), "adapter": whole}
    return with_values(config, values) if values else config


def settings_of(run: RunFolder) -> RunConfig:
    """A run's settings, with its relative paths from where it was made.

    Raises:
        Conflict: its files are damaged.
    """
    return anchored(run.read_config(), directory_of(run))


def _absolute(path: str, place: Path) -> str:
    whole = place / expanded(path)
    return os.path.abspath(whole) if os.path.exists(whole) else path


def refuse_unusable(out: Path | None) -> None:
    """Refuse a folder for a new run that holds something already, or has no room.

    Raises:
        Conflict: it exists and is not empty, or cannot be made.
        DiskFull: its disk has no room for a run.
    """
    if out is not None:
        RunFolder.refuse_taken(resolved(out))
    place, advice = out or ratchet_home(), "Choose another --out." if out else "Set RATCHET_HOME to another folder."
    with unusable_as_error(place, advice):
        check_room(_existing_parent(place, advice), _LEAST_ROOM_BYTES)


def _existing_parent(path: Path, advice: str) -> Path:
    path = resolved(path, advice)
    while not path.exists():
        path = path.parent
    if not path.is_dir():
        raise Conflict(f"{path} is a file, so it cannot hold a run folder. {advice}")
    return path


def with_source_found(config: RunConfig) -> RunConfig:
    """Settings whose start is a path, where it was named by a run's id or the run's folder has moved since.

    What lies there is checked in ``readiness/start_adapter.py``.

    Raises:
        NotFound: there is no such run or folder.
        Conflict: the database cannot be used.
    """
    named, run_id = config.start_from.adapter, config.start_from.run
    if named is None:
        return config
    path = os.path.abspath(expanded(named))
    if holds_adapter(expanded(path)) or os.path.isdir(path):
        return config
    for one in filter(None, (named, run_id)):
        try:
            found = find_run(one)
        except NotFound:
            continue
        start = config.start_from.model_copy(update={"adapter": str(found.path), "run": found.run_id})
        return config.model_copy(update={"start_from": start})
    raise NotFound(
        f"There is no adapter to start from at {named}: it is neither the id or folder of a run nor a folder with a "
        "PEFT adapter (adapter_config.json, adapter_model.safetensors)."
    )
