"""Answers that are JSON: what is unparseable, what the schema rules out, and the three numbers worked by hand."""

import json

import pytest
from pydantic import ValidationError

from ratchet.config import StructuredJsonVerifier
from ratchet.errors import InvalidSetting
from ratchet.run.records import Prompt
from ratchet.verifiers import make_verifier

TRUTH = {"name": "Ada", "born": 1815, "tags": ["x", "y"], "ok": True}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "born": {"type": "integer"}},
    "required": ["name"],
}


def prompt(truth=TRUTH, **extras):
    return Prompt(1, (), truth if isinstance(truth, str) else json.dumps(truth), extras)


def grade(text, truth=TRUTH, extras=None, **settings):
    text = text if isinstance(text, str) else json.dumps(text)
    return make_verifier(StructuredJsonVerifier(**settings)).grade(text, prompt(truth, **(extras or {})))


def parts(schema_valid, field_accuracy, json_exact_match):
    return {"schema_valid": schema_valid, "field_accuracy": field_accuracy, "json_exact_match": json_exact_match}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (TRUTH, parts(1.0, 1.0, 1.0)),
        (dict(reversed(TRUTH.items())), parts(1.0, 1.0, 1.0)),  # the order of keys does not matter
        ({**TRUTH, "born": 1815.0}, parts(1.0, 1.0, 1.0)),
        ({**TRUTH, "more": 1}, parts(1.0, 1.0, 0.0)),  # a further field is no wrong field
        ({**TRUTH, "born": 1816}, parts(1.0, 0.75, 0.0)),
        ({**TRUTH, "ok": 1, "tags": ["y", "x"]}, parts(1.0, 0.5, 0.0)),
        ({"name": "Ada"}, parts(1.0, 0.25, 0.0)),
        ({}, parts(1.0, 0.0, 0.0)),
        ([TRUTH], parts(1.0, 0.0, 0.0)),
        ("null", parts(1.0, 0.0, 0.0)),
    ],
)
def test_the_numbers_without_a_schema(answer, expected):
    for metric in expected:
        found = grade(answer, metric=metric)
        assert (found.outcome, found.correctness, found.parts) == ("graded", expected[metric], expected)


def test_only_the_named_fields_are_compared():
    answer = {"name": "Ada", "born": 1}
    assert grade(answer, fields=("name", "born")).parts == parts(1.0, 0.5, 0.0)
    assert grade(answer, fields=("name",)).correctness == 1.0


@pytest.mark.parametrize("metric", ["field_accuracy", "schema_valid", "json_exact_match"])
@pytest.mark.parametrize("answer", [{"born": 1815}, {**TRUTH, "born": "1815"}, {**TRUTH, "name": None}, "[]"])
def test_what_breaks_the_schema_scores_0_in_every_metric_and_is_graded(answer, metric):
    found = grade(answer, schema=SCHEMA, metric=metric)
    assert (found.outcome, found.correctness, found.parts) == ("graded", 0.0, parts(0.0, 0.0, 0.0))


def test_what_follows_the_schema_is_compared():
    assert grade({**TRUTH, "born": 1}, schema=SCHEMA).parts == parts(1.0, 0.75, 0.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        '{"name": "Ada"',
        '{"name": "Ada"} ok',
        '{"name": 1, "name": "Ada"}',
        '{"born": NaN}',
        "```json\n{}\n``` x",
    ],
)
def test_what_is_not_one_document_is_unparseable(text):
    found = grade(text)
    assert (found.outcome, found.correctness, found.parts) == ("unparseable", 0.0, parts(0.0, 0.0, 0.0))


def test_one_fence_is_allowed_and_the_part_to_read_comes_first():
    fenced = f"```json\n{json.dumps(TRUTH, indent=2)}\n```"
    assert grade(fenced).correctness == 1.0
    assert grade(f"<think>{{</think>\n{fenced}", read="after_reasoning").correctness == 1.0
    assert grade(fenced, read="after_reasoning").outcome == "unparseable"


@pytest.mark.parametrize("as_text", [False, True])
def test_a_rows_own_schema_goes_before_that_of_the_settings(as_text):
    own = {"required": ["age"]}
    extras = {"schema": json.dumps(own) if as_text else own}
    assert grade({"name": "Ada"}, schema=SCHEMA, extras=extras).parts["schema_valid"] == 0.0
    assert grade({"age": 1}, schema=SCHEMA, extras=extras).parts["schema_valid"] == 1.0
    for nothing in (None, ""):
        assert grade({"age": 1}, schema=SCHEMA, extras={"schema": nothing}).parts["schema_valid"] == 0.0


def problem(truth, extras=None, **settings):
    return make_verifier(StructuredJsonVerifier(**settings)).check_ground_truth(prompt(truth, **(extras or {})))


@pytest.mark.parametrize(
    ("truth", "settings", "extras", "said"),
    [
        (TRUTH, {}, {}, None),
        (TRUTH, {"schema": SCHEMA, "fields": ("name", "born")}, {}, None),
        ("[1, 2]", {"metric": "json_exact_match"}, {}, None),
        ("{}", {"metric": "schema_valid", "schema": SCHEMA}, {}, "does not follow its schema"),
        ("zyzzyva", {}, {}, "is not a JSON document"),
        ("[1, 2]", {}, {}, "is not a JSON object"),
        ("{}", {}, {}, "an empty object"),
        (TRUTH, {"fields": ("name", "age", "size")}, {}, "lacks 2 of the 3 fields"),
        ({"born": 1}, {"schema": SCHEMA}, {}, "does not follow its schema"),
        (TRUTH, {"metric": "schema_valid"}, {}, "has no schema"),
        (TRUTH, {"metric": "schema_valid"}, {"schema": SCHEMA}, None),
        (TRUTH, {}, {"schema": {"type": "zyzzyva"}}, "has a schema that is not a JSON Schema"),
        (TRUTH, {}, {"schema": "{"}, "has a schema that is not usable JSON"),
        (TRUTH, {}, {"schema": {"$ref": "#"}}, "is infinitely recursive"),
    ],
)
def test_a_reference_must_be_gradable(truth, settings, extras, said):
    reason = problem(truth, extras, **settings)
    assert reason is None if said is None else said in reason
    assert "zyzzyva" not in (reason or "")


def test_a_schema_of_the_settings_that_cannot_be_used_is_refused_by_name():
    with pytest.raises(
        InvalidSetting, match=r"JSON schema \(verifier.schema\) is not .*at properties/a/type: 'strin'"
    ) as caught:
        make_verifier(StructuredJsonVerifier(schema={"properties": {"a": {"type": "strin"}}}))
    assert caught.value.field == "verifier.schema"


def test_a_check_that_does_not_end_is_failed_and_not_wrong():
    found = grade({"a": "a" * 5_000 + "!"}, {"a": ""}, schema={"properties": {"a": {"pattern": "^(a|a)*$"}}})
    assert (found.outcome, found.failure, found.correctness) == ("failed", "time", 0.0)


def test_fields_are_named_once():
    with pytest.raises(ValidationError, match="entries 1 and 2 are the same"):
        StructuredJsonVerifier(fields=("a", "a"))
