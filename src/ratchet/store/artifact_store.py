"""Artifacts of runs in the storage: the files of their folders, with a manifest of checksums beside them.

    ROOT/RUN/manifest.json                       path -> SHA-256 and bytes; written last
    ROOT/RUN/objects/PATH/SHA-256                one content of one file

An object never changes, and the manifest is replaced whole: a reader sees the run as it was at the end of one upload,
whatever is written meanwhile. Contents that no manifest names any more are removed after that. Files that have gone
from the folder stay in the storage: it also is where rollouts are that the folder had no room for.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.files import disk_full_as_error, make_folder, unusable_as_error
from ratchet.run.display import listed
from ratchet.store.storage import VARIABLE, Storage

_CHUNK_BYTES = 8 << 20
_VERSION = 1
_SHOWN = 5  # files named in a message
_READINGS = 3  # of a run that is uploaded while it is read
_CHECKPOINT = "checkpoint.safetensors"
_ORDER = ("adapter", "run.json", "config.json", "events.jsonl", "run.log", _CHECKPOINT)
# Of the folder, these are of the moment alone; names that begin with a dot are locks and half-written files.
_OF_THE_MOMENT = frozenset({"heartbeat.json", "stop.json"})


@dataclass(frozen=True)
class StoredFile:
    """One file's content in the storage."""

    sha256: str
    bytes: int


Manifest = Mapping[str, StoredFile]


def artifacts_url() -> str | None:
    """URL of the storage of artifacts besides the run folders, None without one."""
    return os.environ.get(VARIABLE) or None


def files_of(folder: Path) -> list[str]:
    """The files of a run folder by their paths in it, in the order in which they matter.

    The adapter comes first, then what says what it is, then what a resumed run needs, then the rollouts.
    """
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(place).relative_to(folder)
        regular = (name for name in names if not name.startswith(".") and os.path.isfile(os.path.join(place, name)))
        found += [(below / name).as_posix() for name in regular]
    return sorted((path for path in found if path not in _OF_THE_MOMENT), key=lambda path: (_rank(path), path))


def in_parts(files: Sequence[str]) -> list[list[str]]:
    """The files in three parts: the adapter with what it is, what a resumed run needs, and the rest."""
    parts: list[list[str]] = [[], [], []]
    for path in files:
        parts[max(0, _rank(path) - _ORDER.index(_CHECKPOINT) + 1)].append(path)
    return parts


def _rank(path: str) -> int:
    first = PurePosixPath(path).parts[0]
    return _ORDER.index(first) if first in _ORDER else len(_ORDER)


