"""What a row's columns must hold: text, messages and a ground truth. Everything else is a ``BadRow``."""

import json
import math
from collections.abc import Mapping
from typing import Any

from ratchet.datasets.readers import BadRow
from ratchet.run.records import Message

# Kept for verifiers that read them; all other columns are dropped.
EXTRA_COLUMNS = ("id", "difficulty", "tests", "schema", "tools")
IMAGE_COLUMNS = ("image", "images")
MOST_GROUND_TRUTH_CHARACTERS = 32_000

# Columns that hold lists and objects, which a CSV file can only give as JSON text. Tests may be text of their own.
_STRUCTURED = ("tools", "schema", "tests")
_ROLES = ("system", "user", "assistant")


def text(row: Mapping[str, Any], column: str) -> str:
    """A column's text unchanged; it must be there and not blank."""
    value = _present(row, column)
    if not isinstance(value, str):
        raise BadRow(f"the column {column} is not text")
    return _checked(value, f"the column {column}")


def ground_truth(row: Mapping[str, Any], column: str) -> str:
    """A ground truth as text without space around it; a number is taken as it is written, objects as JSON.

    A row with tests needs none, since those say what is right; it is empty then, which verifiers that compare
    with one refuse.
    """
    if row.get(column) in (None, "") and row.get("tests") is not None:
        return ""
    value = _present(row, column)
    parts = value if isinstance(value, list) else [value]
    if value and all(isinstance(part, dict) for part in parts):  # such as a tool call, or several
        value = json_text(value, column)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadRow(f"the column {column} is neither text, a number nor an object")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRow(f"the column {column} is not a finite number")
    written = value if isinstance(value, str) else repr(value)
    if len(written) > MOST_GROUND_TRUTH_CHARACTERS:
        raise BadRow(f"the column {column} is longer than {MOST_GROUND_TRUTH_CHARACTERS:,} characters")
    return _checked(written, f"the column {column}").strip()


def messages(row: Mapping[str, Any], column: str) -> tuple[Message, ...]:
    """A conversation that ends with a user turn; plain text is a single user turn."""
    refuse_images(row)
    value = _present(row, column)
    if isinstance(value, str):
        return ({"role": "user", "content": _checked(value, f"the column {column}")},)
    if not isinstance(value, list):
        raise BadRow(f"the column {column} is neither text nor a list of messages")
    return conversation(value, column)


def exchange(row: Mapping[str, Any], column: str) -> tuple[tuple[Message, ...], str]:
    """A conversation that ends with an assistant turn as what comes before that turn, and its text."""
    refuse_images(row)
    value = _present(row, column)
    if isinstance(value, str):
        value = from_json(value, column)
    if not isinstance(value, list):
        raise BadRow(f"the column {column} is not a list of messages")
    if not value or not isinstance(value[-1], Mapping) or value[-1].get("role") != "assistant":
        raise BadRow(f"the column {column} does not end with an assistant message")
    return conversation(value[:-1], column, "before its last message"), _message(value[-1])["content"]


def reply(row: Mapping[str, Any], column: str, prompt: tuple[Message, ...]) -> str:
    """An assistant's text: plain, or the last message of a list that holds nothing but the prompt before it."""
    value = _present(row, column)
    if isinstance(value, str):
        return _checked(value, f"the column {column}")
    if not isinstance(value, list):
        raise BadRow(f"the column {column} is neither text nor a list of messages")
    turns = tuple(turn for turn in map(_message, value) if turn["content"])
    if not turns or turns[-1]["role"] != "assistant":
        raise BadRow(f"the column {column} does not end with an assistant message")
    if len(turns) > 1 and turns[:-1] != prompt:
        raise BadRow(f"the column {column} does not begin with the prompt")
    return turns[-1]["content"]


def refuse_images(row: Mapping[str, Any]) -> None:
    """Refuse a row with an image beside its text."""
    for image in IMAGE_COLUMNS:
        if row.get(image):
            raise BadRow("it holds an image, and only text can be trained on")


def conversation(value: list[Any], column: str, where: str = "") -> tuple[Message, ...]:
    """Messages that end with a user turn; an empty system message is left out."""
    turns = tuple(turn for turn in map(_message, value) if turn["content"])
    if not turns or turns[-1]["role"] != "user":
        raise BadRow(f"the column {column} does not end with a user message {where}".rstrip())
    if any(turn["role"] == "system" for turn in turns[1:]):
        raise BadRow("a system message is not the first message")
    return turns


def extras(row: Mapping[str, Any]) -> dict[str, Any]:
    """The optional columns that the row has; a tool or schema that is JSON text is read."""
    found = {column: row[column] for column in EXTRA_COLUMNS if row.get(column) is not None}
    for column in _STRUCTURED:
        value = found.get(column)
        if isinstance(value, str) and (column != "tests" or value.lstrip()[:1] in ("[", "{")):
            found[column] = from_json(value, column)
    return found


def json_text(value: Any, column: str) -> str:
    """A column's JSON text, as verifiers read it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise BadRow(f"the column {column} cannot be written as JSON") from None


def from_json(text: str, column: str) -> Any:
    """Parse a column's text as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadRow(f"the column {column} is text that is not valid JSON") from None


def _message(value: object) -> Message:
    """Check one message. Only a system message may be empty: some datasets have one in every row."""
    if not isinstance(value, Mapping):
        raise BadRow("a message is not an object with role and content")
    role, content = value.get("role"), value.get("content")
    if role not in _ROLES:
        raise BadRow("a message has a role other than system, user and assistant")
    if not isinstance(content, str):
        if isinstance(content, list) and any("image" in str(_kind(part)) for part in content):
            raise BadRow("a message holds an image, and only text can be trained on")
        raise BadRow("a message has content that is not text")
    if role == "system" and not content.strip():
        return {"role": "system", "content": ""}
    return {"role": role, "content": _checked(content, "a message")}


def _kind(part: object) -> object:
    return part.get("type") if isinstance(part, Mapping) else None


def _present(row: Mapping[str, Any], column: str) -> Any:
    if row.get(column) is None:
        raise BadRow(f"the column {column} is missing")
    return row[column]


def _checked(value: str, what: str) -> str:
    if not value.strip():
        raise BadRow(f"{what} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:  # an escaped half of a surrogate pair is valid JSON, but no tokenizer takes it
        raise BadRow(f"{what} holds half a Unicode character") from None
    return value
