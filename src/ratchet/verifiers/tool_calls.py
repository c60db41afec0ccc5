r"""Calls of tools as answers write them, and the tools that a row offers. Text and data in, calls and tools out.

Read are ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Hermes, Qwen), several for several calls, with
any text around; or the whole text as one JSON document, one Markdown code fence allowed: such an object (Llama writes
``parameters`` for ``arguments``), the form of the OpenAI API ``{"type": "function", "function": {"name": ...,
"arguments": ...}}``, whose arguments may be JSON text, ``{"tool_calls": [...]}``, or a list of these. Whether a call
is the expected one is not decided here.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ratchet.verifiers.json_schema import JsonSchema
from ratchet.verifiers.json_text import BadSchema, NotJson, read_json, read_json_answer

_MAX_CALLS = 128
_TAG = re.compile(r"</?tool_call>")
# The API's word: a tool without parameters takes none.
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "additionalProperties": False}


class NotCalls(ValueError):
    """A text holds no call, or one that cannot be read."""


class BadTools(ValueError):
    """A row's tools cannot be used. The text completes "the tools ..." and quotes nothing."""


class CalledTool(NamedTuple):
    """One call: the name of the tool and its arguments as ``read_json`` returns them."""

    name: str
    arguments: dict[str, Any]


Tools = Mapping[str, JsonSchema]


def read_calls(text: str) -> list[CalledTool]:
    """The calls of a text in order, at least one.

    Raises:
        NotCalls: There is none, or not all of what looks like one can be read.
    """
    try:
        calls = _tagged(text) if _TAG.search(text) else _calls(read_json_answer(text))
    except NotJson as error:
        raise NotCalls(str(error)) from None
    if not 1 <= len(calls) <= _MAX_CALLS:
        raise NotCalls(f"{len(calls)} calls: 1 to {_MAX_CALLS} can be read")
    return calls


def read_tools(tools: Any) -> Tools:
    """The schema of the arguments by the name of the tool.

    Args:
        tools: A list as the OpenAI API takes it, of ``{"type": "function", "function": {name, parameters}}`` or of
            the inner objects alone; or the JSON text of one.

    Raises:
        BadTools: It is none.
    """
    try:
        return _tools(tools if isinstance(tools, str) else json.dumps(tools))
    except (TypeError, RecursionError) as error:
        raise BadTools("are not JSON") from error


@lru_cache(maxsize=512)
def _tools(text: str) -> Tools:
    """Read tools. Cached, because rows share theirs."""
    try:
        listed = read_json(text)
    except NotJson as error:
        raise BadTools(f"are not usable JSON ({error})") from None
    if not isinstance(listed, list) or not listed:
        raise BadTools("are not a list with at least one tool")
    tools: dict[str, JsonSchema] = {}
    for number, entry in enumerate(listed, start=1):
        function = entry.get("function", entry) if isinstance(entry, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise BadTools(f"have no name in entry {number}")
        if name in tools:
            raise BadTools(f"repeat a name in entry {number}")
        try:
            tools[name] = _schema(function.get("parameters"))
        except BadSchema as error:
            raise BadTools(f"have parameters in entry {number} whose schema {error}") from None
    return tools


def _schema(parameters: Any) -> JsonSchema:
    """The schema of a tool's arguments. Which draft it names does not matter: it is read as 2020-12."""
    if parameters is None:
        return JsonSchema(dict(_NO_PARAMETERS))
    if not isinstance(parameters, dict):
        raise BadSchema("is not a JSON object")
    return JsonSchema({key: value for key, value in parameters.items() if key != "$schema"})


def _tagged(text: str) -> list[CalledTool]:
    """The calls between tags; text around them does not count."""
    calls, opened = [], None
    for tag in _TAG.finditer(text):
        is_opening = tag.group() == "<tool_call>"
        if is_opening == (opened is not None):
            raise NotCalls("a tag within or without another")
        if opened is not None:
            calls.append(_call(read_json(text[opened : tag.start()])))
        opened = tag.end() if is_opening else None
    if opened is not None:
        raise NotCalls("a tag that is not closed")
    return calls


def _calls(document: Any) -> list[CalledTool]:
    """The calls of a whole document."""
    if isinstance(document, dict) and "tool_calls" in document:
        if not isinstance(document["tool_calls"], list) or "name" in document or "function" in document:
            raise NotCalls("tool_calls is no list, or not alone")
        document = document["tool_calls"]
    return [_call(entry) for entry in document] if isinstance(document, list) else [_call(document)]


def _call(entry: Any) -> CalledTool:
    """The call that one object stands for."""
    if not isinstance(entry, dict):
        raise NotCalls("not an object")
    is_wrapped = "function" in entry
    if is_wrapped and (entry.get("type", "function") != "function" or "name" in entry):
        raise NotCalls("not of the type function")
    function = entry["function"] if is_wrapped else entry
    if not isinstance(function, dict) or ("arguments" in function) == ("parameters" in function):
        raise NotCalls("no arguments, or twice")
    name, arguments = function.get("name"), function.get("arguments", function.get("parameters"))
    if is_wrapped and isinstance(arguments, str):
        arguments = read_json(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise NotCalls("no name, or arguments that are no object")
    return CalledTool(name, arguments)
