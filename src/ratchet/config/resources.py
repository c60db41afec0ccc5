"""Sampler, starting adapter, LoRA, optimizer and limits: settings of every objective. And those of a loop of runs."""

from typing import Any, Literal, Self

from pydantic import model_validator

from ratchet.config.base import Settings, setting

Quantization = Literal["none", "8bit", "4bit"]


class SamplerSettings(Settings):
    """Which engine generates the answers, and how its mismatch with the trainer is corrected."""

    backend: Literal["auto", "in_process", "vllm"] = setting(
        "auto",
        label="Generation backend",
        help="in_process: Ratchet's own sampler. vllm: a vLLM engine on the same device. auto: vllm if installed, "
        "there is a CUDA GPU and its memory share fits, else in_process.",
    )
    gpu_memory_share: float = setting(
        0.3,
        span=(0.1, 0.95),
        label="Memory share of vLLM",
        help="Share of GPU memory for vLLM's copy of the model and its cache while it samples.",
    )
    importance_cap: float = setting(
        2.0,
        span=(1, 100),
        label="Importance cap",
        help="With vLLM, each token's loss is weighted by the ratio of the trainer's probability to vLLM's, at most by "
        "this number (truncated importance sampling).",
    )


class StartSettings(Settings):
    """The adapter that a run continues from; its rank, alpha and targets become the run's. None: a new adapter."""

    adapter: str | None = setting(
        None,
        min_length=1,
        label="Start from",
        help="The id of a run, or a folder with a PEFT adapter, of the same base model and revision; training "
        "continues from its adapter. Empty: a new adapter.",
    )
    run: str = setting("", label="Source run", help="The run that trained the adapter; filled in.", typed=False)
    sha256: str = setting(
        "",
        pattern="^([0-9a-f]{64})?$",
        label="Adapter checksum",
        help="SHA-256 of the adapter's weights; filled in when the run is saved, checked before they load.",
        typed=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        # start_from: RUN says all there is to say.
        return {"adapter": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.adapter is None and (self.run or self.sha256):
            raise ValueError(
                "Start from names no adapter. Set start_from to a run or a folder; Ratchet fills in start_from.run and "
                "start_from.sha256."
            )
        return self


class LoraSettings(Settings):
    """Size of the adapter. Every linear layer of the trunk gets one; there is no dropout.

    A run that starts from an adapter takes its rank and alpha.
    """

    rank: int = setting(8, span=(1, 256), label="LoRA rank", help="Rank of the adapter: more can store more.")
    alpha: int = setting(16, span=(1, 512), label="LoRA alpha", help="Scales the adapter by alpha / rank.")


class OptimizerSettings(Settings):
    """AdamW. The learning rate is constant in RL; see the objective's own section for others."""

    beta1: float = setting(0.9, ge=0, lt=1, label="Beta 1", help="Decay of the gradient's running mean.")
    beta2: float = setting(0.999, ge=0, lt=1, label="Beta 2", help="Decay of the squared gradient's running mean.")
    weight_decay: float = setting(0.0, span=(0, 1), label="Weight decay", help="Decoupled weight decay of the adapter.")
    gradient_norm_limit: float = setting(
        1.0, gt=0, le=1000, label="Gradient norm limit", help="Clips the gradient to this norm."
    )


class LimitSettings(Settings):
    """When a run ends before its last round, and what an hour of it costs."""

    time_hours: float | None = setting(
        2.0,
        gt=0,
        le=8760,
        label="Time limit",
        unit="hours",
        help="The run ends a little before this, with its best adapter. Model loading counts; waiting in the queue "
        "does not. none: no limit.",
    )
    price_per_hour: float | None = setting(
        None,
        gt=0,
        le=1_000_000,
        label="Price per hour",
        help="What an hour of this machine costs, in the currency below. Without it no cost is shown.",
    )
    currency: str = setting(
        "USD",
        pattern=r"^[^\s\d]{1,8}$",
        label="Currency",
        help="Currency of prices and costs, such as USD or EUR; nothing is converted.",
    )
    cost_cap: float | None = setting(
        None,
        gt=0,
        le=100_000_000,
        label="Cost cap",
        help="The run ends a little before it costs this much, with its best adapter. Needs Price per hour.",
    )
    target_percent: float | None = setting(
        None,
        gt=0,
        le=100,
        label="Target",
        unit="percent",
        help="The run ends as soon as validation accuracy reaches this. Empty: it runs to its last round.",
    )
    stall_minutes: float = setting(
        30.0,
        gt=0,
        le=10_080,
        label="Stall limit",
        unit="minutes",
        help="A run without any progress for this long ends with its best adapter.",
    )
    trial_minutes: float = setting(
        15.0,
        span=(1, 240),
        label="Trial minutes",
        unit="minutes",
        help="How long a trial may take; at most Time limit.",
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.cost_cap is not None and self.price_per_hour is None:
            raise ValueError(
                f"Cost cap is {self.cost_cap:g}, but the cost is not known without Price per hour. Set it, or set a "
                "Time limit instead."
            )
        return self


class KeepSettings(Settings):
    """How many samples stay on disk. Records of rounds, checkpoint and adapter always do."""

    rollout_rounds: int | None = setting(
        None,
        span=(1, 1000),
        label="Rollouts kept, rounds",
        unit="rounds",
        help="Samples of this many last rounds stay on disk. Empty: of all rounds.",
    )
    rollout_megabytes: float | None = setting(
        None,
        gt=0,
        le=10_000_000,
        label="Rollouts kept, size",
        unit="MB",
        help="The oldest samples are removed beyond this size, but never those of the last round. Empty: no limit.",
    )


class LoopSettings(Settings):
    """Rounds of training and evaluation, until a target, a plateau or the last round."""

    name: str = setting("", max_length=100, label="Name", help="Name of the loop.")
    score_column: str = setting(
        "accuracy",
        min_length=1,
        max_length=100,
        label="Score column",
        help="The benchmark's score by which rounds are compared.",
    )
    target_percent: float | None = setting(
        None,
        gt=0,
        le=100,
        label="Loop target",
        unit="percent",
        help="The loop ends as soon as a round scores this on the selection half of the benchmark. Empty: none.",
    )
    max_rounds: int = setting(
        8,
        span=(1, 100),
        label="Max rounds",
        unit="rounds",
        help="Runs that the loop trains at most; the start is not counted.",
    )
    patience: int = setting(
        2,
        span=(1, 100),
        label="Patience",
        unit="rounds",
        help="The loop ends after this many scored rounds in a row without a sign of gain over those before. With 1, "
        "noise alone ends about a third of the loops that gain 5 points per round.",
    )
    reclaims_storage: bool = setting(
        True,
        label="Reclaim storage",
        help="Removes merged exports of rounds that are not the best. Adapters are always kept.",
    )
    seed: int = setting(
        0,
        span=(0, 2**31 - 1),
        label="Loop seed",
        help="Decides how the benchmark is split into the selection half and the held-out half.",
    )
