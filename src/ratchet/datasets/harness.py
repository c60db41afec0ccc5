"""What surrounds a prompt on its way to the model: the system prompt, the worked examples, and the tools it offers.

Training, validation and held-out scoring all go through ``conversation``, so that they ask in the same way.
"""

import json
from collections.abc import Sequence
from typing import Any

from ratchet.config import PromptSettings, WorkedExample
from ratchet.datasets.dataset import Dataset
from ratchet.errors import InvalidSetting
from ratchet.run.records import Message, Prompt


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
    """Return a row's tools as chat templates are written for them, ``{"type": "function", "function": {...}}``.

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


def worked_examples(settings: PromptSettings, dataset: Dataset) -> tuple[WorkedExample, ...]:
    """Return the examples to show: the user's own, or the first ones of the source.

    Raises:
        InvalidSetting: more were asked for than the source brings.
    """
    asked = settings.worked_examples
    if isinstance(asked, tuple):
        return asked
    available = len(dataset.examples)
    if asked > available:
        brings = f"brings only {available}. Choose {available} or less" if available else "brings none. Choose 0"
        raise InvalidSetting(
            f"Worked examples is {asked}, but this source of data {brings}, or list your own.",
            field="prompt.worked_examples",
        )
    return dataset.examples[:asked]
