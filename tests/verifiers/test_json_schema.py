"""Schemas: the same answers as jsonschema's own validator, and an end in time whatever is asked of them."""

import json
import socket
import time

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ratchet.verifiers.json_schema import all_follow, json_schema
from ratchet.verifiers.json_text import BadSchema, OutOfTime, read_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(["", "a", "ab", "b1"])
    | st.sampled_from([0.5, 2.0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c1"]), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["a", "b", "c1"])
SCHEMAS = st.recursive(
    st.booleans()
    | st.fixed_dictionaries({"type": st.sampled_from(["object", "array", "string", "integer", "number", "boolean"])})
    | st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=3)})
    | st.fixed_dictionaries({"const": VALUES})
    | st.sampled_from(
        [
            {"minimum": 0},
            {"exclusiveMaximum": 2},
            {"multipleOf": 2},
            {"multipleOf": 0.5},
            {"pattern": "^a"},
            {"minLength": 1},
            {"uniqueItems": True},
            {"required": ["a"]},
            {"minProperties": 2},
            {"dependentRequired": {"a": ["b"]}},
        ]
    ),
    lambda inner: st.dictionaries(st.sampled_from(["allOf", "anyOf", "oneOf"]), st.lists(inner, min_size=1, max_size=3), min_size=1)
    | st.fixed_dictionaries({"not": inner})
    | st.fixed_dictionaries({"if": inner, "then": inner, "else": inner})
    | st.fixed_dictionaries(
        {"properties": st.dictionaries(NAMES, inner, max_size=2)},
        optional={"additionalProperties": inner, "patternProperties": st.dictionaries(st.sampled_from(["^a", "1"]), inner, max_size=2)},
    )
    | st.fixed_dictionaries({"properties": st.dictionaries(NAMES, inner, max_size=2), "unevaluatedProperties": inner})
    | st.fixed_dictionaries({"prefixItems": st.lists(inner, min_size=1, max_size=2), "items": inner})
    | st.fixed_dictionaries({"contains": inner, "unevaluatedItems": inner}),
    max_leaves=6,
)  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(SCHEMAS, VALUES)
def test_what_follows_a_schema_is_what_jsonschema_says(schema, value):
    assume(isinstance(schema, dict))
    assume(not ("unevaluatedProperties" in json.dumps(schema) and "patternProperties" in json.dumps(schema)))
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert json_schema(schema).accepts(read_json(json.dumps(value))) is expected


