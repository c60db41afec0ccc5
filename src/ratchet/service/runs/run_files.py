"""What runs leave: their adapters, listed and checked, and their files in artifact storage, fetched and uploaded.

No adapter is ever changed. Nothing loads torch.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import Conflict, InvalidSetting, NotFound, RatchetError
from ratchet.files import expanded
from ratchet.models.adapter_files import AdapterFiles, read_adapter
from ratchet.readiness.start_adapter import finished, why_no_adapter
from ratchet.run.ancestry import Ancestor, of_run, refuse_changed
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.registry import all_runs, find_run, open_store

if TYPE_CHECKING:
    from ratchet.store.artifact_store import ArtifactStore


_UNSET = (
    "RATCHET_ARTIFACTS is not set, so there is no artifact storage. Set it to an absolute folder or to "
    "s3://bucket/prefix."
)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Transfer:
    """Files of a run that were brought from the storage or sent to it. ``damaged`` of those sent were damaged there."""

    run: str
    folder: Path
    url: str
    files: int
    damaged: int = 0


def check_artifacts() -> None:
    """Check the place of artifacts before a run starts, where one is named. Connects to nothing.

    Raises:
        InvalidSetting: it cannot be used.
    """
    from ratchet.store.artifact_store import ArtifactStore, artifacts_url

    if url := artifacts_url():
        ArtifactStore(url)


def fetch_run(run: str, target: Path) -> Transfer:
    """Bring the files of a run from the storage into a new or empty folder, every one checked.

    The database says where they are; for a run that it does not know it is RATCHET_ARTIFACTS.

    Raises:
        InvalidSetting: neither says where they are.
        NotFound: they are not there.
        Conflict: the folder is taken, or files are damaged; nothing was fetched.
        DiskFull, StorageUnavailable: see the message.
    """
    store = _store_of(run)
    target = expanded(target).absolute()
    return Transfer(run, target, store.url_of(run), store.fetch(run, target))


def upload_run(run_or_folder: str) -> Transfer:
    """Send what the storage lacks of a run, also in place of what is damaged there: all of it is read for that.

    Raises:
        InvalidSetting: no storage is named.
        NotFound: there is no such run.
        Conflict: a process works on it, and sends its files by itself.
        StorageUnavailable: the storage cannot be used.
    """
    from ratchet.store.artifact_store import ArtifactStore, artifacts_url, files_of

    url = artifacts_url()
    if url is None:
        raise InvalidSetting(_UNSET)
    store = ArtifactStore(url)
    folder = find_run(run_or_folder)
    with folder.locked():
        run = folder.run_id
        damaged: list[str] = []
        with suppress(NotFound, Conflict):  # nothing there yet, or a damaged list: all is sent
            damaged = store.verify(run)
        sent = store.upload(run, folder.path, files_of(folder.path), again=damaged)
    with open_store() as runs, suppress(NotFound):
        runs.change(run, artifacts_url=store.url_of(run))
    return Transfer(run, folder.path, store.url_of(run), sent, len(damaged))


def _store_of(run: str) -> "ArtifactStore":
    from ratchet.store.artifact_store import ArtifactStore, artifacts_url

    known = ""
    with open_store() as runs, suppress(NotFound):
        known = runs.get(run).artifacts_url.removesuffix(f"/{run}")
    url = known or artifacts_url()
    if url is None:
        raise InvalidSetting(f"The database does not know where files of run {run} are, and {_UNSET}")
    return ArtifactStore(url)


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
