r"""JSON Schemas (draft 2020-12) that can be trusted with any document: nothing is fetched, nothing hangs.

``jsonschema`` validates; here is what it leaves open. References are looked up within the schema alone. Patterns are
those of ECMA-262 as far as models and people write them (``$`` is the end, ``\d`` and ``\w`` are ASCII) and run in the
``regex`` package, which can be given a time limit. A document whose check takes more than a second of processor time
raises ``OutOfTime``: nested alternatives can take time exponential in the depth. Numbers are compared exactly.

``format`` is a note, as the draft has it, and never a check. Refused: other drafts, a schema of more than 100,000
characters or 64 levels, and ``unevaluatedProperties`` together with ``patternProperties``.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import regex  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from ratchet.verifiers.json_text import NotJson, canonical, read_json

_LIMIT_SECONDS = 1.0
_MAX_CHARACTERS = 100_000
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
# jsonschema looks up each entry in a list of those evaluated: a quadratic step that no clock interrupts.
_MAX_UNEVALUATED = 2_000
# Not every ECMA class has a name in an ASCII-only form inside brackets: \D and \W there stay Unicode's.
_ASCII_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_"}
_PIECE = re.compile(r"\\(.)|([\[\]$])", re.DOTALL)

_deadline: ContextVar[float] = ContextVar("deadline")  # in seconds of this thread's processor time


class BadSchema(ValueError):
    """A schema cannot be used. The text completes "... that "; ``detail`` may quote the schema, the text never does."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class OutOfTime(Exception):
    """A document's check takes too long."""


class JsonSchema:
    """A schema, made of an object that ``read_json`` returned. Safe to use from any thread.

    Raises:
        BadSchema: It cannot be used; says why.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        _refuse_unusable(schema)
        self._validator = _Validator(schema, registry=Registry())

    def accepts(self, document: Any) -> bool:
        """Tell whether a document that ``read_json`` returned follows the schema. Raises as ``all_follow`` does."""
        return all_follow([(document, self)])

    def _accepts(self, document: Any) -> bool:
        return bool(self._validator.is_valid(document))


def all_follow(documents: Iterable[tuple[Any, JsonSchema]]) -> bool:
    """Tell whether every document follows its schema, within one time limit for all of them.

    Raises:
        OutOfTime: It cannot be told within a second.
        RecursionError: A schema refers to itself without end.
    """
    token = _deadline.set(time.thread_time() + _LIMIT_SECONDS)
    try:
        return all(schema._accepts(document) for document, schema in documents)
    finally:
        _deadline.reset(token)


def json_schema(schema: Any) -> JsonSchema:
    """Return the schema that an object, or the JSON text of one, stands for.

    Raises:
        BadSchema: It is none that can be used; says why.
    """
    if isinstance(schema, str):
        return _read_schema(schema)
    try:
        return _read_schema(json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, BadSchema):
            raise
        raise BadSchema("is not JSON") from error


@lru_cache(maxsize=512)
def _read_schema(text: str) -> JsonSchema:
    """Read and check a schema. Cached, because rows share theirs."""
    if len(text) > _MAX_CHARACTERS:
        raise BadSchema(f"is longer than {_MAX_CHARACTERS:,} characters")
    try:
        schema = read_json(text)
    except NotJson as error:
        raise BadSchema(f"is not usable JSON ({error})") from error
    if not isinstance(schema, dict):
        raise BadSchema("is not a JSON object")
    return JsonSchema(schema)


def _refuse_unusable(schema: dict[str, Any]) -> None:
    """Raise BadSchema for what would only come to light on an answer, or never. Takes $schema out."""
    # jsonschema would go on with a validator of its own, without our keywords, below a $schema.
    if str(schema.pop("$schema", _DIALECT)).rstrip("#") != _DIALECT:
        raise BadSchema("names another draft than 2020-12 in $schema")
    try:
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(()))
    except SchemaError as error:
        place = "/".join(str(step) for step in error.absolute_path) or "its top level"
        raise BadSchema("is not a JSON Schema of draft 2020-12", f"at {place}: {_shortened(error.message)}") from error
    keywords = set[str]()
    resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    for part, resolver_there in _parts(schema, resolver):
        keywords |= part.keys()
        _refuse_part(part, resolver_there)
    if {"unevaluatedProperties", "patternProperties"} <= keywords:
        raise BadSchema("holds both unevaluatedProperties and patternProperties, which are not supported together")


def _refuse_part(part: dict[str, Any], resolver: Any) -> None:
    """Raise BadSchema for a pattern or a reference of one schema, without those inside it."""
    if "$schema" in part:
        raise BadSchema("holds a $schema below its top level")
    for pattern in (*part.get("patternProperties", ()), *([part["pattern"]] if "pattern" in part else ())):
        try:
            _compiled(pattern)
        except (regex.error, RecursionError, OverflowError) as error:
            raise BadSchema("holds a pattern that is no regular expression", f"{pattern}: {error}") from error
    for reference in (part[name] for name in ("$ref", "$dynamicRef") if name in part):
        try:
            resolver.lookup(reference)
        except Unresolvable as error:
            raise BadSchema(
                "holds a $ref that leads to nothing inside it (what is elsewhere is never fetched)", reference
            ) from error


def _parts(schema: Any, resolver: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield a schema and every schema inside it, each with the resolver of its references."""
    if not isinstance(schema, dict):
        return
    resource = DRAFT202012.create_resource(schema)
    inside = resolver.in_subresource(resource)
    yield schema, inside
    for part in resource.subresources():
        yield from _parts(part.contents, inside)


