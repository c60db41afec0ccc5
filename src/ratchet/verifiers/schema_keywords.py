r"""What ``jsonschema`` leaves open: the check of a schema itself, and keywords that cannot hang.

Patterns are those of ECMA-262 as far as models and people write them (``$`` is the end, ``\d`` and ``\w`` are ASCII)
and run in the ``regex`` package, which can be given a time limit. Every keyword looks at the clock.
"""

import re
from collections.abc import Callable, Iterator, Mapping
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

from ratchet.verifiers.json_text import BadSchema, OutOfTime, canonical, seconds_left

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
# jsonschema looks up each entry in a list of those evaluated: a quadratic step that no clock interrupts.
_MAX_UNEVALUATED = 2_000
# Not every ECMA class has a name in an ASCII-only form inside brackets: \D and \W there stay Unicode's.
_ASCII_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_"}
_PIECE = re.compile(r"\\(.)|([\[\]$])", re.DOTALL)


def validator(schema: dict[str, Any]) -> Any:
    """Make the validator of a schema, an object that ``read_json`` returned. Takes ``$schema`` out.

    Raises:
        BadSchema: It cannot be used; says why.
    """
    _refuse_unusable(schema)
    return _Validator(schema, registry=Registry())


def _refuse_unusable(schema: dict[str, Any]) -> None:
    """Raise BadSchema for what would only come to light on an answer, or never. Takes $schema out."""
    # jsonschema would continue with a validator of its own, without our keywords, below a $schema.
    if str(schema.pop("$schema", _DIALECT)).rstrip("#") != _DIALECT:
        raise BadSchema("names a draft other than 2020-12 in $schema")
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
        raise BadSchema("has both unevaluatedProperties and patternProperties, which are not supported together")


def _refuse_part(part: dict[str, Any], resolver: Any) -> None:
    """Raise BadSchema for a pattern or a reference of one schema, without those inside it."""
    if "$schema" in part:
        raise BadSchema("has a $schema below its top level")
    for pattern in (*part.get("patternProperties", ()), *([part["pattern"]] if "pattern" in part else ())):
        try:
            _compiled(pattern)
        except (regex.error, RecursionError, OverflowError) as error:
            raise BadSchema("has a pattern that is not a valid regular expression", f"{pattern}: {error}") from error
    for reference in (part[name] for name in ("$ref", "$dynamicRef") if name in part):
        try:
            resolver.lookup(reference)
        except Unresolvable as error:
            raise BadSchema("has a $ref to nothing inside it (references are never fetched)", reference) from error


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
        return _compiled(pattern).search(text, timeout=max(seconds_left(), 0.001)) is not None
    except TimeoutError:
        raise OutOfTime from None


Keyword = Callable[[Any, Any, Any, Any], Any]


def _timed(keyword: Keyword) -> Keyword:
    """Look at the clock each time a keyword is applied."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        seconds_left()
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
