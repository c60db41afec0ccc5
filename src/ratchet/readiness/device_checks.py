"""Whether this machine has what the settings ask for: device, sampler, quantization, TRL and trackers.

The rules are here for whoever knows the facts: the engine asks torch, ``device_here`` finds them out without it.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from platform import machine

from ratchet.config import Objective, Quantization, SamplerSettings, Tracker
from ratchet.errors import InvalidSetting
from ratchet.files import own_python
from ratchet.models.footprint import host_memory
from ratchet.tracking import INSTALL, is_installed

_TRL_INSTALL = "pip install 'ratchet-rl[trl]'"
_VLLM_INSTALL = "pip install 'ratchet-rl[vllm]'"
_BITSANDBYTES_INSTALL = "pip install 'bitsandbytes>=0.50'"

# Asks the driver how many GPUs CUDA_VISIBLE_DEVICES leaves, as torch does. In a process of its own: one that has begun
# to use CUDA can no longer fork others that do.
_COUNT_GPUS = """
import ctypes
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
print(count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0)
"""
# Likewise for the memory and the name of the GPU whose number it is given.
_ASK_GPU = """
import ctypes, json, sys
driver, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
size, name = ctypes.c_size_t(), ctypes.create_string_buffer(100)
calls = [
    lambda: driver.cuInit(0),
    lambda: driver.cuDeviceGet(ctypes.byref(device), int(sys.argv[1])),
    lambda: driver.cuDeviceTotalMem_v2(ctypes.byref(size), device),
    lambda: driver.cuDeviceGetName(name, 100, device),
]
if not any(call() for call in calls):
    print(json.dumps([name.value.decode(), size.value]))
"""
# A driver that initializes many GPUs takes seconds; one that takes longer has hung.
_DRIVER_SECONDS = 30


def choose_device(setting: str, cuda_gpus: int, has_mps: bool) -> str:
    """The device of a setting; auto takes the first GPU.

    Args:
        setting: auto, cpu, mps, cuda or cuda:N.
        cuda_gpus: How many CUDA GPUs torch can use.
        has_mps: Whether there is an Apple GPU that torch can use.

    Raises:
        InvalidSetting: that device is not there.
    """
    if setting == "auto":
        if cuda_gpus:
            return "cuda:0"
        return "mps" if has_mps else "cpu"
    kind, _, index = setting.partition(":")
    if kind == "cuda" and int(index or 0) >= cuda_gpus:
        raise InvalidSetting(f"Device is {setting}, but this machine has {cuda_gpus} CUDA GPUs. Choose auto.", "device")
    if kind == "mps" and not has_mps:
        raise InvalidSetting("Device is mps, but this machine has none. Choose auto.", "device")
    return setting


def device_here(setting: str) -> str:
    """The device of a setting on this machine, without loading torch.

    Where torch was built for GPUs of another maker the setting itself is returned: only torch can tell there.

    Raises:
        InvalidSetting: that device is not there.
    """
    builds = _builds_of_torch()
    if setting == "cpu" or builds & {"hip", "xpu"}:
        return setting
    has_mps = sys.platform == "darwin" and machine() == "arm64"
    return choose_device(setting, _cuda_gpus() if "cuda" in builds else 0, has_mps)


def refuse_missing_sampler(settings: SamplerSettings) -> None:
    """Refuse a vLLM that is asked for and not installed.

    Raises:
        InvalidSetting: it is not.
    """
    if settings.backend == "vllm" and (absent := missing_sampler()):
        raise absent


def missing_sampler() -> InvalidSetting | None:
    """The error where vLLM is not installed, None where it is."""
    if find_spec("vllm") is not None:
        return None
    return InvalidSetting(
        f"vLLM is not installed. Run {_VLLM_INSTALL}, or choose Generation backend in_process.", "sampler.backend"
    )


def refuse_impossible_quantization(quantization: Quantization, device: str) -> None:
    """Refuse a quantization that this machine cannot do.

    Raises:
        InvalidSetting: bitsandbytes is not installed, or the device is an Apple GPU.
    """
    if quantization == "none":
        return
    if device == "mps":
        raise InvalidSetting(
            f"Quantization is {quantization}, but the device is an Apple GPU (mps), on which bitsandbytes cannot "
            "train. Choose none, or Device cpu.",
            "quantization",
        )
    if find_spec("bitsandbytes") is None:
        raise InvalidSetting(
            f"Quantization is {quantization}, but the package bitsandbytes is not installed. Run: "
            f"{_BITSANDBYTES_INSTALL}",
            "quantization",
        )


def refuse_missing_trl(objective: Objective) -> None:
    """Refuse an objective that is trained by TRL where that is not installed.

    Raises:
        InvalidSetting: it is not.
    """
    if objective != "rl" and find_spec("trl") is None:
        raise InvalidSetting(
            f"Objective is {objective}, but the package trl is not installed. Run: {_TRL_INSTALL}", "objective"
        )


def refuse_missing_trackers(trackers: Sequence[Tracker]) -> None:
    """Refuse trackers whose library is not installed.

    Raises:
        InvalidSetting: there are some.
    """
    absent = [tracker for tracker in trackers if not is_installed(tracker)]
    if absent:
        what = f"{absent[0]} is" if len(absent) == 1 else f"{', '.join(absent)} are"
        raise InvalidSetting(f"Trackers: {what} not installed. Run: {INSTALL}, or remove it from the list.", "trackers")


def _builds_of_torch() -> set[str]:
    """Kinds of GPU that the installed torch was built for, according to its version file."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return set()
    try:
        tree = ast.parse(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return set()
    found = set()
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and value.value is not None:
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found & {"cuda", "hip", "xpu"}


def memory_of(device: str) -> tuple[str, int] | None:
    """Name and memory of a device in bytes; None where they cannot be queried.

    For cpu it is the machine's memory.
    """
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return "this machine's CPU", host_memory()
    if kind != "cuda":
        return None
    with suppress(OSError, ValueError, subprocess.TimeoutExpired):
        command = own_python("-I", "-S", "-c", _ASK_GPU, index or "0")
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DRIVER_SECONDS, check=False)
        name, size = json.loads(done.stdout)
        return f"{device} ({name})", int(size)
    return None


def _cuda_gpus() -> int:
    """Ask the driver how many GPUs there are; 0 where there is no driver, or none that answers."""
    command = own_python("-I", "-S", "-c", _COUNT_GPUS)
    with suppress(OSError, ValueError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DRIVER_SECONDS, check=False)
        return int(done.stdout or 0)
    return 0
