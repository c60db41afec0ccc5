"""Where artifacts are kept, through fsspec: a folder, or a bucket of S3 or a compatible service.

Reads and writes whole objects by name, and puts what goes wrong into words. Knows neither runs nor manifests
(``artifact_store.py``). S3 takes its keys and address from the ``AWS_*`` variables, ``AWS_ENDPOINT_URL`` among them.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from ratchet.errors import DiskFull, InvalidSetting, StorageUnavailable
from ratchet.files import FULL_DISK, expanded, make_folder, write_atomically

VARIABLE = "RATCHET_ARTIFACTS"

_CHUNK_BYTES = 8 << 20
# A server that does not answer must not delay a run's end: closing has three minutes in all.
_CONNECT_SECONDS, _READ_SECONDS, _ATTEMPTS = 10, 30, 3
_ACCOUNT_CODES = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidClientTokenId"}


class Storage:
    """One place of artifacts. Making the object connects to nothing.

    Raises:
        InvalidSetting: the URL is no absolute folder and no s3://bucket/prefix, or the package s3fs is missing.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self._is_local = not url.startswith("s3://")
        if self._is_local:
            self._root = _folder(url)
            self._fs = fsspec.filesystem("file")
        else:
            if re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", url) is None:
                raise InvalidSetting(f"{VARIABLE} is {url!r}, which names no bucket. Write it like s3://bucket/prefix.")
            self._root = url.removeprefix("s3://").rstrip("/")
            self._fs = _s3(fsspec)
        self.url = self._root if self._is_local else f"s3://{self._root}"

    @property
    def folder(self) -> Path | None:
        """The folder, None for a bucket."""
        return Path(self._root) if self._is_local else None

    def read(self, name: str) -> bytes | None:
        """A small object, None where there is none.

        Raises:
            StorageUnavailable: the storage cannot be read.
        """
        with self._faults():
            self._check_root()
            try:
                return cast(bytes, self._fs.cat_file(self._path(name)))
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                return None

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of an object.

        Raises:
            FileNotFoundError: there is none.
            StorageUnavailable: the storage cannot be read.
        """
        with self._faults(missing=FileNotFoundError), self._fs.open(self._path(name), "rb", cache_type="none") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def replace(self, name: str, content: bytes) -> None:
        """Write a small object so that readers find the old or the new one, whole."""
        with self._faults():
            path = self._path(name)
            if self._is_local:
                write_atomically(Path(path), content)
            else:
                self._fs.pipe_file(path, content)

    def put(self, name: str, pieces: Iterable[bytes], *, private: bool) -> None:
        """Write an object piece by piece. A bucket's objects are private; a folder's are where ``private`` says so.

        Where ``pieces`` raises half way, a bucket has no such object; a folder has a torn one, to be written again.
        """
        with self._faults():
            path = self._path(name)
            if self._is_local:
                self._check_root()
                make_folder(Path(path).parent, private=private)
            target = self._fs.open(path, "wb")
            try:
                for piece in pieces:
                    target.write(piece)
                if self._is_local:
                    target.flush()
                    os.fsync(target.fileno())
                target.close()
            except BaseException:
                _abandon(target)
                raise

    def remove(self, name: str) -> None:
        """Remove an object. One that cannot be removed takes room and does no harm."""
        with suppress(StorageUnavailable), self._faults():
            self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _check_root(self) -> None:
        """Refuse a folder that is not there: where it is a mount, making it would fill the disk below."""
        if self._is_local and not Path(self._root).is_dir():
            raise FileNotFoundError(2, "there is no such folder", self._root)

    @contextmanager
    def _faults(self, missing: type[Exception] | tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Put what the storage says when it cannot be used into words. ``missing`` is left to the caller."""
        kinds: tuple[type[Exception], ...] = (OSError, DiskFull)
        if not self._is_local:
            from botocore.exceptions import BotoCoreError, ClientError

            kinds = (OSError, BotoCoreError, ClientError)
        try:
            yield
        except missing:
            raise
        except kinds as error:
            told = error.__cause__ if isinstance(error, DiskFull) and error.__cause__ else error
            raise StorageUnavailable(
                f"The storage of artifacts {self.url} cannot be used ({_reason(told)}). {self._advice(told)}"
            ) from error

    def _advice(self, error: BaseException) -> str:
        if self._is_local:
            is_full = isinstance(error, OSError) and error.errno in FULL_DISK
            remedy = "Free some space there" if is_full else "Make the folder, mount what belongs there"
            return f"{remedy}, or name another one with {VARIABLE}."
        code = _code(error)
        if code == "NoSuchBucket":
            return f"Make the bucket, or name another one with {VARIABLE}."
        if code in _ACCOUNT_CODES or isinstance(error, PermissionError) or "redential" in str(error):
            return "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and what they may do in the bucket."
        return "Check that its server runs and that AWS_ENDPOINT_URL and AWS_DEFAULT_REGION name it."


def _folder(url: str) -> str:
    path = expanded(url.removeprefix("file://"))
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url.removeprefix("file://")) or not path.is_absolute():
        raise InvalidSetting(
            f"{VARIABLE} is {url!r}. Write an absolute folder such as /path/artifacts, or s3://bucket/prefix."
        )
    return str(path)


def _s3(fsspec: Any) -> Any:
    retries = {"max_attempts": _ATTEMPTS, "mode": "standard"}
    config = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS, "retries": retries}
    try:
        made = fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False, config_kwargs=config)
    except ImportError as error:
        raise InvalidSetting(
            f"{VARIABLE} names a bucket, which needs the package s3fs. Install it with pip install 'ratchet-rl[s3]'."
        ) from error
    made.retries = 1  # s3fs would make all of these attempts five times, eight minutes where nothing answers
    return made


def _abandon(target: Any) -> None:
    """Give up an object half written; what cannot be taken back is left."""
    with suppress(Exception):
        if hasattr(target, "mpu"):
            target.discard()
            target.closed = True  # closing it would complete the object
        else:
            target.close()


def _code(error: BaseException | None) -> str:
    """S3's code of a fault; s3fs turns it into an OSError and keeps the fault as its cause."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return ""


def _reason(error: BaseException) -> str:
    text = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
    return text.rstrip(".")
