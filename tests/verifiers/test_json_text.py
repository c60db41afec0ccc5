"""JSON as answers write it: what is a document, what its numbers are, and when two of them are equal."""

import json
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.verifiers.json_text import NotJson, canonical, read_json, read_json_answer

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{", '{"a": 1} and more', "Here: {}", "{} {}", "{'a': 1}", '{"a": 1,}', "[1,]", '{"a": 1, "a": 1}',
        '{"b": {"a": 1, "a": 2}}', "NaN", "[Infinity]", "-Infinity", "1e400", "-1e400", "1e999999999",
        "1e99999999999999999999", "1e-401", "01", "+1", ".5", "1.", "0x1", "// c\n1", '"a\nb"', '"\\x"', "nul", "True",
        "[" * 65 + "]" * 65, "[" * 100_000, '{"a":' * 30_000, "9" * 1_001, '"' + "a" * 1_000_000 + '"', "\ufeff1",
    ],
)  # fmt: skip
def test_what_is_not_one_document_within_the_bounds_is_refused(text):
    with pytest.raises(NotJson):
        read_json(text)


def test_depth_and_size_up_to_the_bounds_are_read():
    assert read_json("[" * 64 + "]" * 64)
    assert read_json('"' + "a" * 99_998 + '"')


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.0", 1),
        ("1e3", 1000),
        ("-0.0", 0),
        ("0.1", Decimal("0.1")),
        ("12345678901234567890123", 12345678901234567890123),
        ("1.5e308", 15 * 10**307),
        ('"\\ud800"', "\ud800"),
    ],
)
def test_numbers_are_exact(text, value):
    read = read_json(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ("1", "1.0", True),
        ("100", "1e2", True),
        ("true", "1", False),
        ("false", "0", False),
        ("null", "false", False),
        ('"1"', "1", False),
        ('{"a": 1, "b": 2}', '{"b": 2.0, "a": 1}', True),
        ("[1, 2]", "[2, 1]", False),
        ("[]", "{}", False),
        ('{"a": null}', "{}", False),
        ("0.1", "0.10", True),
        ("0.1", "0.1000000000000000055", False),  # equal as doubles
        ("9007199254740993", "9007199254740992", False),  # likewise
        ("[true]", "[1]", False),
        ('"e\u0301"', '"\u00e9"', False),
    ],
)
def test_documents_are_equal_as_json_schema_has_it(a, b, equal):
    assert (canonical(read_json(a)) == canonical(read_json(b))) is equal


@given(DOCUMENTS)
def test_what_json_writes_is_read_back(document):
    read = read_json(json.dumps(document))
    assert canonical(read) == canonical(read_json(json.dumps(document, indent=1)))
    assert read == json.loads(json.dumps(document), parse_float=Decimal)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        ' {"a": 1}\n',
        '```json\n{"a": 1}\n```',
        '```\n{"a": 1}\n```',
        '\n```JSON\r\n{"a": 1}\r\n```\n',
        '~~~\n{"a": 1}\n~~~',
        '````json\n{"a": 1}\n````',
    ],
)
def test_one_code_fence_around_the_document_is_taken_off(text):
    assert read_json_answer(text) == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        'So:\n```json\n{"a": 1}\n```',
        '```json\n{"a": 1}\n```\nDone.',
        '```json\n{"a": 1}',
        '{"a": 1}\n```',
        '```json\n```json\n{"a": 1}\n```\n```',
        '```json\n{"a": 1}\n```\n```json\n{"a": 1}\n```',
        '```json {"a": 1}```',
        "```\n```",
        '````json\n{"a": 1}\n```',
    ],
)
def test_anything_more_than_one_fence_is_refused(text):
    with pytest.raises(NotJson):
        read_json_answer(text)


@given(st.text(alphabet='{}[]",:01.-eE`~\n tnu\\'))
def test_no_text_raises_anything_else(text):
    with suppress(NotJson):
        canonical(read_json_answer(text))
