"""Sampler, adapter, optimizer and limits: what a run is made with, whatever it learns."""

from typing import Literal, Self

from pydantic import model_validator

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
    """Size of the adapter. Every linear layer of the trunk gets one; there is no dropout.

    A run that starts from an adapter has that one's; what is left out here is not asked for.
    """

    rank: int = setting(8, ge=1, le=256, label="LoRA rank", help="Width of the adapter: more can store more.")
    alpha: int = setting(16, ge=1, le=512, label="LoRA alpha", help="Scales the adapter by alpha / rank.")


class OptimizerSettings(Settings):
    """AdamW. The learning rate is constant in RL; see the objective's own section for others."""

    beta1: float = setting(0.9, ge=0, lt=1, label="Beta 1", help="Decay of the gradient's running mean.")
    beta2: float = setting(0.999, ge=0, lt=1, label="Beta 2", help="Decay of the squared gradient's running mean.")
    weight_decay: float = setting(0.0, ge=0, le=1, label="Weight decay", help="Shrinks the adapter each step.")
    gradient_norm_limit: float = setting(
        1.0, gt=0, le=1000, label="Gradient norm limit", help="A longer gradient is scaled down to this norm."
    )


class LimitSettings(Settings):
    """When a run ends before its rounds are done, and what an hour of it costs."""

    time_hours: float | None = setting(
        2.0,
        gt=0,
        le=8760,
        label="Time limit",
        unit="hours",
        help="The run ends a little before this, with its best adapter. Model loading counts; queueing does not. "
        "none: no limit.",
    )
    price_per_hour: float | None = setting(
        None,
        gt=0,
        le=1_000_000,
        label="Price per hour",
        help="What an hour of this machine costs, in the currency below. Without it no cost is shown anywhere.",
    )
    currency: str = setting(
        "USD",
        pattern=r"^[^\s\d]{1,8}$",
        label="Currency",
        help="What prices and costs are called, such as USD or EUR; nothing is converted.",
    )
    cost_cap: float | None = setting(
        None,
        gt=0,
        le=100_000_000,
        label="Cost cap",
        help="The run ends a little before it has cost this much, with its best adapter. Needs Price per hour.",
    )
    target_percent: float | None = setting(
        None,
        gt=0,
        le=100,
        label="Target",
        unit="percent",
        help="The run ends as soon as validation accuracy reaches this. Empty: it goes on to its last round.",
    )
    stall_minutes: float = setting(
        30.0,
        gt=0,
        le=10_080,
        label="Stall limit",
        unit="minutes",
        help="A run that makes no progress at all for so long is ended with its best adapter.",
    )
    trial_minutes: float = setting(
        15.0,
        ge=1,
        le=240,
        label="Trial minutes",
        unit="minutes",
        help="How long a trial may take; the lower of this and Time limit counts.",
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.cost_cap is not None and self.price_per_hour is None:
            raise ValueError(
                f"Cost cap is {self.cost_cap:g}, but no Price per hour is given, so the cost is not known. Give it, or "
                "set a Time limit instead."
            )
        return self


class KeepSettings(Settings):
    """How many samples stay on disk. Records of rounds, checkpoint and adapter are kept in any case."""

    rollout_rounds: int | None = setting(
        None,
        ge=1,
        le=1000,
        label="Rollouts kept, rounds",
        unit="rounds",
        help="Samples of the last so many rounds stay on disk; empty keeps those of all rounds.",
    )
    rollout_megabytes: float | None = setting(
        None,
        gt=0,
        le=10_000_000,
        label="Rollouts kept, size",
        unit="MB",
        help="The oldest samples are removed when all of them take more than this; empty: no limit. Those of the last "
        "round always stay.",
    )
