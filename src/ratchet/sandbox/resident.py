"""How much memory a process and all its descendants hold, and what ends them when it is too much.

Limits of the kernel (``Limits``) count one process at a time. Reads /proc of the host; no cgroup is needed.
"""

import os
from contextlib import suppress

from ratchet.errors import SandboxUnavailable

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def require_process_tree() -> None:
    """Raise SandboxUnavailable where the kernel does not tell a process's children."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        raise SandboxUnavailable(
            "The memory of a sandbox cannot be measured: /proc does not list the children of a process.",
            "Use a kernel with CONFIG_PROC_CHILDREN, as distributions ship it, and mount /proc.",
        )


def resident_bytes(process_id: int) -> int:
    """Return the resident memory of a process and its descendants; what ends meanwhile counts as nothing.

    Pages that several share count once for each: an upper bound.
    """
    total, waiting = 0, [str(process_id)]
    while waiting:
        process = waiting.pop()
        with suppress(OSError):
            with open(f"/proc/{process}/statm", encoding="ascii") as file:
                total += int(file.read().split()[1]) * _PAGE_BYTES
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as file:
                    waiting += file.read().split()
    return total
