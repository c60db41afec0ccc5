r"""JSON Schemas (draft 2020-12) that can be trusted with any document: nothing is fetched, nothing hangs.

``jsonschema`` validates, with the keywords of ``schema_keywords``, which is loaded when the first schema is read.
References are looked up within the schema alone. A document whose check takes more than a second of processor time
raises ``OutOfTime``: nested alternatives can take time exponential in the depth. Numbers are compared exactly.

``format`` is a note, as the draft has it, and never a check. Refused: other drafts, a schema of more than 100,000
characters or 64 levels, and ``unevaluatedProperties`` together with ``patternProperties``.
"""

import json
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ratchet.verifiers.json_text import BadSchema, NotJson, deadline, read_json

_LIMIT_SECONDS = 1.0
_MAX_CHARACTERS = 100_000


class JsonSchema:
    """A schema, made of an object that ``read_json`` returned. Safe to use from any thread.

    Raises:
        BadSchema: It cannot be used; says why.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        from ratchet.verifiers import schema_keywords  # here: jsonschema takes a while to load

        self._validator = schema_keywords.validator(schema)

    def accepts(self, document: Any) -> bool:
        """Whether a document that ``read_json`` returned follows the schema. Raises as ``all_follow`` does."""
        return all_follow([(document, self)])

    def _accepts(self, document: Any) -> bool:
        return bool(self._validator.is_valid(document))


def all_follow(documents: Iterable[tuple[Any, JsonSchema]]) -> bool:
    """Whether every document follows its schema, within one time limit for all of them.

    Raises:
        OutOfTime: It cannot be told within a second.
        RecursionError: A schema is infinitely recursive.
    """
    token = deadline.set(time.thread_time() + _LIMIT_SECONDS)
    try:
        return all(schema._accepts(document) for document, schema in documents)
    finally:
        deadline.reset(token)


def json_schema(schema: Any) -> JsonSchema:
    """The schema that an object, or the JSON text of one, stands for.

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
