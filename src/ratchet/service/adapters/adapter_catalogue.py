"""The adapters that runs have ended with: found in the run folders, with what is known of each, and checked.

Everything here is read only: no adapter is ever changed. Nothing loads torch.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import RatchetError
from ratchet.models.adapter_files import AdapterFiles, read_adapter
from ratchet.readiness.start_adapter import finished, why_no_adapter
from ratchet.run.ancestry import Ancestor, of_run, refuse_changed
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.registry import all_runs, find_run, open_store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListedAdapter:
    """The adapter of a full run that has ended.

    Attributes:
        run: Its run's id.
        folder: The adapter's own, in PEFT layout.
        ended_at: When its run ended.
        model: The base model's setting.
        identity: The base model's commit or content hash.
        rank: Width of the adapter.
        alpha: What scales it, divided by the rank.
        origin: Objective, round, checksum, score on its run's validation sample, and what it started from itself.
    """

    run: str
    folder: Path
    ended_at: str
    model: str
    identity: str
    rank: int
    alpha: int
    origin: Ancestor


def list_adapters() -> list[ListedAdapter]:
    """The adapters of all full runs that have ended with one, those of the oldest runs first.

    Runs without one are left out; a damaged run is named in the log and left out.
    """
    found = []
    with open_store() as store:
        there = {run.folder for run in all_runs(store)}  # which brings the adapters up to date too
        folders = [one.folder.parent for one in store.adapters.all() if one.folder and one.folder.parent in there]
    for folder in map(RunFolder, folders):
        try:
            if not why_no_adapter(folder, folder.state().ended):
                found.append(_adapter(folder))
        except RatchetError as error:
            log.warning("%s", error)
    return found


def show_adapter(run_or_folder: str) -> tuple[ListedAdapter, AdapterFiles]:
    """What is known of a run's adapter, and its files once their checksum is found to be the run's own.

    Raises:
        NotFound: there is no such run, or its adapter's files are gone.
        Conflict: the run has no adapter, or its files are damaged or changed since it ended.
    """
    adapter = _adapter(find_run(run_or_folder))
    files = read_adapter(adapter.folder)
    refuse_changed(adapter.folder, files.sha256, adapter.origin.sha256)
    return adapter, files


def _adapter(folder: RunFolder) -> ListedAdapter:
    """What is known of a run's adapter.

    Raises:
        Conflict: it has none, or a file is damaged.
    """
    end, config = finished(folder), folder.read_config()
    fields = of_run(folder.path)
    origin = Ancestor(sha256=end.adapter_sha256 or "", folder=str(folder.adapter_path), **fields)
    return ListedAdapter(
        run=origin.run,
        folder=folder.adapter_path,
        ended_at=end.at,
        model=config.model,
        identity=origin.model,
        rank=config.lora.rank,
        alpha=config.lora.alpha,
        origin=origin,
    )
