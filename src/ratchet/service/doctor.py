"""What this machine can do: the facts behind ``ratchet doctor``. Changes nothing, starts one sandbox."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ratchet.errors import SandboxUnavailable
from ratchet.files import own_python, ratchet_home
from ratchet.sandbox.probe import METRIC_ENV, Probe, metric_packages, probe
from ratchet.sandbox.tools import system_python

# Prints what Device auto takes, as ``readiness/device_checks.py`` has it (tested equal), without loading that.
# Garbage is not searched for, nor torch taken apart at the end: that takes a quarter of the time.
_LOAD_TORCH = """
import gc
gc.disable()
import json, os, torch
cuda, apple = torch.cuda.device_count() > 0, torch.backends.mps.is_available()
print(json.dumps("cuda:0" if cuda else "mps" if apple else "cpu"), flush=True)
os._exit(0)
"""
_EXTRA = re.compile(r"""^\s*([\w.-]+).*;.*\bextra\s*==\s*["']([\w-]+)["']""")


@dataclass(frozen=True)
class TorchFacts:
    """``device`` is what ``auto`` takes, None with the ``problem`` in words where torch cannot be loaded."""

    version: str | None
    device: str | None
    problem: str = ""


@dataclass(frozen=True)
class MetricEnvironment:
    """The folder of packages for metrics, None where none is set; ``packages`` are those that lie in it."""

    folder: str | None
    packages: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class MachineReport:
    """What was found. Sizes in bytes; ``extras`` says of each optional extra whether all of it is installed."""

    ratchet: str
    python: str
    system: str
    torch: TorchFacts
    memory_bytes: int
    memory_free_bytes: int
    home: str
    disk_free_bytes: int
    sandbox: Probe
    sandbox_python: str | None
    metric_environment: MetricEnvironment
    extras: Mapping[str, bool]

    def as_record(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return asdict(self)


def examine(waiting_for: Callable[[str], None] = lambda what: None) -> MachineReport:
    """Look at this machine. ``waiting_for`` gets what takes a moment: loading torch, in a process of its own."""
    page = os.sysconf("SC_PAGE_SIZE")
    home = ratchet_home()
    # To see what it would compute on; meanwhile the sandbox is tried.
    loading = subprocess.Popen(own_python("-c", _LOAD_TORCH), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    waiting_for("the sandbox")
    found = probe(refresh=True)
    waiting_for("torch")
    return MachineReport(
        ratchet=metadata.version("ratchet-rl"),
        python=f"{platform.python_version()} ({sys.executable})",
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        torch=_torch(loading),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * page,
        memory_free_bytes=os.sysconf("SC_AVPHYS_PAGES") * page,
        home=str(home),
        disk_free_bytes=shutil.disk_usage(_existing(home)).free,
        sandbox=found,
        sandbox_python=_sandbox_python(),
        metric_environment=metric_environment(),
        extras=_extras(),
    )


def _torch(loading: "subprocess.Popen[bytes]") -> TorchFacts:
    with loading:
        device, said = loading.communicate()
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return TorchFacts(None, None, "torch is not installed")
    if loading.returncode != 0:  # a library of a driver that is missing or too old
        reason = said.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {loading.returncode}"
        return TorchFacts(version, None, f"torch cannot be loaded: {reason}")
    return TorchFacts(version, json.loads(device))


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _sandbox_python() -> str | None:
    try:
        return system_python()
    except SandboxUnavailable:
        return None


def metric_environment() -> MetricEnvironment:
    """Look at the folder of packages for metrics."""
    try:
        folder = metric_packages()
    except SandboxUnavailable as error:
        return MetricEnvironment(os.environ[METRIC_ENV], (), f"{error.reason} {error.remedy}")
    if folder is None:
        return MetricEnvironment(None)
    found = metadata.distributions(path=[str(folder)])
    return MetricEnvironment(str(folder), tuple(sorted(f"{one.name} {one.version}" for one in found)))


def _extras() -> dict[str, bool]:
    """Return for each extra that the installed package names whether what it needs is installed."""
    extras: dict[str, bool] = {}
    for requirement in metadata.requires("ratchet-rl") or []:
        if match := _EXTRA.match(requirement):
            package, extra = match.groups()
            extras[extra] = extras.get(extra, True) and _is_installed(package)
    return extras


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
