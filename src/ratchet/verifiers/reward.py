"""The reward made of a grade and the shaping around it: the one formula of training, validation and ``ratchet grade``.

    score         what the verifier pays, 0..1: its correctness, except where a composite pays a mean of several parts
    length        a factor on the score, 1 without an overlong buffer; it shrinks towards the token limit
    format        1 when the asked-for form was kept, else 0; a failed answer cannot earn it
    reward        (score * length + weight * format) / (1 + weight), in 0..1; score * length without a bonus

Knows neither tokens nor models. An answer that was cut off never comes here: it earns nothing.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import model_validator

from ratchet.verifiers.base import Grade
from ratchet.verifiers.format import compile_pattern, earns_format
from ratchet.verifiers.settings import FormatKind, Settings, setting

if TYPE_CHECKING:
    import regex  # type: ignore[import-untyped]


class RewardSettings(Settings):
    """Shaping around correctness. The reward stays in 0..1; accuracy is correctness alone."""

    format_bonus: FormatKind | None = setting(
        None,
        label="Format bonus",
        help="A small extra reward for the requested format: tags (one <think>...</think>, then one "
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
        help="Correctness falls linearly to 0 over this many tokens before Max answer tokens. Empty: off.",
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


class Earned(NamedTuple):
    """What an answer earned: ``format`` is 1 or 0, ``reward`` lies in 0..1."""

    format: float
    reward: float


@dataclass(frozen=True)
class Shaping:
    """The shaping of a run. ``prefilled_think``: the prompt already ends in an opened ``<think>``."""

    settings: RewardSettings
    prefilled_think: bool = False

    @cached_property
    def _pattern(self) -> "regex.Pattern[str] | None":
        text = self.settings.format_pattern
        return None if text is None else compile_pattern(text)

    def earned(self, grade: Grade, text: str, length_factor: float = 1.0) -> Earned:
        """What an answer earns for its grade and its form.

        Raises:
            InvalidSetting: The format pattern is not a regular expression.
        """
        if grade.outcome == "failed":
            return Earned(0.0, 0.0)
        score = (grade.correctness if grade.score is None else grade.score) * length_factor
        kind = self.settings.format_bonus or "off"
        if kind == "off":
            return Earned(0.0, score)
        form = float(earns_format(text, kind, pattern=self._pattern, prefilled_think=self.prefilled_think))
        weight = self.settings.format_weight
        return Earned(form, (score + weight * form) / (1 + weight))


def length_factor(tokens: int, max_answer_tokens: int, buffer_tokens: int | None) -> float:
    """What an answer's length leaves of its score: 1 up to the buffer, then a line down to 0.

    The soft punishment of DAPO (Yu et al. 2025, arXiv:2503.14476, section 3.4, equation 13), as a factor, so that
    the reward stays in 0..1. Without a buffer it is 1.
    """
    if buffer_tokens is None:
        return 1.0
    excess = tokens - (max_answer_tokens - buffer_tokens)
    return 1.0 if excess <= 0 else max(0.0, 1 - excess / buffer_tokens)