def _shortened(message: str) -> str:
    return message if len(message) <= 200 else message[:197] + "..."


@lru_cache(maxsize=2_048)
def _compiled(pattern: str) -> "regex.Pattern[str]":
    """Compile an ECMA-262 pattern.

    Raises:
        regex.error: It is none.
    """
    translated, start, in_class = [], 0, False
    for piece in _PIECE.finditer(pattern):
        translated.append(pattern[start : piece.start()])
        start = piece.end()
        escaped, symbol = piece[1], piece[2]
        if escaped in _ASCII_CLASSES:
            inside = _ASCII_CLASSES[escaped]
            translated.append(inside if in_class else f"[{inside}]")
        elif escaped in ("D", "W") and not in_class:
            translated.append(f"[^{_ASCII_CLASSES[escaped.lower()]}]")
        elif symbol == "$" and not in_class:
            translated.append(r"\Z")
        else:
            translated.append(piece.group())
            in_class = symbol == "[" or (in_class and symbol != "]")
    return regex.compile("".join(translated) + pattern[start:], regex.VERSION0)


def _matches(pattern: str, text: str) -> bool:
    try:
        return _compiled(pattern).search(text, timeout=max(_seconds_left(), 0.001)) is not None
    except TimeoutError:
        raise OutOfTime from None


def _seconds_left() -> float:
    left = _deadline.get() - time.thread_time()
    if left <= 0:
        raise OutOfTime
    return left


Keyword = Callable[[Any, Any, Any, Any], Any]


def _timed(keyword: Keyword) -> Keyword:
    """Look at the clock each time a keyword is applied."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _seconds_left()
        return keyword(validator, value, instance, schema)

    return check


def _pattern(validator: Any, value: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(value, instance):
        yield ValidationError("the pattern does not match")


def _pattern_properties(validator: Any, value: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, part in value.items():
            for name, inner in instance.items():
                if _matches(pattern, name):
                    yield from validator.descend(inner, part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, value: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(instance, dict):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", ())
        for name, inner in instance.items():
            if name not in known and not any(_matches(pattern, name) for pattern in patterns):
                yield from validator.descend(inner, value, path=name)


def _multiple_of(validator: Any, value: int | Decimal, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, int | Decimal) and not isinstance(instance, bool):
        quotient = Fraction(instance) / Fraction(value)
        if quotient.denominator != 1:
            yield ValidationError("not a multiple")


def _unique_items(validator: Any, value: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if value and isinstance(instance, list) and len({canonical(item) for item in instance}) < len(instance):
        yield ValidationError("an item stands twice")


def _bounded(keyword: Keyword) -> Keyword:
    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        if isinstance(instance, dict | list) and len(instance) > _MAX_UNEVALUATED:
            raise OutOfTime
        return keyword(validator, value, instance, schema)

    return check


_STOCK = Draft202012Validator.VALIDATORS
_KEYWORDS: dict[str, Keyword] = {
    **_STOCK,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "multipleOf": _multiple_of,
    "uniqueItems": _unique_items,
    **{name: _bounded(_STOCK[name]) for name in ("unevaluatedItems", "unevaluatedProperties")},
}
_Validator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {name: _timed(keyword) for name, keyword in _KEYWORDS.items()}
)
