"""Verifier: is the answer a JSON document that follows a schema, and holds what the reference holds?

The whole text must be one JSON document, inside one Markdown code fence or none; ``json_text`` says what that is. Any
other text is unparseable. A document that breaks the schema scores 0 in every metric: what does not follow the form
is of no use, whatever is in it. Values are equal as JSON Schema has it: 1 is 1.0, true is not 1.

    schema_valid      the document follows the schema; 1 where there is none
    field_accuracy    share of the compared fields of the reference that the answer has with an equal value; further
                      fields of the answer do not count
    json_exact_match  the whole document equals the reference; with fields named, all of these are right

A row's own schema (``extras["schema"]``, an object or its JSON text) goes before the one of the settings.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ratchet.errors import InvalidSetting
from ratchet.verifiers.base import Building, Example, Grade, Kind, KnownAnswers, PartVerifier, Prompt
from ratchet.verifiers.json_schema import JsonSchema, json_schema
from ratchet.verifiers.json_text import BadSchema, NotJson, OutOfTime, canonical, read_json_answer
from ratchet.verifiers.known_texts import altered, with_keys_reversed
from ratchet.verifiers.settings import METRIC_LABEL, KindSettings, Name, kind_setting, setting

_NOTHING = {"schema_valid": 0.0, "field_accuracy": 0.0, "json_exact_match": 0.0}
_UNPARSEABLE = Grade(0.0, "unparseable", parts=_NOTHING)


class StructuredJsonVerifier(KindSettings):
    """The answer must be one JSON document, with the reference's fields or in a schema."""

    kind: Literal["structured_json"] = kind_setting(
        "structured_json", "the answer must be one JSON document, with the reference's fields or in a schema."
    )
    metric: Literal["field_accuracy", "schema_valid", "json_exact_match"] = setting(
        "field_accuracy",
        label=METRIC_LABEL,
        help="structured_json trains on field_accuracy (usual), schema_valid or json_exact_match; the others are "
        "reported.",
    )
    # Users write schema; as a Python name that would hide a method of pydantic's.
    json_schema: dict[str, Any] | None = setting(
        None,
        alias="schema",
        label="JSON schema",
        help="A JSON Schema (draft 2020-12) that answers must follow, else they score 0. A row's own column schema "
        "takes precedence. Empty: any JSON.",
    )
    fields: Annotated[tuple[Name, ...], Field(max_length=1_000)] = setting(
        (),
        label="Fields",
        help="Names at the top level that field_accuracy compares. Empty: all that the reference has.",
    )

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for number, field in enumerate(self.fields, start=1):
            if (first := self.fields.index(field) + 1) != number:
                raise ValueError(f"Fields, entries {first} and {number} are the same. Leave one of them out.")
        return self


