"""Calls of tools: the forms they are written in, and the three numbers worked by hand."""

import json

import pytest

from ratchet.config import ToolCallVerifier
from ratchet.run.records import Prompt
from ratchet.verifiers import make_verifier
from ratchet.verifiers.tool_calls import BadTools, NotCalls, read_calls, read_tools

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "?",
            "parameters": {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 0.5}},
                "required": ["city"],
            },
        },
    },
    {"name": "now"},
]


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


def wrapped(name, arguments):
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def prompt(truth, tools=TOOLS):
    return Prompt(1, (), truth if isinstance(truth, str) else json.dumps(truth), {"tools": tools})


def grade(text, truth, **settings):
    text = text if isinstance(text, str) else json.dumps(text)
    return make_verifier(ToolCallVerifier(**settings)).grade(text, prompt(truth))


PARIS = call("weather", city="Paris")
FORMS = {
    "tags": f"Let me look.\n<tool_call>\n{json.dumps(PARIS)}\n</tool_call>\nDone.",
    "an object": json.dumps(PARIS),
    "a fenced object": f"```json\n{json.dumps(PARIS)}\n```",
    "parameters": json.dumps({"name": "weather", "parameters": {"city": "Paris"}}),
    "a list": json.dumps([PARIS]),
    "the API's form": json.dumps(wrapped("weather", {"city": "Paris"})),
    "the API's form, arguments as text": json.dumps(wrapped("weather", '{"city": "Paris"}')),
    "a function without its type": json.dumps({"function": PARIS}),
    "a message of the API": json.dumps({"role": "assistant", "content": None, "tool_calls": [wrapped("weather", '{"city": "Paris"}')]}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_usual_form_of_a_call_is_read(form):
    assert read_calls(FORMS[form]) == [("weather", {"city": "Paris"})]
    assert grade(FORMS[form], PARIS).correctness == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "", "It is sunny.", "null", "[]", '{"tool_calls": []}', '{"name": "now"}', '{"arguments": {}}', '"now"',
        '{"name": "now", "arguments": null}', '{"name": "now", "arguments": "{}"}', '{"name": 1, "arguments": {}}',
        '{"name": "now", "arguments": {}, "parameters": {}}', '{"name": "now", "arguments": {}} ok',
        'I call {"name": "now", "arguments": {}}', '[{"name": "now", "arguments": {}}, 1]',
        '[[{"name": "now", "arguments": {}}]]', '{"type": "retrieval", "function": {"name": "now", "arguments": {}}}',
        '{"function": {"name": "now", "arguments": "{"}}', '{"function": {"name": "now", "arguments": "[]"}}',
        '{"name": "now", "function": {"name": "now", "arguments": {}}}',
        '{"name": "now", "arguments": {"a": 1, "a": 2}}', '{"name": "now", "arguments": {"a": NaN}}',
        "<tool_call></tool_call>", '<tool_call>{"name": "now", "arguments": {}}', '{"name": "now", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {}</tool_call>', "<tool_call>now()</tool_call>",
        '<tool_call><tool_call>{"name": "now", "arguments": {}}</tool_call></tool_call>',
        '<tool_call>{"name": "now", "arguments": {}}</tool_call><tool_call>', json.dumps([call("now")] * 129),
    ],
)  # fmt: skip
def test_no_call_or_a_broken_one_is_unparseable(text):
    with pytest.raises(NotCalls):
        read_calls(text)
    found = grade(text, PARIS)
    assert (found.outcome, found.correctness) == ("unparseable", 0.0)
    assert set(found.parts.values()) == {0.0}


TWO = [PARIS, call("weather", city="Rome", days=3)]


