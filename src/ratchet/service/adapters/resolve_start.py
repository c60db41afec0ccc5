"""Where the adapter that a run starts from lies: a run that is named by its id is found through the database."""

import os

from ratchet.config import RunConfig
from ratchet.errors import NotFound
from ratchet.files import expanded
from ratchet.models.adapter_files import holds_adapter


def with_source_found(config: RunConfig) -> RunConfig:
    """Return settings whose start is a path, where it was named by a run's id or the run's folder has moved since.

    What lies there is checked in ``readiness/start.py``.

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
    from ratchet.service.runs.registry import find_run

    for one in filter(None, (named, run_id)):
        try:
            found = find_run(one)
        except NotFound:
            continue
        start = config.start_from.model_copy(update={"adapter": str(found.path), "run": found.run_id})
        return config.model_copy(update={"start_from": start})
    raise NotFound(
        f"There is no adapter to start from at {named}: neither a run of that id, nor the folder of a run, nor one "
        "with an adapter in PEFT layout (adapter_config.json, adapter_model.safetensors)."
    )
