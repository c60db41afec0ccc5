"""The checkpoint: everything a killed run needs to go on to the same result, in one file that is replaced at once.

A safetensors file: the adapter now ("adapter."), the best adapter so far ("best."), and the optimizer's moments
("optimizer."), with the rest as JSON in its header: prompt cursor, best record, the rounds' records, the active seconds
and a checksum over everything. Random states are not in it because there are none: every random number comes from a
generator seeded by the run's seed and the place where it is used.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ratchet.engine.policy import Policy
from ratchet.errors import Conflict
from ratchet.run.records import RoundRecord

_VERSION = 1


@dataclass
class Progress:
    """Where a run stands between two rounds.

    ``records`` holds round 0 and every finished round; ``best_state`` is the adapter of ``best_round``.
    """

    records: list[RoundRecord]
    best_state: dict[str, Tensor]
    stream_state: dict[str, Any]
    skipped_in_a_row: int = 0

    @property
    def rounds_done(self) -> int:
        """Number of the last finished round, 0 right after round 0."""
        return self.records[-1].round

    @property
    def best_round(self) -> int:
        """The round whose adapter is kept."""
        return self.records[-1].best_round


def packed(progress: Progress, policy: Policy, optimizer: torch.optim.AdamW, active_seconds: float) -> bytes:
    """Return the checkpoint file's content."""
    tensors = {f"adapter.{name}": tensor for name, tensor in policy.adapter_state().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in progress.best_state.items()}
    for name, weight in policy.named_parameters():
        for key, value in optimizer.state.get(weight, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value.cpu()
    header = {
        "version": _VERSION,
        "records": [record.model_dump() for record in progress.records],
        "stream": progress.stream_state,
        "skipped_in_a_row": progress.skipped_in_a_row,
        "active_seconds": active_seconds,
    }
    # One entry alone: safetensors writes several in no fixed order.
    return bytes(save(tensors, metadata={"ratchet": json.dumps(header | {"sha256": _checksum(header, tensors)})}))


def restore(path: Path, policy: Policy, optimizer: torch.optim.AdamW) -> tuple[Progress, float]:
    """Load a checkpoint into policy and optimizer; return where the run stood and its active seconds.

    Raises:
        Conflict: the file is damaged, of another version or of another model; policy and optimizer are untouched.
    """
    header, tensors = _read(path)
    adapter, own = _under("adapter.", tensors), policy.adapter_state()
    if {name: tensor.shape for name, tensor in adapter.items()} != {name: tensor.shape for name, tensor in own.items()}:
        raise Conflict(f"The checkpoint {path} does not belong to this run's model and LoRA rank.")
    policy.load_adapter_state(adapter)
    _restore_optimizer(policy, optimizer, tensors)
    progress = Progress(
        records=[RoundRecord.model_validate(record) for record in header["records"]],
        best_state=_under("best.", tensors),
        stream_state=header["stream"],
        skipped_in_a_row=header["skipped_in_a_row"],
    )
    return progress, float(header["active_seconds"])


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the header and the tensors of a file whose version and checksum are right."""
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, Any] = json.loads((file.metadata() or {})["ratchet"])
            version = header["version"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        if version == _VERSION and header.pop("sha256") != _checksum(header, tensors):
            raise ValueError("checksum")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise Conflict(
            f"The checkpoint {path} cannot be read ({type(error).__name__}). The best adapter so far is in adapter/."
        ) from error
    if version != _VERSION:
        raise Conflict(f"The checkpoint {path} is of version {version}; this Ratchet reads {_VERSION}.")
    return header, tensors


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a checkpoint's content: safetensors itself would not notice a number that changed."""
    digest = hashlib.sha256(json.dumps(header).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _restore_optimizer(policy: Policy, optimizer: torch.optim.AdamW, tensors: dict[str, Tensor]) -> None:
    moments: dict[int, dict[str, Tensor]] = {}
    for index, (name, _) in enumerate(policy.named_parameters()):
        state = {
            key: tensors[f"optimizer.{key}.{name}"]
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"optimizer.{key}.{name}" in tensors
        }
        if state:
            moments[index] = state
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in sorted(tensors.items()) if name.startswith(prefix)}
