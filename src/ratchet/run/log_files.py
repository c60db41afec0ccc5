"""Log files of bounded size: what is too long is copied aside, a bounded number of times, and begun anew.

The file itself stays: processes that have it open for appending go on writing at its new end, which is why it is not
renamed. Lines written between the copy and the cut are lost.
"""

import os
from contextlib import suppress
from pathlib import Path

from ratchet.files import own_opener

MAX_BYTES = 4 << 20
KEPT = 2  # older parts beside the current one


def rotate(path: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
    """Put a log aside as PATH.1, the older parts as PATH.2 and so on, once it is longer than ``max_bytes``.

    On a full disk the part put aside is lost, so that there is room again.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return
        for number in range(kept, 1, -1):
            with suppress(FileNotFoundError):
                os.rename(_part(path, number - 1), _part(path, number))
        with suppress(OSError), path.open("rb") as file, open(_part(path, 1), "wb", opener=own_opener) as part:
            file.seek(-max_bytes, os.SEEK_END)
            part.write(file.read(max_bytes))
        os.truncate(path, 0)
    except OSError:
        return  # not there, or not ours


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
