"""Files of runs in artifact storage: fetch a run, and upload what is missing."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.files import expanded
from ratchet.service.runs.registry import find_run, open_store

if TYPE_CHECKING:
    from ratchet.store.artifact_store import ArtifactStore

_UNSET = (
    "RATCHET_ARTIFACTS is not set, so there is no artifact storage. Set it to an absolute folder or to "
    "s3://bucket/prefix."
)


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
    _remember(run, store.url_of(run))
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


def _remember(run: str, url: str) -> None:
    with open_store() as runs, suppress(NotFound):
        runs.change(run, artifacts_url=url)
