"""Which sampler a run gets, and why: decided once, before the first round, and stored with the run.

Knows what stands in vLLM's way without importing it; only a sampler that is chosen is loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from ratchet.config import Quantization, SamplerSettings
from ratchet.engine.policy import Policy
from ratchet.engine.sampler import Sampler
from ratchet.engine.sampler.decoder_batch import BatchKind, batches_of
from ratchet.engine.sampler.in_process import InProcessSampler, rows_at_once
from ratchet.errors import InvalidSetting
from ratchet.models.model_files import ModelFiles, model_config, towers_in
from ratchet.readiness.device_checks import missing_sampler

Backend = Literal["in_process", "vllm"]


@dataclass(frozen=True)
class Choice:
    """The sampler of a run and the reason, a sentence."""

    backend: Backend
    why: str


def choose(settings: SamplerSettings, device: torch.device, files: ModelFiles, quantization: Quantization) -> Choice:
    """Which sampler to take.

    Raises:
        InvalidSetting: vLLM was asked for and cannot be had.
    """
    if settings.backend == "in_process":
        return Choice("in_process", "Generation backend is in_process.")
    if settings.backend == "auto" and device.type != "cuda":
        return Choice("in_process", f"The device is {device.type}; vLLM is chosen by itself on a CUDA GPU alone.")
    obstacle = what_stops_vllm(settings, device, files, quantization)
    if obstacle is None:
        asked = "Generation backend is vllm." if settings.backend == "vllm" else "vLLM and a CUDA GPU are there."
        return Choice("vllm", asked)
    if settings.backend == "auto":
        return Choice("in_process", str(obstacle))
    raise obstacle


def what_stops_vllm(
    settings: SamplerSettings, device: torch.device, files: ModelFiles, quantization: Quantization
) -> InvalidSetting | None:
    """Return why vLLM cannot sample here, in words; None if nothing is known to stop it."""
    if absent := missing_sampler():
        return absent
    if device.type not in ("cuda", "cpu"):
        return InvalidSetting(
            f"vLLM does not run on {device.type}. Choose Generation backend in_process.", "sampler.backend"
        )
    if device.index:
        return InvalidSetting(
            f"Device is {device}, but vLLM takes the first GPU it sees. Set CUDA_VISIBLE_DEVICES={device.index} with "
            "Device cuda, or choose Generation backend in_process.",
            "sampler.backend",
        )
    if files.gguf_file:
        return InvalidSetting(
            f"Base model is the GGUF file {files.gguf_file}, which vLLM is not given. Choose a folder with "
            "safetensors, or Generation backend in_process.",
            "sampler.backend",
        )
    if towers_in(files.name, model_config(files)):
        return InvalidSetting(
            f"{files.name} is trained without its vision or audio part, but vLLM would load the whole of it. Choose "
            "Generation backend in_process.",
            "sampler.backend",
        )
    if quantization != "none":
        return InvalidSetting(
            f"Quantization is {quantization}, but vLLM would sample with the model as it is in its files. Choose "
            "Quantization none, or Generation backend in_process.",
            "sampler.backend",
        )
    if device.type == "cuda":
        return _what_stops_share(settings.gpu_memory_share, *torch.cuda.mem_get_info(device))
    return None


def _what_stops_share(share: float, free: int, total: int) -> InvalidSetting | None:
    if free >= share * total:
        return None
    return InvalidSetting(
        f"Memory share of vLLM is {share:g}, which is {share * total / 2**30:.1f} GiB of {total / 2**30:.1f}, but only "
        f"{free / 2**30:.1f} GiB are free beside the model. Choose a smaller share, or Generation backend in_process.",
        "sampler.gpu_memory_share",
    )


def make_sampler(
    backend: Backend,
    batches: BatchKind,
    policy: Policy,
    settings: SamplerSettings,
    sampling_tokens: int,
    window_tokens: int,
    note: Callable[[str], None],
) -> Sampler:
    """Return the sampler of a run; vLLM's engine itself starts with the first call.

    Args:
        backend: As chosen and stored.
        batches: The kind of batches of the in-process sampler, as chosen and stored.
        policy: What to sample with.
        settings: vLLM's memory share.
        sampling_tokens: Prompt and answer tokens held at a time.
        window_tokens: The longest prompt plus Max answer tokens.
        note: Told, in a sentence, when an engine had to be started again.
    """
    if backend == "in_process":
        return InProcessSampler(policy, sampling_tokens, batches_of(batches, policy))
    from ratchet.engine.sampler.vllm import VllmSampler

    return VllmSampler(policy, settings.gpu_memory_share, sampling_tokens, window_tokens, note)


def most_rows(backend: Backend, device: torch.device, sampling_tokens: int, row_tokens: int) -> int:
    """How many answers the sampler writes at a time, each with its prompt of so many tokens at most."""
    if backend == "in_process":
        return rows_at_once(device.type, row_tokens, sampling_tokens)
    from ratchet.engine.sampler.vllm import most_answers

    return most_answers(sampling_tokens, row_tokens)
