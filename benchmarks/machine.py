"""What the numbers were measured on, and of what: a result is continued only where all of this is the same."""

import hashlib
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("ratchet-rl", "torch", "transformers", "peft", "trl")
_PRODUCT = Path(__file__).parent.parent / "src" / "ratchet"


def machine() -> dict[str, Any]:
    """Describe the processor by its model and cores, never by a host's name."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": _cpu_model(), "cores": len(os.sched_getaffinity(0)), "memory_gib": round(memory / 2**30)}


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}


def product_hash() -> str:
    """Return a hash over the product's source, so that numbers of two states of it never share a table."""
    digest = hashlib.sha256()
    for path in sorted(_PRODUCT.rglob("*.py")):
        digest.update(str(path.relative_to(_PRODUCT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def content_hash(paths: Iterable[Path]) -> str:
    """Return a hash over some files, names included."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def default_threads() -> int:
    """How many threads each tool gets: OMP_NUM_THREADS where it is set, else every core."""
    return int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def load_average() -> float:
    """How many processes wanted a core in the last minute."""
    return round(os.getloadavg()[0], 2)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
