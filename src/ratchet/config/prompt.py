"""What surrounds the text of a row on its way to the model."""

from typing import Annotated

from pydantic import Field

from ratchet.config.base import Settings, setting


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
