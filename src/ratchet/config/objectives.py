"""What a run learns from: its own rewarded answers (RL), demonstrations (SFT), preferences (DPO); presets of RL."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from ratchet.config.base import Settings, setting

Objective = Literal["rl", "sft", "dpo"]

# Learning rates that go with each objective where the user sets none. rl: twenty steps at the 5e-6 that is usual for
# full fine-tuning move a LoRA adapter nowhere (measured); sft and dpo: what TRL's documentation uses for LoRA and DPO.
RATE_DEFAULTS: dict[Objective, float] = {"rl": 1e-4, "sft": 2e-4, "dpo": 5e-6}

Loss = Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo"]


class LossDefaults(NamedTuple):
    """What goes with a loss where the user sets nothing, and what the loss is in a few words."""

    clip_low: float
    clip_high: float
    dynamic_sampling: Literal["off", "refill"] = "off"
    meaning: str = ""


# A loss is its row here and its function and row in engine/losses.py. Clip bounds: grpo and dr_grpo take PPO's 0.2 on
# both sides (Schulman et al. 2017, arXiv:1707.06347, section 6.1), as in TRL. dapo: clip-higher 0.28 (Yu et al. 2025,
# arXiv:2503.14476, section 4.1). gspo: 3e-4 and 4e-4 on the sequence ratio (Zheng et al. 2025, arXiv:2507.18071,
# section 5.1). cispo bounds the weight from above alone: 5 is what TRL recommends after Khatri et al. 2025,
# arXiv:2510.13786 (MiniMax 2025, arXiv:2506.13585, leave the number open); its low bound is not used.
LOSS_DEFAULTS: dict[Loss, LossDefaults] = {
    "grpo": LossDefaults(0.2, 0.2),
    "dapo": LossDefaults(0.2, 0.28, "refill", "averages over all tokens, clips higher, refills"),
    "dr_grpo": LossDefaults(0.2, 0.2, meaning="no division by deviation or length"),
    "gspo": LossDefaults(3e-4, 4e-4, meaning="one ratio per answer; for mixture-of-experts models"),
    "cispo": LossDefaults(0.2, 5.0, meaning="bounded weights, no clipping"),
}


class RlSettings(Settings):
    """How a round samples and learns."""

    rounds: Annotated[int, Field(ge=1, le=1000)] | Literal["full"] = setting(
        20,
        label="Rounds",
        unit="rounds",
        help="How often to sample, grade, update and validate. full: as many rounds as the epochs need.",
    )
    max_steps: int | None = setting(
        None,
        span=(-1, 10_000_000),
        label="Optimizer steps",
        unit="steps",
        help="In place of Rounds: as many rounds as it takes for this many optimizer steps if every group has a "
        "learning signal; -1 means full. Empty: Rounds decides.",
    )
    epochs: int = setting(
        1, span=(1, 100), label="Epochs", help="With rounds = full: how often each training prompt is used."
    )
    prompts_per_round: int = setting(
        64,
        span=(1, 1024),
        label="Prompts per round",
        unit="prompts",
        help="Distinct training prompts in each round. If the data has fewer, a round takes each once.",
    )
    answers_per_prompt: int = setting(
        8,
        span=(2, 32),
        label="Answers per prompt",
        unit="answers",
        help="Answers sampled for each prompt and compared with one another (the group size).",
    )
    max_answer_tokens: int = setting(
        512,
        span=(16, 32_768),
        label="Max answer tokens",
        unit="tokens",
        help="An answer that has not stopped by then is cut off and scores 0.",
    )
    batch_size: int | None = setting(
        None,
        ge=1,
        label="Batch size",
        unit="answers",
        help="Answers per optimizer step, a multiple of Answers per prompt. Empty takes the whole round in one step.",
    )
    loss: Loss = setting(
        "grpo",
        label="Loss",
        help="; ".join(name + (f" ({row.meaning})" if row.meaning else "") for name, row in LOSS_DEFAULTS.items())
        + ".",
    )
    clip_low: float | None = setting(
        None,
        span=(0, 10),
        label="Clip low",
        help="How far below 1 the ratio is clipped (not used by cispo). Left out: the loss's usual value.",
    )
    clip_high: float | None = setting(
        None,
        span=(0, 10),
        label="Clip high",
        help="How far above 1 the ratio is clipped; for cispo the largest weight. Left out: the loss's usual value.",
    )
    beta: float = setting(
        0.0, span=(0, 1), label="KL coefficient", help="Weight of the KL penalty towards the starting policy."
    )
    dynamic_sampling: Literal["off", "refill"] | None = setting(
        None,
        label="Dynamic sampling",
        help="refill draws more prompts, up to three draws in all, until enough groups have a signal. Left out: "
        "refill for dapo, else off.",
    )
    temperature: float = setting(
        1.0,
        span=(0.01, 5),
        label="Temperature",
        help="Above 1 flattens the distribution that is sampled from, below 1 sharpens it.",
    )
    top_p: float = setting(
        1.0, gt=0, le=1, label="Top-p", help="Samples from the most likely tokens that add up to this probability."
    )
    top_k: int = setting(0, span=(0, 1_000_000), label="Top-k", help="Samples from the k most likely tokens; 0 is off.")
    validation_prompts: int = setting(
        128,
        span=(1, 1024),
        label="Validation sample",
        unit="prompts",
        help="Prompts scored greedily after each round, always the same ones; all of them if the data has fewer.",
    )
    no_signal_rounds: int = setting(
        3,
        span=(1, 1000),
        label="No-signal limit",
        unit="rounds",
        help="The run fails if this many rounds pass and in none of them answers to one prompt scored differently.",
    )
    micro_batch_tokens: int | None = setting(
        None,
        span=(64, 1_048_576),
        label="Micro batch",
        unit="tokens",
        help="Tokens per forward and backward pass. Affects memory and speed, not the result. Empty: fitted to memory.",
    )
    sampling_tokens: int | None = setting(
        None,
        span=(256, 16_777_216),
        label="Sampling budget",
        unit="tokens",
        help="Prompt and answer tokens in the cache at a time while sampling. Empty: fitted to memory.",
    )
    gradient_checkpointing: Literal["auto", "on", "off"] = setting(
        "auto",
        label="Gradient checkpointing",
        help="Recomputes activations in the backward pass: less memory, about a third more time, the same result. "
        "auto: only if the longest prompt and answer would not fit otherwise.",
    )

    @model_serializer(mode="wrap")
    def _without_unused_rounds(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Read back, a default of Rounds beside Optimizer steps would count as given.
        fields: dict[str, Any] = serialize(self)
        return fields if self.max_steps is None else {name: x for name, x in fields.items() if name != "rounds"}

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.max_steps == 0:
            raise ValueError("Optimizer steps is 0; it must be at least 1, or -1 for as many as the epochs need.")
        if self.max_steps is not None and "rounds" in self.model_fields_set:
            raise ValueError(
                f"Rounds is {self.rounds} and Optimizer steps is {self.max_steps}: each of them says how long the run "
                "is. Leave one of them out."
            )
        return self

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        batch, group = self.batch_size, self.answers_per_prompt
        round_size = self.prompts_per_round * group
        if batch is not None and batch > round_size:
            raise ValueError(
                f"Batch size is {batch}, but a round has {self.prompts_per_round} prompts x {group} answers = "
                f"{round_size}. Choose {round_size}, or raise Prompts per round."
            )
        if batch is not None and batch % group:
            below, above = batch - batch % group, batch - batch % group + group
            valid = f"{below} or {above}" if below else f"{above}"
            raise ValueError(
                f"Batch size is {batch}, which is not a multiple of Answers per prompt ({group}). Choose {valid}."
            )
        return self


_EPOCHS_HELP = "How often each training row is used."
_BATCH_HELP = "Rows per optimizer step."
_SCHEDULE_HELP = "Learning rate schedule: linear or cosine decay to 0, or constant."
_EVALUATIONS_HELP = (
    "How often the validation sample is scored, evenly over the run. Each time ends a round: the best adapter so far "
    "is kept, and an interrupted run resumes from there."
)


class SftSettings(Settings):
    """Learning from demonstrations: the last assistant message of each row is what the model should have written."""

    epochs: int = setting(3, span=(1, 100), label="Epochs (SFT)", unit="epochs", help=_EPOCHS_HELP)
    batch_size: int = setting(16, span=(1, 4096), label="Batch size (SFT)", unit="rows", help=_BATCH_HELP)
    schedule: Literal["linear", "cosine", "constant"] = setting("linear", label="Schedule (SFT)", help=_SCHEDULE_HELP)
    warmup_share: float = setting(
        0.0, span=(0, 0.5), label="Warm-up (SFT)", help="Share of the steps over which the learning rate rises from 0."
    )
    evaluations: int = setting(6, span=(1, 1000), label="Evaluations (SFT)", unit="rounds", help=_EVALUATIONS_HELP)


class DpoSettings(Settings):
    """Learning from preferences (Rafailov et al. 2023, arXiv:2305.18290): the chosen answer over the rejected one."""

    beta: float = setting(
        0.1,
        gt=0,
        le=10,
        label="Beta (DPO)",
        help="Strength of the KL penalty towards the starting policy: less lets the policy move further.",
    )
    epochs: int = setting(1, span=(1, 100), label="Epochs (DPO)", unit="epochs", help=_EPOCHS_HELP)
    batch_size: int = setting(16, span=(1, 4096), label="Batch size (DPO)", unit="pairs", help=_BATCH_HELP)
    schedule: Literal["linear", "cosine", "constant"] = setting("linear", label="Schedule (DPO)", help=_SCHEDULE_HELP)
    warmup_share: float = setting(
        0.0, span=(0, 0.5), label="Warm-up (DPO)", help="Share of the steps over which the learning rate rises from 0."
    )
    evaluations: int = setting(4, span=(1, 1000), label="Evaluations (DPO)", unit="rounds", help=_EVALUATIONS_HELP)


# Settings that go together under a name: those of two hosted products. What is given besides wins over a preset; a
# preset wins over the defaults.
PresetName = Literal["hosted_steps", "hosted_rounds"]


class Preset(NamedTuple):
    """What a preset sets: some of ``rl``, and the learning rate."""

    rl: dict[str, Any]
    learning_rate: float


PRESETS: dict[str, Preset] = {
    "hosted_steps": Preset(
        {"prompts_per_round": 1, "answers_per_prompt": 8, "max_answer_tokens": 256, "max_steps": 100}, 1e-6
    ),
    "hosted_rounds": Preset(
        {"rounds": 20, "prompts_per_round": 64, "answers_per_prompt": 8, "max_answer_tokens": 512}, 5e-6
    ),
}
# Two ways to say how long a run is: whoever gives one of them has given both.
_LENGTH = {"rounds", "max_steps"}


def with_preset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the preset that settings name, if any, under what they give."""
    named, rl = settings.get("preset"), settings.get("rl", {})
    preset = PRESETS.get(named) if isinstance(named, str) else None
    given = {name: getattr(rl, name) for name in rl.model_fields_set} if isinstance(rl, RlSettings) else rl
    if preset is None or not isinstance(given, Mapping):
        return dict(settings)
    is_length_given = "rounds" in given or given.get("max_steps") is not None
    laid = {name: value for name, value in preset.rl.items() if not (is_length_given and name in _LENGTH)}
    rate = settings.get("learning_rate")
    return {
        **settings,
        "rl": {**laid, **given},
        "learning_rate": preset.learning_rate if rate is None else rate,
    }
