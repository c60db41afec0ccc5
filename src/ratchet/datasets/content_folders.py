"""Folders that never change, named by the hash of what is in them: ``RATCHET_HOME/HOME/HASH``.

A folder is written under another name, synced and renamed: it is there whole or not at all. Only its owner can read it.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ratchet.errors import Conflict
from ratchet.files import disk_full_as_error, make_folder, sync_folder, unusable_as_error

_STAGING = ".import-"
_HOME_ADVICE = "Set RATCHET_HOME to a folder that can be written to."
_DISK_ADVICE = "Free some space, or set RATCHET_HOME to a folder on another disk."


@contextmanager
def staging(home: Path) -> Iterator[Path]:
    """Give a folder to write a content in. Afterwards it is removed, and so is what killed imports left.

    Raises:
        Conflict: ``home`` cannot be used.
        DiskFull: there is no room.
    """
    with unusable_as_error(home, _HOME_ADVICE), disk_full_as_error(home, _DISK_ADVICE):
        make_folder(home, private=True)
        home.chmod(0o700)
        _remove_abandoned(home)
        folder, descriptor = _locked_folder(home)
    try:
        with disk_full_as_error(home, _DISK_ADVICE):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def place(folder: Path, content_hash: str, is_whole: Callable[[], bool]) -> None:
    """Rename a staged folder to its hash. A damaged one with that name is replaced.

    Args:
        folder: What ``staging`` gave, with all files written.
        content_hash: Of what is in it.
        is_whole: Whether a folder with that name is there and undamaged. It stays then.
    """
    if is_whole():
        return
    target, damaged = folder.with_name(content_hash), folder.with_name(f"{folder.name}-damaged")
    if target.exists():
        os.rename(target, damaged)
    try:
        os.rename(folder, target)
    except OSError:
        if not is_whole():  # else another process was first
            raise
    shutil.rmtree(damaged, ignore_errors=True)
    sync_folder(folder.parent)


def changed(file: Path, what: str) -> Conflict:
    """The error for a file that is not the one that was stored; ``what`` was added: "data"."""
    return Conflict(
        f"{file} is not as it was when the {what} was added: changed, damaged or removed. Add the same {what} again to "
        "restore it."
    )


def _locked_folder(home: Path) -> tuple[Path, int]:
    """Make a folder and lock it while this process lives: such a folder is not abandoned."""
    while True:
        folder = home / f"{_STAGING}{secrets.token_hex(4)}"
        folder.mkdir(0o755)
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                return folder, descriptor
            os.close(descriptor)
        # Another import took it for abandoned before it was locked.


def _remove_abandoned(home: Path) -> None:
    for folder in home.glob(f"{_STAGING}*"):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
