"""Files that a kill cannot tear and whose faults are put into words: a full disk, damage, a place that cannot be used.

Also where Ratchet keeps things, ``RATCHET_HOME``, and how its own processes start Python. Knows no run
(``run_folder.py``) and no events (``journal.py``).
"""

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from ratchet.errors import Conflict, DiskFull

FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PATH_SHOWN = 200
OUT_ADVICE = "Choose another --out."
_DISK_ADVICE = (
    "Free some space, or give another folder with --out; a run that stopped here can be resumed: ratchet resume."
)


def ratchet_home() -> Path:
    """The folder of everything that is not in a run folder of the user's choice: ``RATCHET_HOME``."""
    return expanded(os.environ.get("RATCHET_HOME") or platformdirs.user_data_dir("ratchet"))


def own_python(*arguments: str) -> list[str]:
    """The command of every Python process of ours: nothing in the current folder, such as a torch.py, is imported."""
    return [sys.executable, "-P", *arguments]


def expanded(path: str | Path) -> Path:
    """A path with ~ replaced by the home folder; one of an unknown user is left as it is."""
    return Path(os.path.expanduser(path))


def models_home() -> Path:
    """The folder of converted models."""
    return ratchet_home() / "models"


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder that is not there, and those above it. Whatever the umask, nobody else may write in them.

    Nobody else may even look into a private one, nor into ``RATCHET_HOME``.
    """
    if path.is_dir():
        return
    home = ratchet_home()
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(0o700 if folder == home or (private and folder == path) else 0o755, exist_ok=True)


def own_opener(path: str, flags: int) -> int:
    """For ``open``: whatever the umask, nobody else may write to a file that is made."""
    return os.open(path, flags, 0o644)


@contextmanager
def disk_full_as_error(path: Path, advice: str = _DISK_ADVICE) -> Iterator[None]:
    """Turn "no space left" inside the block into DiskFull, which names the place."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise DiskFull(f"The disk that holds {path} is full. {advice}") from error


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file so that after a kill either the old or the new content is there, whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_full_as_error(path.parent):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make sure that a rename in a folder is on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def damage_as_error(path: Path) -> Iterator[None]:
    """Turn what reading a damaged file raises into Conflict, which names the file and never quotes it."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Conflict(
            f"{path} cannot be read ({type(error).__name__}): it is damaged, or of another version of Ratchet."
        ) from error


@contextmanager
def unusable_as_error(path: Path, advice: str) -> Iterator[None]:
    """Turn what a place raises that no run can be kept in (a loop of links, no permission) into Conflict."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        place = str(path) if len(str(path)) <= _PATH_SHOWN else str(path)[:_PATH_SHOWN] + "..."
        raise Conflict(f"{place} cannot be used: {reason}. {advice}") from error


def resolved(path: Path, advice: str = OUT_ADVICE) -> Path:
    """A place for runs without links and ~.

    Raises:
        Conflict: there can be no such place.
    """
    with unusable_as_error(path, advice):
        return expanded(path).resolve()


def check_room(path: Path, needed_bytes: int) -> None:
    """Refuse to start where the disk cannot hold what the run will write.

    Raises:
        DiskFull: less than ``needed_bytes`` are free.
    """
    free = shutil.disk_usage(path).free
    if free < needed_bytes:
        raise DiskFull(
            f"The disk that holds {path} has {free / 1e6:.0f} MB free; the run needs about {needed_bytes / 1e6:.0f} MB "
            "for its checkpoint, adapter and samples. Free some space, or give another folder with --out."
        )
