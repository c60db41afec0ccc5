"""The slots of this machine: one for each GPU, and some for the CPU. GPUs are found without torch."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ratchet.config import RunConfig
from ratchet.errors import Conflict
from ratchet.run.run_folder import RunFolder

_SMI_SECONDS = 20
_VISIBLE, _THREADS = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Slot:
    """Room for one run at a time.

    Attributes:
        name: What it is called, such as gpu0 or cpu0.
        kind: What a run finds there.
        index: Which of the GPUs that this process sees.
        environment: What a worker in it finds in its environment.
    """

    name: str
    kind: Literal["cuda", "cpu"]
    index: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


def find_slots(cpu_slots: int = 1, gpus: int | None = None) -> list[Slot]:
    """Slots of this machine, GPUs first.

    Args:
        cpu_slots: How many runs may use the CPU at a time.
        gpus: How many GPUs there are; looked for by ``nvidia-smi`` where it is not said.
    """
    names = _visible_gpus() if gpus is None else [str(index) for index in range(gpus)]
    found = [Slot(f"gpu{index}", "cuda", index, {_VISIBLE: name}) for index, name in enumerate(names)]
    # One run alone takes what torch takes by itself; several share the cores evenly.
    threads = {_THREADS: str(max(1, (os.cpu_count() or 1) // cpu_slots))} if cpu_slots > 1 else {}
    own = {name: value for name, value in threads.items() if name not in os.environ}
    return found + [Slot(f"cpu{index}", "cpu", index, {_VISIBLE: "", **own}) for index in range(cpu_slots)]


def _visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls each GPU that a worker may use."""
    if (chosen := os.environ.get(_VISIBLE)) is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip().isdigit()]


def fits(config: RunConfig, folder: RunFolder, slot: Slot, slots: Sequence[Slot]) -> bool:
    """Whether a run may run in a slot of this machine, which has these slots.

    A run resumes only on the kind of device it was started on: another one would give other results.
    """
    wanted = _begun_on(folder) or config.device
    if wanted == "auto":
        wanted = "cuda" if any(one.kind == "cuda" for one in slots) else "cpu"
    if wanted in ("cpu", "mps"):
        return slot.kind == "cpu"
    number = config.device.partition(":")[2]
    return slot.kind == "cuda" and (not number or int(number) == slot.index)


def environment_of(config: RunConfig, slot: Slot) -> dict[str, str]:
    """Environment variables of a worker besides those of this process.

    A run that names a GPU by number counts as this process does, so that it sees them all.
    """
    names_gpu = slot.kind == "cuda" and ":" in config.device
    return {name: value for name, value in slot.environment.items() if not (names_gpu and name == _VISIBLE)}


def _begun_on(folder: RunFolder) -> str | None:
    try:
        device = folder.read_run().get("fixed", {}).get("device")
    except Conflict:
        return None  # its worker will say what is wrong with it
    return str(device) if device else None
