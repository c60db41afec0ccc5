"""Which sampler and batches a run gets, and why: decided once, before the first round, and stored with the run.

Knows what stands in vLLM's way without importing it; only a sampler that is chosen is loaded.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ratchet.config import Quantization, SamplerSettings
from ratchet.engine.decoder.decoding import DecoderBatch, MergedDecoder
from ratchet.engine.memory import give_back, is_out_of_memory, out_of_memory_as
from ratchet.engine.packing import common_prefix
from ratchet.engine.policy import Policy
from ratchet.engine.sampler import Batches, Sampler
from ratchet.engine.sampler.in_process import InProcessSampler, rows_at_once
from ratchet.engine.sampler.transformers_batch import TransformersBatches
from ratchet.errors import InvalidSetting
from ratchet.models.model_files import ModelFiles, model_config, towers_in
from ratchet.readiness.device_checks import missing_sampler

log = logging.getLogger(__name__)

Backend = Literal["in_process", "vllm"]
BatchKind = Literal["decoder", "transformers"]


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
    """Return the sampler of a run, as chosen and stored; vLLM's engine itself starts with the first call.

    ``sampling_tokens``: prompt and answer tokens held at a time; ``window_tokens``: the longest prompt plus Max answer
    tokens. ``note`` gets a sentence when an engine had to be started again.
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


# Log-probabilities of the two may differ by rounding.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
_STEPS_TRIED = 3


class DecoderBatches:
    """Batches of our own decoder. See ``Batches``.

    The merged weights are a second copy of the model. They are kept from one call to the next while the adapter stays
    the same (validation, then the next round), and let go of before the update.
    """

    def __init__(self, policy: Policy) -> None:
        if policy.decoder is None:
            raise ValueError("this model has no decoder of ours")
        self._policy = policy
        self._weights = policy.decoder
        self._merged: MergedDecoder | None = None
        self._versions: list[int] = []

    @contextmanager
    def batch(self, common_prefix: tuple[int, ...], most_rows: int) -> Iterator[DecoderBatch]:
        """Return a batch of the policy as it is now."""
        versions = [parameter._version for parameter in self._policy.parameters]
        if self._merged is None or versions != self._versions:
            self._merged = None  # before the new one is made
            with torch.no_grad():
                self._merged, self._versions = MergedDecoder(self._weights), versions
        yield DecoderBatch(self._merged, common_prefix, most_rows)

    def rest(self) -> None:
        """Let go of the merged weights."""
        self._merged = None
        give_back(self._policy.merged_bytes)


def batches_of(kind: BatchKind, policy: Policy) -> Batches:
    """What makes batches of that kind."""
    return DecoderBatches(policy) if kind == "decoder" else TransformersBatches(policy)


def chosen_kind(
    policy: Policy, prompts: Sequence[tuple[int, ...]], tell: Callable[[str], None] = log.info
) -> BatchKind:
    """Return the faster kind if its log-probabilities after some prompts are those of transformers.

    ``tell`` is given a line of numbers about what was tried.

    Raises:
        OutOfMemory: with stage "sampling".
    """
    tolerance = _TOLERANCE.get(policy.model.dtype)
    if policy.decoder is None or tolerance is None:
        return "transformers"
    with out_of_memory_as("sampling"), policy.with_working_adapter():
        expected = _tried(TransformersBatches(policy), prompts)
        try:
            found = _tried(DecoderBatches(policy), prompts)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            if is_out_of_memory(error):
                raise
            tell(f"sampling batches=decoder refused error={type(error).__name__}")
            return "transformers"
    gap = float((found - expected).abs().max())
    tell(f"sampling batches=decoder gap={gap:.2e}")
    return "decoder" if gap <= tolerance else "transformers"


def _tried(batches: Batches, prompts: Sequence[tuple[int, ...]]) -> Tensor:
    """Return the log-probabilities of every next token after the prompts and after some tokens more."""
    with batches.batch(prompts[0][: common_prefix(prompts)], len(prompts)) as batch:
        batch.admit(batch.prefill(prompts), range(len(prompts)))
        steps = [batch.logits.log_softmax(dim=-1)]
        for step in range(_STEPS_TRIED):
            batch.advance(torch.tensor([prompt[step % len(prompt)] for prompt in prompts], device=batch.logits.device))
            steps.append(batch.logits.log_softmax(dim=-1))
    return torch.cat(steps)
