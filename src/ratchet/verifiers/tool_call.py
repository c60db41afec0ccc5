"""Verifier: does the answer call the expected tools, with the expected arguments?

The tools are the row's own (``extras["tools"]``), the expected call or calls its ground truth, as JSON in any form
that answers may take; ``tool_calls`` lists the forms. A text without a call, or with one that cannot be read, is
unparseable.

    call_valid   every call names a listed tool, and its arguments follow the tool's schema
    name_match   the same tools as expected, each as often; the arguments do not count
    call_match   the same calls as expected, each as often, in any order; arguments are equal as JSON Schema has it,
                 and follow the tool's schema

A call of a tool that the row does not list scores 0 in every metric.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ratchet.verifiers.base import Building, Example, Grade, Kind, KnownAnswers, PartVerifier, Prompt
from ratchet.verifiers.json_schema import all_follow
from ratchet.verifiers.json_text import OutOfTime, canonical
from ratchet.verifiers.known_texts import altered, with_keys_reversed
from ratchet.verifiers.settings import METRIC_LABEL, KindSettings, kind_setting, setting
from ratchet.verifiers.tool_calls import BadTools, CalledTool, NotCalls, Tools, read_calls, read_tools

_NOTHING = {"call_valid": 0.0, "name_match": 0.0, "call_match": 0.0}
_UNPARSEABLE = Grade(0.0, "unparseable", parts=_NOTHING)


class ToolCallVerifier(KindSettings):
    """The answer must call the expected tools of its row with the expected arguments."""

    kind: Literal["tool_call"] = kind_setting(
        "tool_call", "the answer must call the expected tools of its row with the expected arguments."
    )
    metric: Literal["call_match", "name_match", "call_valid"] = setting(
        "call_match",
        label=METRIC_LABEL,
        help="tool_call trains on call_match (usual), name_match or call_valid; the others are reported.",
    )


class ToolCall(PartVerifier):
    """Grades by whole calls, by names, or by the tools' schemas alone."""

    def __init__(self, settings: ToolCallVerifier, building: Building) -> None:
        super().__init__(settings, building)
        self._metric = settings.metric

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse expected calls that cannot be read, or that the row's own tools do not allow; also unusable tools."""
        if prompt.extras.get("tools") in (None, "", []):
            return "has no tools: the row needs a tools column, a list in the OpenAI API's form"
        try:
            tools, expected = read_tools(prompt.extras["tools"]), read_calls(prompt.ground_truth)
        except BadTools as error:
            return f"has tools that {error}"
        except NotCalls:
            return "is not a call: write {name, arguments}, or a list of such objects, as JSON"
        if any(call.name not in tools for call in expected):
            return "calls a tool that its row does not list"
        try:
            return None if _are_valid(expected, tools) else "has arguments that do not follow the tool's schema"
        except (OutOfTime, RecursionError):
            return "cannot be checked against the tool's schema within a second"

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Compare the answer's calls with the expected ones."""
        part = self.part(text)
        if part is None:
            return _UNPARSEABLE
        try:
            calls = read_calls(part)
        except NotCalls:
            return _UNPARSEABLE
        try:
            parts = _compared(calls, read_calls(prompt.ground_truth), read_tools(prompt.extras.get("tools")))
        except OutOfTime:
            return Grade(0.0, "failed", failure="time")
        except (NotCalls, BadTools, RecursionError):  # a row that check_ground_truth refuses
            return Grade(0.0, "failed", failure="execution")
        return Grade(parts[self._metric], "graded", parts)


def _compared(calls: Sequence[CalledTool], expected: Sequence[CalledTool], tools: Tools) -> dict[str, float]:
    """The metrics of an answer's calls."""
    if any(call.name not in tools for call in calls):
        return _NOTHING
    is_valid = _are_valid(calls, tools)
    same_names = Counter(call.name for call in calls) == Counter(call.name for call in expected)
    same_calls = Counter(map(_key, calls)) == Counter(map(_key, expected))
    return {
        "call_valid": float(is_valid),
        "name_match": float(same_names),
        "call_match": float(is_valid and same_calls),
    }


def _are_valid(calls: Sequence[CalledTool], tools: Tools) -> bool:
    return all_follow((call.arguments, tools[call.name]) for call in calls)


def _key(call: CalledTool) -> tuple[str, object]:
    return call.name, canonical(call.arguments)


def _known_answers(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    value = _loaded(prompt.ground_truth)
    if value is None or not isinstance(value.get("name"), str) or not isinstance(value.get("arguments"), dict):
        return KnownAnswers()
    right = json.dumps(value, ensure_ascii=False)
    wrong = json.dumps({**value, "name": value["name"] + "_not"}, ensure_ascii=False)
    spoilt = {**value, "arguments": altered(value["arguments"])}
    tools = [_tool_name(tool) for tool in prompt.extras.get("tools") or ()]
    every = "\n".join(json.dumps({**value, "name": name}, ensure_ascii=False) for name in tools if name)
    asks_for_arguments = getattr(settings, "metric", None) not in ("name_match", "call_valid")
    mistakes = {}
    if value["arguments"] and asks_for_arguments:
        mistakes["wrong_arguments"] = json.dumps(spoilt, ensure_ascii=False)
    if every.count("\n") and getattr(settings, "metric", None) != "call_valid":
        mistakes["all_tools"] = every
    return KnownAnswers(
        right=right,
        wrong=wrong,
        variants={
            "white_space": "\n" + json.dumps(value, indent=4, ensure_ascii=False) + "\n",
            "key_order": json.dumps(with_keys_reversed(value), ensure_ascii=False),
        },
        mistakes=mistakes,
        empty_forms=("{}", "<tool_call></tool_call>", '{"name": "", "arguments": {}}'),
        left_out={} if asks_for_arguments else {"wrong_arguments": f"{settings.metric} does not compare arguments"},
    )


def _loaded(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value else None


def _tool_name(tool: Any) -> str:
    """The name of a tool, described as such or as a function."""
    described = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    return str(described.get("name", "")) if isinstance(described, Mapping) else ""


KIND = Kind(
    settings=ToolCallVerifier,
    build=ToolCall,
    metrics={
        "call_match": "The expected calls, no more and no fewer, with the expected arguments.",
        "name_match": "The expected tools are called, as often as expected, whatever the arguments.",
        "call_valid": "Every call names a listed tool and its arguments follow the tool's schema.",
    },
    example=lambda: Example(
        ToolCallVerifier(),
        '{"name": "f", "arguments": {"a": 2}}',
        right='<tool_call>{"name": "f", "arguments": {"a": 2.0}}</tool_call>',
        wrong='{"name": "f", "arguments": {"a": 4}}',
        extras={"tools": [{"name": "f", "parameters": {"properties": {"a": {"multipleOf": 2}}}}]},
    ),
    known_answers=_known_answers,
)
