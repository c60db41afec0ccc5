"""What settings are made of, and what the settings of every verifier kind have in common.

Here, in the lowest room that has settings; ``config`` builds a whole run's on it.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

Read = Literal["whole", "after_reasoning", "answer_tag"]
FormatKind = Literal["off", "tags", "boxed", "pattern"]

METRIC_LABEL = "Metric"
Name = Annotated[str, Field(min_length=1, max_length=1_000)]


def setting(
    default: Any,
    *,
    label: str,
    help: str,
    unit: str = "",
    typed: bool = True,
    span: tuple[float, float] | None = None,
    **limits: Any,
) -> Any:
    """Declare one setting. ``label`` and ``help`` are required so that no surface invents them.

    One that is not ``typed`` is filled in by Ratchet, or given in a file: there is no flag for it. ``span`` holds the
    least and the most that it may be; other limits are pydantic's.
    """
    if span is not None:
        limits["ge"], limits["le"] = span
    return Field(default, title=label, description=help, json_schema_extra={"unit": unit, "typed": typed}, **limits)


def kind_setting(kind: str, meaning: str) -> Any:
    """Declare the setting that names a verifier kind; help joins the meanings of all kinds."""
    return setting(kind, label="Verifier", help=f"{kind}: {meaning}")


class Settings(BaseModel):
    """Base of all settings: frozen, no unknown keys, no NaN, and ``true`` is not 1.

    A setting whose name Python needs for itself has an alias, which is its name everywhere but in Python attributes.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, serialize_by_alias=True, defer_build=True
    )


class KindSettings(Settings):
    """What every verifier has in common. Each kind adds ``kind`` as a Literal with its own name."""

    kind: str
    read: Read | None = setting(
        None,
        label="Extract answer from",
        help="Which part of an answer is checked: whole; after_reasoning, the text after the last </think>; or "
        "answer_tag, the text inside the only <answer> tag. An answer without that part is unparseable. Empty takes "
        "whole.",
    )

    @property
    def title(self) -> str:
        """How messages call it."""
        return f"Verifier {self.kind}"

    def resolved(self, *, read: Read, boxed_data: bool) -> Self:
        """Fill in what was left out.

        Args:
            read: Taken where these settings name no part of the answer.
            boxed_data: Whether the data's own instruction asks for a box.
        """
        return self.model_copy(update={"read": self.read or read})
