"""Sampler, adapter, optimizer and limits: what a run is made with, whatever it learns."""

from typing import Literal

from ratchet.config.base import Settings, setting

Quantization = Literal["none", "8bit", "4bit"]


class SamplerSettings(Settings):
    """Which engine writes the answers, and what is done about its differing from the trainer."""

    backend: Literal["auto", "in_process", "vllm"] = setting(
        "auto",
        label="Generation backend",
        help="Who writes the answers: in_process, Ratchet's own sampler; vllm, a vLLM engine on the same device; auto "
        "takes vllm where it is installed, a CUDA GPU is there and its memory share fits, else in_process.",
    )
    gpu_memory_share: float = setting(
        0.3,
        ge=0.1,
        le=0.95,
        label="Memory share of vLLM",
        help="Share of the GPU's memory that vLLM takes for its copy of the model and its cache while it samples.",
    )
    importance_cap: float = setting(
        2.0,
        ge=1,
        le=100,
        label="Importance cap",
        help="With vLLM each token's part of the loss is multiplied by how much likelier the trainer finds it than "
        "vLLM did, at most by this number.",
    )


class LoraSettings(Settings):
    """Size of the adapter. Every linear layer of the trunk gets one; there is no dropout."""

    rank: int = setting(8, ge=1, le=256, label="LoRA rank", help="Width of the adapter: more can store more.")
    alpha: int = setting(16, ge=1, le=512, label="LoRA alpha", help="Scales the adapter by alpha / rank.")


class OptimizerSettings(Settings):
    """AdamW at a constant learning rate."""

    beta1: float = setting(0.9, ge=0, lt=1, label="Beta 1", help="Decay of the gradient's running mean.")
    beta2: float = setting(0.999, ge=0, lt=1, label="Beta 2", help="Decay of the squared gradient's running mean.")
    weight_decay: float = setting(0.0, ge=0, le=1, label="Weight decay", help="Shrinks the adapter each step.")
    gradient_norm_limit: float = setting(
        1.0, gt=0, le=1000, label="Gradient norm limit", help="A longer gradient is scaled down to this norm."
    )


class LimitSettings(Settings):
    """When a run ends before its rounds are done."""

    time_hours: float | None = setting(
        2.0,
        gt=0,
        le=8760,
        label="Time limit",
        unit="hours",
        help="The run ends a little before this, with its best adapter. Model loading counts; queueing does not. "
        "none: no limit.",
    )