@pytest.mark.parametrize(
    ("answer", "truth", "valid", "names", "match"),
    [
        (PARIS, PARIS, 1, 1, 1),
        (call("weather", city="Rome"), PARIS, 1, 1, 0),
        (call("weather", city="Paris", days=1.0), call("weather", days=1, city="Paris"), 1, 1, 1),
        (call("weather", city="Paris", days=1), PARIS, 1, 1, 0),
        (call("now"), PARIS, 1, 0, 0),
        (call("weather", days=1), PARIS, 0, 1, 0),  # city is required
        (call("weather", city="Paris", days=0), PARIS, 0, 1, 0),
        (call("now", zone="UTC"), call("now"), 0, 1, 0),  # a tool without parameters takes none
        (call("clock"), PARIS, 0, 0, 0),  # not listed
        ([PARIS, call("clock")], PARIS, 0, 0, 0),
        (call("weather"), call("weather"), 0, 1, 0),  # as expected, yet not allowed (such a row is refused before)
        (TWO, TWO, 1, 1, 1),
        (TWO[::-1], TWO, 1, 1, 1),  # in any order
        ([PARIS, PARIS], PARIS, 1, 0, 0),  # each as often as expected
        (PARIS, [PARIS, PARIS], 1, 0, 0),
        ([PARIS, PARIS], TWO, 1, 1, 0),
        ("".join(f"<tool_call>{json.dumps(one)}</tool_call>" for one in TWO), TWO, 1, 1, 1),
    ],
)
def test_the_numbers_worked_by_hand(answer, truth, valid, names, match):
    expected = {"call_valid": float(valid), "name_match": float(names), "call_match": float(match)}
    for metric in expected:
        found = grade(answer, truth, metric=metric)
        assert (found.outcome, found.correctness, found.parts) == ("graded", expected[metric], expected)


def test_whole_calls_are_what_is_trained_on_unless_told_otherwise():
    assert grade(call("weather", city="Rome"), PARIS).correctness == 0.0


def test_the_part_to_read_comes_first():
    text = f"<think><tool_call></think>{json.dumps(PARIS)}"
    assert grade(text, PARIS, read="after_reasoning").correctness == 1.0
    assert grade(text, PARIS).outcome == "unparseable"


def test_tools_may_be_given_as_json_text():
    assert set(read_tools(json.dumps(TOOLS))) == set(read_tools(TOOLS)) == {"weather", "now"}


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ("[", "not usable JSON"),
        ({1, 2}, "not JSON"),
        ({}, "are not"),
        ([], "are not"),
        ([{"name": ""}], "no name in entry 1"),
        ([{"name": "f"}, {"function": {}}], "no name in entry 2"),
        ([{"name": "f"}, {"name": "f"}], "repeat a name in entry 2"),
        ([{"name": "f", "parameters": {"type": "dict"}}], "parameters in entry 1 whose schema is not a JSON Schema"),
        ([{"name": "f", "parameters": []}], "parameters in entry 1 whose schema is not a JSON object"),
    ],
)
def test_tools_that_cannot_be_used_say_why(tools, said):
    with pytest.raises(BadTools, match=said):
        read_tools(tools)


@pytest.mark.parametrize(
    ("truth", "tools", "said"),
    [
        (PARIS, TOOLS, None),
        (TWO, TOOLS, None),
        (json.dumps(wrapped("weather", '{"city": "Paris"}')), TOOLS, None),
        (PARIS, None, "has no tools"),
        (PARIS, [], "has no tools"),
        (PARIS, [{"type": "function"}], "has tools that have no name in entry 1"),
        ("zyzzyva", TOOLS, "is not a call"),
        ("[]", TOOLS, "is not a call"),
        (call("zyzzyva"), TOOLS, "calls a tool that its row does not list"),
        (call("weather"), TOOLS, "has arguments that do not follow the tool's schema"),
        (PARIS, [{"name": "weather", "parameters": {"$ref": "#"}}], "cannot be checked"),
    ],
)
def test_a_reference_must_be_gradable(truth, tools, said):
    reason = make_verifier(ToolCallVerifier()).check_ground_truth(prompt(truth, tools))
    assert reason is None if said is None else said in reason
    assert "zyzzyva" not in (reason or "")


def test_a_row_without_tools_is_failed_and_not_wrong():
    found = make_verifier(ToolCallVerifier()).grade(json.dumps(PARIS), Prompt(1, (), json.dumps(PARIS)))
    assert (found.outcome, found.failure) == ("failed", "execution")


def test_a_check_that_does_not_end_is_failed_and_not_wrong():
    tools = [{"name": "f", "parameters": {"properties": {"a": {"pattern": "^(a|a)*$"}}}}]
    row = prompt(call("f", a=""), tools)
    found = make_verifier(ToolCallVerifier()).grade(json.dumps([call("f", a="a" * 5_000 + "!")] * 3), row)
    assert (found.outcome, found.failure, found.correctness) == ("failed", "time", 0.0)
