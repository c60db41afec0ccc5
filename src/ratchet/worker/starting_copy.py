"""A run that goes on from an adapter works with the copy in its own folder: its source may change or be gone."""

from dataclasses import replace

from ratchet.engine.prepare import Prepared
from ratchet.run.run_folder import RunFolder


def from_own_copy(prepared: Prepared, folder: RunFolder) -> Prepared:
    """Return the run with the copy of its starting adapter that was taken when its folder was made."""
    config = prepared.config
    if config.start_from.adapter is None:
        return prepared
    start = config.start_from.model_copy(update={"adapter": str(folder.start_path)})
    return replace(prepared, config=config.model_copy(update={"start_from": start}))