class ArtifactStore:
    """The storage that a URL names. Making the object connects to nothing.

    Raises:
        InvalidSetting: the URL is no storage that Ratchet can use, or what it needs is not installed.
    """

    def __init__(self, url: str) -> None:
        self._storage = Storage(url)
        # (run, path) -> what the system says of a file and the checksum that it had then: large ones are read once.
        self._known: dict[tuple[str, str], tuple[tuple[int, ...], StoredFile]] = {}

    def url_of(self, run: str) -> str:
        """URL of a run's files."""
        return f"{self._storage.url}/{run}"

    def manifest(self, run: str) -> Manifest:
        """The files of a run.

        Raises:
            NotFound: the storage has none.
            Conflict: the manifest is damaged.
            StorageUnavailable: the storage cannot be read.
        """
        content = self._storage.read(f"{_checked(run)}/manifest.json")
        if content is None:
            raise NotFound(f"The storage of artifacts {self._storage.url} has no files of run {run}.")
        try:
            listed = json.loads(content)
            if listed["version"] != _VERSION:
                raise ValueError("version")
            files = {str(path): StoredFile(str(f["sha256"]), int(f["bytes"])) for path, f in listed["files"].items()}
            if not all(_is_inside(path) and re.fullmatch("[0-9a-f]{64}", f.sha256) for path, f in files.items()):
                raise ValueError("no file")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise Conflict(
                f"The list of files {self.url_of(run)}/manifest.json is damaged, or of another version of Ratchet. "
                f"Send the run again from its folder: ratchet runs upload {run}"
            ) from error
        return files

    def upload(
        self,
        run: str,
        folder: Path,
        files: Sequence[str],
        *,
        again: Collection[str] = (),
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Send what the storage does not have of these files, in this order; return how many were sent.

        A file that grows meanwhile is sent as it was when it was reached; one that is gone, or that was written over
        while it was sent, is left out.

        Args:
            run: The run's id.
            folder: Its folder.
            files: Paths in it.
            again: Those of them to send although the manifest has them.
            check: Asked between pieces; may raise, to give up.

        Raises:
            StorageUnavailable: the storage cannot be read or written. What it had is as it was.
            InvalidSetting: the storage is in the run's folder.
        """
        self._refuse_inside(folder, run)
        before = self._manifest_or_none(run)
        after = dict(before)
        sent = 0
        for path in files:
            check()
            try:
                source = (folder / path).open("rb")
            except FileNotFoundError:
                continue
            with source:
                content = self._content(run, path, source)
                if path not in again and before.get(path) == content:
                    continue
                if self._send(run, path, content, source, check):
                    after[path] = content
                    sent += 1
        if sent:
            listed = {path: asdict(content) for path, content in sorted(after.items())}
            text = json.dumps({"version": _VERSION, "run": run, "files": listed}, indent=1)
            self._storage.replace(f"{run}/manifest.json", text.encode())
            for path, content in before.items():
                if after[path] != content:
                    self._storage.remove(_object(run, path, content))
        return sent

    def _send(self, run: str, path: str, content: StoredFile, source: IO[bytes], check: Callable[[], None]) -> bool:
        """Send an open file; return whether it still had the expected content."""
        digest = hashlib.sha256()

        def pieces() -> Iterator[bytes]:
            left = content.bytes
            while left and (piece := source.read(min(_CHUNK_BYTES, left))):
                check()
                digest.update(piece)
                left -= len(piece)
                yield piece

        self._storage.put(_object(run, path, content), pieces(), private=_is_private(path))
        return digest.hexdigest() == content.sha256

    def missing(self, run: str, folder: Path, files: Sequence[str]) -> list[str]:
        """Which of these files the storage lacks as they are now.

        Raises:
            StorageUnavailable: the storage cannot be read.
        """
        stored = self._manifest_or_none(run)
        found = []
        for path in files:
            with suppress(FileNotFoundError), (folder / path).open("rb") as source:
                if stored.get(path) != self._content(run, path, source):
                    found.append(path)
        return found

    def verify(self, run: str) -> list[str]:
        """Read every file of a run; return those that are damaged or gone.

        Raises:
            NotFound: the storage has no files of it.
            Conflict: the manifest is damaged.
            StorageUnavailable: the storage cannot be read.
        """
        return self._unchanged(
            run, lambda manifest: [path for path in manifest if self._is_damaged(run, path, manifest)]
        )

    def fetch(self, run: str, target: Path) -> int:
        """Bring a run's files into a folder that is new or empty, each checked; return how many there are.

        All of them get there or nothing does.

        Raises:
            NotFound: the storage has no files of it.
            Conflict: the folder is taken, or files in the storage are damaged.
            DiskFull: there is no room.
            StorageUnavailable: the storage cannot be read.
        """
        advice = "Choose another folder."
        with unusable_as_error(target, advice), disk_full_as_error(target, f"Free some space. {advice}"):
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                raise Conflict(f"{target} already exists and is not empty. {advice}")
            make_folder(target.parent)
            with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
                copy = Path(temporary) / "copy"
                damaged = self._unchanged(run, lambda manifest: self._fetch_into(run, manifest, copy))
                if damaged:
                    raise Conflict(
                        f"{len(damaged)} files of run {run} are damaged or gone in {self.url_of(run)} "
                        f"({listed(damaged, _SHOWN)}), so nothing was fetched. Send them again from the machine that "
                        f"has the run's folder: ratchet runs upload {run}"
                    )
                count = len(files_of(copy))
                os.replace(copy, target)
        return count

    def _fetch_into(self, run: str, manifest: Manifest, folder: Path) -> list[str]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(0o755)
        damaged = []
        for path in manifest:
            is_private = _is_private(path)
            target = folder / path
            make_folder(target.parent, private=is_private)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_private else 0o644)
            with os.fdopen(descriptor, "wb") as file:
                if self._is_damaged(run, path, manifest, file):
                    damaged.append(path)
        return damaged

    def _is_damaged(self, run: str, path: str, manifest: Manifest, copy: IO[bytes] | None = None) -> bool:
        digest = hashlib.sha256()
        try:
            for chunk in self._storage.chunks(_object(run, path, manifest[path])):
                digest.update(chunk)
                if copy is not None:
                    copy.write(chunk)
        except FileNotFoundError:
            return True
        return digest.hexdigest() != manifest[path].sha256

    def _unchanged(self, run: str, work: Callable[[Manifest], list[str]]) -> list[str]:
        """Files that ``work`` finds damaged; it is asked again where an upload made another manifest meanwhile."""
        for _ in range(_READINGS):
            manifest = self.manifest(run)
            damaged = work(manifest)
            if not damaged or self.manifest(run) == manifest:
                break
        return damaged

    def _manifest_or_none(self, run: str) -> Manifest:
        """The manifest; empty where there is none, or where it is damaged and everything must be sent again."""
        try:
            return self.manifest(run)
        except (NotFound, Conflict):
            return {}

    def _content(self, run: str, path: str, source: IO[bytes]) -> StoredFile:
        """The checksum and size of an open file, which is at its beginning then."""
        status = os.fstat(source.fileno())
        state = (status.st_ino, status.st_size, status.st_mtime_ns)
        known = self._known.get((run, path))
        if known is not None and known[0] == state:
            return known[1]
        digest = hashlib.sha256()
        size = 0
        for chunk in iter(lambda: source.read(_CHUNK_BYTES), b""):
            digest.update(chunk)
            size += len(chunk)
        source.seek(0)
        content = StoredFile(digest.hexdigest(), size)
        if size == status.st_size:
            self._known[run, path] = (state, content)
        return content

    def _refuse_inside(self, folder: Path, run: str) -> None:
        root = self._storage.folder
        if root is not None and (root / run).resolve().is_relative_to(folder.resolve()):
            raise InvalidSetting(
                f"{VARIABLE} is {root}, which would put the files of run {run} into its own folder {folder}. Name "
                "another place, or none: run folders keep everything by themselves."
            )


def _object(run: str, path: str, content: StoredFile) -> str:
    return f"{run}/objects/{path}/{content.sha256}"


def _checked(run: str) -> str:
    if re.fullmatch(r"[\w-][\w.-]*", run) is None:
        raise NotFound(f"{run!r} is no id of a run.")
    return run


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


def _is_private(path: str) -> bool:
    return PurePosixPath(path).parts[0] == "rollouts"
