"""How much memory a process held at most: of the host above a starting point, and of a CUDA device, phase by phase.

Linux keeps the largest resident set of a process (VmHWM) and lets it be set back (clear_refs, since 4.0); where it
does not, as in some containers, a phase's peak is the largest so far. ``ru_maxrss`` is of no use: a process starts with
its parent's. Elsewhere than on Linux the host's numbers are not known.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Peak:
    """The most that was held, in bytes; None where it is not known."""

    host: int | None
    device: int | None
    device_reserved: int | None


class MemoryMeter:
    """Measures from when it is made; ``base`` is what the process held then."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self.base = _status("VmRSS")

    def begin(self) -> None:
        """Forget the peaks so far."""
        with suppress(OSError):  # peaks only rise then
            _CLEAR.write_text("5")
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)

    def peak(self) -> Peak:
        """Return the most that was held since ``begin``."""
        top = _status("VmHWM")
        host = None if top is None or self.base is None else max(0, top - self.base)
        if self._cuda is None:
            return Peak(host, None, None)
        allocated = torch.cuda.max_memory_allocated(self._cuda)
        return Peak(host, int(allocated), int(torch.cuda.max_memory_reserved(self._cuda)))


def _status(name: str) -> int | None:
    """Return a size from the process's status in bytes."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def device_limit(device: torch.device) -> int | None:
    """How much memory a CUDA device has."""
    return int(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else None
