"""What the user gave, apart from what was resolved from it: in JSON's form, nested as in a settings file."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from ratchet.config.base import Settings


def written(value: Any) -> Any:
    """Put settings as a file would hold them: of each section only what was set, and its kind."""
    if isinstance(value, Settings):
        return {
            field.alias or name: written(getattr(value, name))
            for name, field in type(value).model_fields.items()
            if name in value.model_fields_set or _is_kind(field)
        }
    if isinstance(value, Mapping):
        return {str(name): written(inner) for name, inner in value.items()}
    return [written(inner) for inner in value] if isinstance(value, list | tuple) else value


def with_tuples(value: Any) -> Any:
    """Make tuples of all lists in nested settings."""
    if isinstance(value, Mapping):
        return {name: with_tuples(inner) for name, inner in value.items()}
    return tuple(with_tuples(inner) for inner in value) if isinstance(value, list) else value


def unusual(section: Settings, usual: Settings | None = None) -> dict[str, Any]:
    """Put down what in a section differs from the usual section, or from its own defaults; its kind always."""
    found = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        expected = field.default if usual is None else getattr(usual, name)
        if value == expected and not _is_kind(field):
            continue
        if isinstance(value, Settings):
            value = unusual(value, expected if type(expected) is type(value) else None)
        found[field.alias or name] = written(value)
    return found


def _is_kind(field: FieldInfo) -> bool:
    """Whether a setting names the kind of its section, which decides what else may stand there."""
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
