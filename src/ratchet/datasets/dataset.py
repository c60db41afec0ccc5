"""What every source of rows delivers, and what surrounds a prompt on its way to the model.

Training, validation and held-out scoring all go through ``conversation``, so that they ask in the same way. A pattern
of the user's own cannot be put into words here; answers are then asked for without any form.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.config import FormatKind, PromptSettings, WorkedExample
from ratchet.errors import InvalidSetting
from ratchet.run.records import Message, Prompt


@dataclass(frozen=True)
class Dataset:
    """The prompts of one run. ``validation`` is already the fixed sample; ``heldout`` may be empty.

    ``instruction`` is the source's default system prompt and ``examples`` its own few-shot examples, at most 16.
    ``notes`` are whole sentences worth telling the user; they hold numbers, never a row's content.
    """

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    instruction: str
    examples: tuple[WorkedExample, ...]
    notes: tuple[str, ...]


def tags_request(what: str) -> str:
    """Ask for reasoning and ``what`` (such as "the final number") in their tags."""
    return (
        f"Reason step by step inside <think></think>, then give only {what} inside <answer></answer>, "
        "with nothing after it."
    )


def form_request(format_kind: FormatKind) -> str:
    """Ask for the form alone, for rows that say themselves what is to be done; nothing where no form is looked for."""
    if format_kind == "tags":
        return tags_request("the final answer")
    return "Give the final answer inside \\boxed{}." if format_kind == "boxed" else ""


def in_form(steps: str, final: str, format_kind: FormatKind) -> str:
    """Write a worked solution the way the form asks for. ``steps`` already ends with the final answer."""
    if format_kind == "tags":
        return f"<think>{steps}</think>\n<answer>{final}</answer>"
    if format_kind == "boxed":
        return f"{steps}\n\\boxed{{{final}}}"
    return steps


def conversation(prompt: Prompt, *, system_prompt: str, examples: Sequence[WorkedExample]) -> tuple[Message, ...]:
    """Put together what the model is given: system prompt, examples as earlier turns, then the row's own messages.

    A system message of the row follows ours after a blank line. Where both are empty there is no system message.
    """
    own, rest = "", prompt.messages
    if rest[0]["role"] == "system":
        own, rest = rest[0]["content"], rest[1:]
    messages: list[Message] = []
    if system := "\n\n".join(part for part in (system_prompt, own) if part):
        messages.append({"role": "system", "content": system})
    for example in examples:
        messages.append({"role": "user", "content": example.user})
        messages.append({"role": "assistant", "content": example.assistant})
    return (*messages, *rest)


def offered_tools(prompt: Prompt) -> list[Any] | None:
    """A row's tools as chat templates are written for them, ``{"type": "function", "function": {...}}``.

    None where the row has no list of them; whether a verifier can use them is checked by the verifier.
    """
    tools = prompt.extras.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            return None
    if not isinstance(tools, list) or not tools:
        return None
    is_bare = [isinstance(tool, dict) and "function" not in tool and "name" in tool for tool in tools]
    return [{"type": "function", "function": tool} if bare else tool for tool, bare in zip(tools, is_bare, strict=True)]


def few_shot_examples(settings: PromptSettings, dataset: Dataset) -> tuple[WorkedExample, ...]:
    """The examples to show: the user's own, or the first ones of the source.

    Raises:
        InvalidSetting: more were asked for than the source brings.
    """
    asked = settings.few_shot_examples
    if isinstance(asked, tuple):
        return asked
    available = len(dataset.examples)
    if asked > available:
        brings = f"brings only {available}. Choose {available} or less" if available else "brings none. Choose 0"
        raise InvalidSetting(
            f"Few-shot examples is {asked}, but this source of data {brings}, or list your own.",
            field="prompt.few_shot_examples",
        )
    return dataset.examples[:asked]
