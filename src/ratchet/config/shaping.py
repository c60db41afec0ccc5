"""Shaping around correctness."""

from typing import Literal, Self

from pydantic import model_validator

from ratchet.config.base import Settings, setting

FormatKind = Literal["off", "tags", "boxed", "pattern"]


class RewardSettings(Settings):
    """Shaping around correctness. The reward stays in 0..1; accuracy is correctness alone."""

    format_bonus: FormatKind | None = setting(
        None,
        label="Format bonus",
        help="A small extra reward for the asked-for form: tags (one <think>...</think>, then one "
        "<answer>...</answer>), boxed (one \\boxed{}), pattern, or off. Left out: tags for Math Pairs and final "
        "numbers, boxed for math, off for every other verifier.",
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
