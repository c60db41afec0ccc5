"""What must stay the same over all sessions of a run, so that a resumed one ends with the same result.

Written into the run's record at its first start; compared, and used, at every later one.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from typing import Any

import torch

from ratchet.config import RunConfig
from ratchet.engine.build import EngineBudgets
from ratchet.engine.policy import Policy
from ratchet.engine.prepare import Prepared, data_hash
from ratchet.engine.sampler.choice import what_stops_vllm
from ratchet.errors import Conflict
from ratchet.readiness.leak_checks import keys_of
from ratchet.run.run_folder import RunFolder
from ratchet.worker.session import Session

_PINNED = ("ratchet-rl", "torch", "transformers", "peft")


def fix(
    session: Session,
    prepared: Prepared,
    policy: Policy,
    note: Callable[[str], None],
    plan: Callable[..., EngineBudgets] = EngineBudgets.fitted,
) -> dict[str, Any]:
    """Fix what must stay the same over all sessions of a run, or refuse to resume where it changed.

    ``plan`` decides at the first start what the settings leave open.
    """
    folder = session.folder
    record = folder.read_run()
    packages = [*_PINNED]
    packages += [] if prepared.config.quantization == "none" else ["bitsandbytes"]
    packages += [] if prepared.config.objective == "rl" or folder.kind == "evaluation" else ["trl"]
    versions = {name: metadata.version(name) for name in packages}
    if "fixed" in record:
        fixed: dict[str, Any] = record["fixed"]
        for what, was, now in (
            ("base model", fixed["model_identity"], policy.identity),
            ("data", fixed["data_hash"], data_hash(prepared)),
            ("device", fixed["device"], policy.device.type),
        ):
            if was != now:
                raise Conflict(f"The run's {what} was {was} and is now {now}: it cannot go on to the same result.")
        if not fixed.keys() >= {"sampler", "forward", "batches"}:
            raise Conflict(
                "The run was begun by an older version of Ratchet, which computed otherwise. Start a new one."
            )
        _refuse_other_sampler(fixed["sampler"]["backend"], prepared.config, policy)
        if fixed["versions"] != {**versions, **_sampler_version(fixed)}:
            note("Package versions differ from the run's start: results may differ.")
        return fixed
    fixed = {
        "model_identity": policy.identity,
        "data_hash": data_hash(prepared),
        "device": policy.device.type,
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "attention": policy.model.config._attn_implementation,
        "threads": torch.get_num_threads(),
        **plan(prepared, policy, note, folder.log).as_record(),
    }
    fixed["versions"] = {**versions, **_sampler_version(fixed)}
    if folder.kind == "full":  # its data may have changed by the time somebody asks what its adapter has seen
        splits = (prepared.train, prepared.validation)
        folder.write_row_keys(keys_of(*((one.prompt for one in split) for split in splits)))
    folder.write_run({**record, "fixed": fixed})
    is_sampled = prepared.config.objective == "rl" or prepared.config.verifier is not None
    if is_sampled and (fixed["sampler"]["backend"] == "vllm" or policy.device.type == "cuda"):
        note(f"Answers are sampled by {fixed['sampler']['backend']}: {fixed['sampler']['why']}")
    return fixed


def from_own_copy(prepared: Prepared, folder: RunFolder) -> Prepared:
    """Make a run start from the copy of its adapter in its own folder: the source may have changed or be gone."""
    config = prepared.config
    if config.start_from.adapter is None:
        return prepared
    start = config.start_from.model_copy(update={"adapter": str(folder.start_path)})
    return replace(prepared, config=config.model_copy(update={"start_from": start}))


def _refuse_other_sampler(backend: str, config: RunConfig, policy: Policy) -> None:
    """Refuse to resume with another sampler than before: it would draw other answers."""
    if backend != "vllm":
        return
    if obstacle := what_stops_vllm(config.sampler, policy.device, policy.files, config.quantization):
        raise Conflict(f"The run's answers were sampled by vLLM, which cannot go on here: {obstacle}")


def _sampler_version(fixed: dict[str, Any]) -> dict[str, str]:
    """Version of vLLM that is installed, by its package's name, where the run uses it."""
    if fixed["sampler"]["backend"] != "vllm":
        return {}
    # The builds for a CPU go by another name.
    names = metadata.packages_distributions().get("vllm", [])
    return {name: metadata.version(name) for name in sorted(set(names))}