def accepts(schema, text):
    return json_schema(schema).accepts(read_json(text))


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"multipleOf": 0.1}, "0.3", True),  # 0.3 / 0.1 is 2.9999999999999996 as doubles
        ({"multipleOf": 0.1}, "0.35", False),
        ({"maximum": 0.1}, "0.1", True),
        ({"maximum": 9007199254740992}, "9007199254740993", False),
        ({"type": "integer"}, "1.0", True),
        ({"type": "integer"}, "1.5", False),
        ({"type": "integer"}, "true", False),
        ({"const": 1}, "true", False),
        ({"enum": [0.5]}, "0.50", True),
        ({"uniqueItems": True}, "[1, 1.0]", False),
        ({"uniqueItems": True}, "[1, true]", True),
        ({"format": "email"}, '"no mail"', True),
        # ECMA-262: $ is the end of the text alone, \d and \w are ASCII
        ({"pattern": "^a$"}, '"a\\n"', False),
        ({"pattern": r"^\d+$"}, '"\u0663"', False),
        ({"pattern": r"^[\d$]+$"}, '"1$"', True),
        ({"pattern": r"^\W$"}, '"\u00e9"', True),
        ({"pattern": r"^\$\u0061\/$"}, '"$a/"', True),
        ({"pattern": r"^\p{Lu}$"}, '"\u00c9"', True),
        ({"$defs": {"n": {"$anchor": "num", "type": "number"}}, "items": {"$ref": "#num"}}, "[1, 2]", True),
        ({"$defs": {"n": {"type": "number"}}, "items": {"$ref": "#/$defs/n"}}, '[1, "2"]', False),
        ({"type": "object", "properties": {"next": {"$ref": "#"}}}, '{"next": {"next": 3}}', False),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": "#/$defs/a", "$defs": {"a": {"pattern": "^a$"}}}, '"a\\n"', False),
    ],
)  # fmt: skip
def test_numbers_patterns_and_references(schema, text, expected):
    assert accepts(schema, text) is expected


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "strin"}, "not a JSON Schema"),
        ({"properties": {"a": {"items": [{}]}}}, "not a JSON Schema"),
        ({"pattern": "(("}, "not a valid regular expression"),
        ({"patternProperties": {"((": {}}}, "not a valid regular expression"),
        ({"$ref": "#/$defs/a"}, "to nothing inside"),
        ({"anyOf": [{"$ref": "https://example.com/s.json"}]}, "never fetched"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "draft other than"),
        ({"$schema": 5}, "draft other than"),
        ({"items": {"$schema": "https://json-schema.org/draft/2020-12/schema"}}, "below its top level"),
        ({"unevaluatedProperties": False, "patternProperties": {"a": {}}}, "not supported together"),
        ({"title": float("nan")}, "not usable JSON"),
        ({"title": {1, 2}}, "is not JSON"),
        ("[]", "not a JSON object"),
        ('{"type": "object"', "not usable JSON"),
        (True, "not a JSON object"),
        ({"description": "a" * 100_001}, "longer than"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(schema, said):
    with pytest.raises(BadSchema, match=said):
        json_schema(schema)


def test_a_schema_nested_too_deeply_is_refused():
    schema = {}
    for _ in range(70):
        schema = {"not": schema}
    with pytest.raises(BadSchema, match="deeper than 64"):
        json_schema(schema)


def test_nothing_is_fetched(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(BadSchema):
        json_schema({"$ref": "http://localhost:9/s.json"})
    with pytest.raises(BadSchema):
        json_schema({"$ref": "https://json-schema.org/draft/2020-12/schema"})


def test_a_schema_without_an_end_does_not_hang():
    with pytest.raises(RecursionError):
        accepts({"$ref": "#"}, "1")


# Each part is looked at twice, so 2^60 times at the bottom.
TWICE = {"properties": {"x": {"$ref": "#/$defs/a"}}}
EXPONENTIAL = {
    "$defs": {"a": {"anyOf": [{**TWICE, "required": ["z"]}, {**TWICE, "required": ["y"]}]}},
    "$ref": "#/$defs/a",
}
SLOW = {
    "a pattern": ({"pattern": r"^(a|a)*$"}, json.dumps("a" * 5_000 + "!")),
    "a property name": ({"patternProperties": {r"^(a|a)*$": {}}}, json.dumps({"a" * 5_000 + "!": 1})),
    "an additional property": (
        {"patternProperties": {r"^(a|a)*$": {}}, "additionalProperties": False},
        json.dumps({"a" * 5_000 + "!": 1}),
    ),
    "alternatives": (EXPONENTIAL, '{"x":' * 60 + '{"y": 1}' + "}" * 60),
    "unevaluated items": ({"unevaluatedItems": {"type": "string"}}, json.dumps([1] * 30_000)),
    "unevaluated properties": ({"unevaluatedProperties": {"type": "string"}}, json.dumps({str(n): 1 for n in range(9_000)})),
}  # fmt: skip


@pytest.mark.parametrize("what", SLOW)
def test_what_would_run_for_ever_runs_out_of_time(what):
    schema, text = SLOW[what]
    before = time.thread_time()
    with pytest.raises(OutOfTime):
        accepts(schema, text)
    assert time.thread_time() - before < 3


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"uniqueItems": True}, json.dumps([{"a": n} for n in range(6_000)])),
        ({"items": {"enum": list(range(100))}}, json.dumps([99] * 3_000)),
    ],
)
def test_large_documents_are_checked_within_the_limit(schema, text):
    before = time.thread_time()
    assert accepts(schema, text)
    assert time.thread_time() - before < 2


def test_the_limit_holds_for_all_documents_together():
    slow = json_schema(SLOW["alternatives"][0])
    document = read_json(SLOW["alternatives"][1])
    before = time.thread_time()
    with pytest.raises(OutOfTime):
        all_follow([({}, json_schema({"type": "object"})), *([(document, slow)] * 5)])
    assert time.thread_time() - before < 3