class StructuredJson(PartVerifier):
    """Grades by the share of right fields, by the schema alone, or by equality of the whole."""

    def __init__(self, settings: StructuredJsonVerifier, building: Building) -> None:
        super().__init__(settings, building)
        self._metric = settings.metric
        self._fields = settings.fields
        self._schema = None if settings.json_schema is None else _schema_of_settings(settings.json_schema)

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse a reference that is no JSON, breaks its schema or lacks a compared field; also an unusable schema."""
        try:
            truth, schema = read_json_answer(prompt.ground_truth), self._schema_for(prompt)
        except NotJson as error:
            return f"is not a JSON document ({error})"
        except BadSchema as error:
            return f"has a schema that {error}"
        if schema is None and self._metric == "schema_valid":
            return "has no schema, and the settings name none either (metric schema_valid needs one)"
        problem = self._problem_with_fields(truth)
        return problem or (None if schema is None else _problem_with_schema(truth, schema))

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Compare the answer's document with the ground truth."""
        part = self.part(text)
        if part is None:
            return _UNPARSEABLE
        try:
            answer = read_json_answer(part)
        except NotJson:
            return _UNPARSEABLE
        try:
            truth, schema = read_json_answer(prompt.ground_truth), self._schema_for(prompt)
            is_valid = schema is None or schema.accepts(answer)
        except OutOfTime:
            return Grade(0.0, "failed", failure="time")
        except (NotJson, BadSchema, RecursionError):  # a row that check_ground_truth refuses
            return Grade(0.0, "failed", failure="execution")
        if not is_valid:
            return Grade(0.0, "graded", parts=_NOTHING)
        parts = {
            "schema_valid": 1.0,
            "field_accuracy": self._field_accuracy(answer, truth),
            "json_exact_match": self._exact_match(answer, truth),
        }
        return Grade(parts[self._metric], "graded", parts)

    def _schema_for(self, prompt: Prompt) -> JsonSchema | None:
        of_row = prompt.extras.get("schema")
        return self._schema if of_row is None or of_row == "" else json_schema(of_row)

    def _problem_with_fields(self, truth: Any) -> str | None:
        if not isinstance(truth, dict):
            needs_fields = self._metric == "field_accuracy" or self._fields
            return "is not a JSON object, so it has no fields to compare" if needs_fields else None
        if missing := sum(field not in truth for field in self._fields):
            return f"lacks {missing} of the {len(self._fields)} fields to compare"
        if not truth and self._metric == "field_accuracy":
            return "is an empty object, which has no fields to compare"
        return None

    def _exact_match(self, answer: Any, truth: Any) -> float:
        if self._fields:
            return float(self._field_accuracy(answer, truth) == 1)
        return float(canonical(answer) == canonical(truth))

    def _field_accuracy(self, answer: Any, truth: Any) -> float:
        """The share of right fields; where the reference has none, whether the whole is equal."""
        fields = self._fields or (tuple(truth) if isinstance(truth, dict) else ())
        if not fields or not isinstance(truth, dict):
            return float(canonical(answer) == canonical(truth))
        if not isinstance(answer, dict):
            return 0.0
        right = [
            field in answer and field in truth and canonical(answer[field]) == canonical(truth[field])
            for field in fields
        ]
        return sum(right) / len(fields)


def _schema_of_settings(schema: dict[str, Any]) -> JsonSchema:
    try:
        return json_schema(schema)
    except BadSchema as error:
        detail = f" ({error.detail})" if error.detail else ""
        raise InvalidSetting(
            f"JSON schema (verifier.schema) {error}{detail}. Correct it, or leave it out to take any JSON.",
            field="verifier.schema",
        ) from error


def _problem_with_schema(truth: Any, schema: JsonSchema) -> str | None:
    try:
        return None if schema.accepts(truth) else "does not follow its schema"
    except OutOfTime:
        return "takes longer than a second to check against its schema"
    except RecursionError:
        return "cannot be checked: its schema is infinitely recursive"


def _known_answers(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    try:
        value = json.loads(prompt.ground_truth)
        right = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return KnownAnswers()
    spoilt, fields = altered(value), getattr(settings, "fields", None)
    if fields and isinstance(value, dict):
        spoilt = {key: altered(inner) if key in fields else inner for key, inner in value.items()}
    wrong = json.dumps(spoilt, ensure_ascii=False) if spoilt != value else None
    variants = {
        "white_space": "\n" + json.dumps(value, indent=4, ensure_ascii=False) + "\n",
        "code_fence": f"```json\n{right}\n```",
    }
    if isinstance(value, dict):
        variants["key_order"] = json.dumps(with_keys_reversed(value), ensure_ascii=False)
    form_alone = getattr(settings, "metric", None) == "schema_valid"
    return KnownAnswers(
        right=right,
        wrong=None if form_alone else wrong,
        variants=variants,
        mistakes={"many_answers": f"{right}\n{wrong}"} if wrong is not None else {},
        empty_forms=("```json\n```",) if value == {} else ("{}", "```json\n```", "```json\n{}\n```"),
        left_out={"wrong": "schema_valid asks for the form alone, whatever is in it"} if form_alone else {},
    )


_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 2}, "b": {"pattern": "^(x+)+$"}}}
KIND = Kind(
    settings=StructuredJsonVerifier,
    build=StructuredJson,
    metrics={
        "field_accuracy": "Share of the compared fields whose value equals the reference's.",
        "schema_valid": "The document follows the JSON schema.",
        "json_exact_match": "The whole document equals the reference.",
    },
    example=lambda: Example(
        StructuredJsonVerifier.model_validate({"schema": _SCHEMA}),
        '{"a": 2, "c": [1]}',
        right='{"c": [1], "a": 2.0}',
        wrong='{"a": 3}',
    ),
    known_answers=_known_answers,
)
