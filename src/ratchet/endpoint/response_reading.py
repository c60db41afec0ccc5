"""Reading what an endpoint sends: a chat completion, a list of models. Whatever it sends, nothing here raises."""

import json
from dataclasses import dataclass, field
from typing import Any

from ratchet.endpoint.endpoint_requests import EndpointFailure
from ratchet.run.records import FinishReason

_MOST_TOKENS = 10**9  # more are no count: no database and no sum of costs would take them


@dataclass(frozen=True)
class Reading:
    """A chat completion as it was read; ``failure`` where it is none, or was withheld."""

    text: str = field(default="", repr=False)
    finish: FinishReason = "stop"
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    failure: EndpointFailure | None = None


def read_completion(content: bytes) -> Reading:
    """Read a chat completion with one choice.

    Content that is missing is an empty answer, and a refusal is its text. Reasoning that a server puts apart
    (``reasoning_content`` of vLLM, SGLang and DeepSeek, ``reasoning`` of OpenRouter and Ollama) goes before the answer
    in the tags that verifiers know; they stay open where the answer was cut off inside.
    """
    completion = _json(content)
    choices = completion.get("choices") if isinstance(completion, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return Reading(failure="unreadable")
    usage = completion["usage"] if isinstance(completion.get("usage"), dict) else {}
    tokens = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if choice.get("finish_reason") == "content_filter":
        return Reading("", "stop", *tokens, failure="filtered")
    finish: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
    return Reading(_text(message, finish), finish, *tokens)


def read_models(content: bytes) -> list[str] | None:
    """Names in a list of models, None if it is no such list."""
    listed = _json(content)
    rows = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(rows, list):
        return None
    return [row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _text(message: dict[str, Any], finish: FinishReason) -> str:
    content = _plain(message.get("content")) or _plain(message.get("refusal"))
    reasoning = _plain(message.get("reasoning_content")) or _plain(message.get("reasoning"))
    if not reasoning or "</think>" in content:
        return content
    if not content and finish == "length":
        return f"<think>{reasoning}"
    return f"<think>{reasoning}</think>\n{content}"


def _plain(content: Any) -> str:
    """A text; of a list of parts, the texts in it."""
    if isinstance(content, list):
        return "".join(_plain(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _count(tokens: Any) -> int | None:
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and 0 <= tokens <= _MOST_TOKENS else None
