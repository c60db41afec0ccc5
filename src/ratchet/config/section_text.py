"""Small classes of settings as people write them: KEY=VALUE texts, such as those of an endpoint or a loop.

A whole run's settings are read in ``config_text.py``, whose words for what is wrong are used here too.
"""

import difflib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from ratchet.config import Settings, walk_settings
from ratchet.config.config_text import limit_in_words, shown_value, typed_text
from ratchet.errors import InvalidSetting

Section = TypeVar("Section", bound=Settings)


def build_section(kind: type[Section], given: Mapping[str, Any]) -> Section:
    """Make settings of texts by key; what is no text is taken as it is.

    Raises:
        InvalidSetting: one sentence for each setting that is wrong.
    """
    known = dict(walk_settings(kind))
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f" Did you mean {close[0]}?" if close else f" There are {', '.join(known)}."
            raise InvalidSetting(f"There is no setting {key} here.{meant}", key)
        values[name] = typed_text([known[name]], value) if isinstance(value, str) else value
    try:
        return kind.model_validate_json(json.dumps(values))
    except ValidationError as error:
        sentences = []
        for finding in error.errors(include_url=False):
            name = ".".join(str(part) for part in finding["loc"][:1])
            sentences.append(_sentence(known.get(name), name, dict(finding), hides="input" not in finding))
        first = next((str(one["loc"][0]) for one in error.errors() if one["loc"]), "")
        raise InvalidSetting(" ".join(dict.fromkeys(sentences)), first) from error


def _sentence(field: Any, name: str, finding: dict[str, Any], *, hides: bool) -> str:
    """Say what is wrong with one setting."""
    if finding["type"] == "value_error":
        return str(finding["ctx"]["error"])
    label = name if field is None or field.title in (None, name) else f"{field.title} ({name})"
    if finding["type"] == "missing":
        return f"{label} is missing. Give it a value."
    if finding["type"] == "string_pattern_mismatch" and field is not None:
        return f"{label} cannot be used as given; what it can be: {field.description}"
    value = "what was given" if hides else shown_value(finding.get("input"))
    return f"{label} is {value}; it must be {limit_in_words(finding)}."
