"""How much main memory this process may use: the machine's, or what its control group allows of it (a container's)."""

import os
from collections.abc import Iterator
from pathlib import Path

# Where the two versions of control groups say so, see cgroups(7).
_GROUPS = Path("/sys/fs/cgroup")
_V1_LIMIT = "memory/memory.limit_in_bytes"
_V2_LIMIT = "memory.max"


def host_memory(proc: Path = Path("/proc"), groups: Path = _GROUPS) -> int:
    """How many bytes of main memory there are for this process; ``proc`` and ``groups`` are for tests."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(proc, groups)])


def _limits(proc: Path, groups: Path) -> Iterator[int]:
    """Yield the limits of this process's control group and of those around it."""
    own = groups
    for line in _text(proc / "self" / "cgroup").splitlines():
        if line.startswith("0::"):  # the second version's one hierarchy
            own = groups / line[3:].strip().lstrip("/")
    places = [own, *own.parents]
    for place in places[: places.index(groups) + 1] if groups in places else [groups]:
        yield from _number(place / _V2_LIMIT)
    yield from _number(groups / _V1_LIMIT)


def _number(path: Path) -> Iterator[int]:
    text = _text(path).strip()
    if text.isdecimal():  # "max" where there is no limit
        yield int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
