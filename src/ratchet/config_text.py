"""Settings as people write them: YAML files, and flags such as ``--rl.rounds 6`` or ``--rounds 6``.

Turns text into a RunConfig and what pydantic finds wrong into sentences with the labels that users see. Knows no
command line: ``cli`` hands over keys and texts.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ratchet.config import RunConfig, walk_settings
from ratchet.errors import InvalidSetting


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-4 is a number, as in YAML 1.2; the 1.1 rules of the library read it as a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_file(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file of settings.

    Raises:
        InvalidSetting: it is missing, unreadable, or not a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), _Loader)
    except OSError as error:
        raise InvalidSetting(f"The settings file {path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise InvalidSetting(f"The settings file {path} is not valid YAML{where}.") from error
    if not isinstance(content, dict):
        raise InvalidSetting(f"The settings file {path} holds no settings: it must be a mapping such as model: tiny.")
    return content


def build(settings: Mapping[str, Any], flags: Mapping[str, str] | None = None) -> RunConfig:
    """Make a run's settings from nested values and, over them, flags by key.

    Args:
        settings: Nested mapping, as in a file.
        flags: Key (dotted, or a leaf's name where only one section has it) -> text.

    Raises:
        InvalidSetting: one sentence for each setting that is wrong.
    """
    merged = json.loads(_as_json(settings))
    for key, text in (flags or {}).items():
        _set(merged, full_key(key), text)
    try:
        return RunConfig.model_validate_json(json.dumps(merged))
    except ValidationError as error:
        raise _explained(error) from error


def _as_json(settings: Mapping[str, Any]) -> str:
    try:
        return json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidSetting(
            "The settings hold a value that is neither text, number, yes/no, list nor mapping (dates and NaN are not): "
            "put quotes around it."
        ) from error


def keys() -> dict[str, list[FieldInfo]]:
    """Return every dotted key with its fields: one per variant of its section."""
    found: dict[str, list[FieldInfo]] = {}
    for key, field in walk_settings(RunConfig):
        found.setdefault(key, []).append(field)
    return found


def short_keys() -> dict[str, str]:
    """Return leaf name -> dotted key, for the leaves that one key alone ends with; a top-level key wins."""
    owners: dict[str, set[str]] = {}
    for key in keys():
        owners.setdefault(key.rpartition(".")[2], set()).add(key)
    return {
        leaf: leaf if leaf in whole else next(iter(whole))
        for leaf, whole in owners.items()
        if len(whole) == 1 or leaf in whole
    }


def full_key(key: str) -> str:
    """Return the dotted key that a flag means.

    Raises:
        InvalidSetting: there is no such setting, or several sections have it.
    """
    known = keys()
    if key in known:
        return key
    short = short_keys()
    if key in short:
        return short[key]
    several = sorted(k for k in known if k.endswith(f".{key}"))
    if several:
        raise InvalidSetting(f"Setting {key} could mean {' or '.join(several)}. Write it in full.", key)
    raise InvalidSetting(f"There is no setting {key}. See ratchet train --help for all of them.", key)


def _set(settings: dict[str, Any], key: str, text: str) -> None:
    section = settings
    *path, leaf = key.split(".")
    for name in path:
        inner = section.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InvalidSetting(f"Setting {name} must be a section with settings in it.", key)
        section = inner
    section[leaf] = _typed(key, text)


def _typed(key: str, text: str) -> Any:
    """Return a flag's text as the type that its setting has; left as text where none fits, for the error to name."""
    for field in keys()[key]:
        # The type alone, not its limits: those are checked once, on the whole, with the value shown as it was meant.
        adapter: TypeAdapter[Any] = TypeAdapter(field.annotation)
        for parse in (_none, adapter.validate_strings, _json):
            try:
                return adapter.dump_python(adapter.validate_python(parse(text)), mode="json")
            except (ValidationError, ValueError):
                continue
    return text


def _none(text: str) -> None:
    if text not in ("none", "null"):
        raise ValueError("a value")


def _json(text: str) -> Any:
    if text[:1] not in "[{":
        raise ValueError("not a list or mapping")
    return json.loads(text)


def _explained(error: ValidationError) -> InvalidSetting:
    """Put pydantic's findings into sentences: the label, the value, the limit."""
    sentences, first = [], ""
    for finding in error.errors(include_url=False):
        key = _key_of(finding["loc"])
        first = first or key
        sentences.append(_sentence(key, dict(finding)))
    return InvalidSetting(" ".join(dict.fromkeys(sentences)), first)


def _key_of(location: tuple[Any, ...]) -> str:
    """Return the dotted key of a finding; the names of variants that pydantic puts between are left out."""
    names = [str(part) for part in location]
    known = keys()
    sections = {key.rpartition(".")[0] for key in known}
    path: list[str] = []
    for name in names:
        candidate = ".".join([*path, name])
        if candidate in known or candidate in sections or name == names[-1]:
            path.append(name)
    return ".".join(path)


def _sentence(key: str, finding: dict[str, Any]) -> str:
    kind, context, value = finding["type"], finding.get("ctx", {}), finding.get("input")
    fields = keys().get(key)
    label = (fields[0].title if fields and fields[0].title else None) or key
    name = f"{label} ({key})" if key and label != key else (label or "The settings")
    if kind == "value_error":
        return str(context["error"])
    if kind == "extra_forbidden":
        return f"There is no setting {key}. See ratchet train --help for all of them."
    if kind == "missing":
        return f"{name} is missing. Give it a value."
    limit = {
        "greater_than_equal": "it must be at least {ge}",
        "greater_than": "it must be above {gt}",
        "less_than_equal": "it must be at most {le}",
        "less_than": "it must be below {lt}",
        "literal_error": "it must be one of {expected}",
        "string_too_short": "it must not be empty",
        "string_too_long": "it must have at most {max_length} characters",
        "string_pattern_mismatch": "it must match {pattern}",
        "too_long": "it must have at most {max_length} entries",
        "union_tag_invalid": "it must be one of {expected_tags}",
        "int_type": "it must be a whole number",
        "int_from_float": "it must be a whole number",
        "float_type": "it must be a number",
        "finite_number": "it must be a finite number",
        "string_type": "it must be a text",
        "model_type": "it must be a section with settings in it",
        "model_attributes_type": "it must be a section with settings in it",
    }.get(kind)
    if kind == "union_tag_not_found":
        return f"{name} needs {context['discriminator']}."
    said = limit.format(**context) if limit else finding["msg"][0].lower() + finding["msg"][1:]
    shown = json.dumps(value, default=str)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{name} is {shown}; {said}."
