"""What every class of settings is made of: the walk that surfaces build on, former names, and what a user gave.

What identifies settings (the key of a verifier report, what makes evaluations comparable) is made of the names that
they had first, so that a rename leaves what is stored valid: see ``first_names``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from ratchet.verifiers.settings import Settings as Settings
from ratchet.verifiers.settings import setting as setting

# Renamed settings: dotted key of before -> dotted key of today, in the same section. Old names are read in files, flags
# and stored settings; new ones are written.
RENAMED = {"prompt.worked_examples": "prompt.few_shot_examples"}


def current_key(key: str) -> str:
    """Today's name of a setting, given by its dotted key or by the last part of it."""
    for old, new in RENAMED.items():
        if key == old:
            return new
        if key == old.rpartition(".")[2]:
            return new.rpartition(".")[2]
    return key


def with_current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Give settings, nested as in a file, today's names. One under both names stays, and is refused as unknown."""
    renamed = dict(settings)
    for old, new in RENAMED.items():
        section, _, name = old.rpartition(".")
        values, leaf = renamed.get(section), new.rpartition(".")[2]
        if isinstance(values, Mapping) and name in values and leaf not in values:
            renamed[section] = {leaf if key == name else key: value for key, value in values.items()}
    return renamed


def first_names(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Give the settings of a section the names that they had first, for whatever is compared or hashed."""
    old_names = {new: old.rpartition(".")[2] for old, new in RENAMED.items()}
    return {old_names.get(f"{section}.{name}", name): value for name, value in values.items()}


def walk_settings(model: type[Settings], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield ``("rl.rounds", field)`` pairs, depth first; a key of several variants comes once per variant.

    Surfaces build on this alone.
    """
    for name, field in model.model_fields.items():
        parts = _sections(field.annotation)
        if parts:
            for part in parts:
                yield from walk_settings(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{field.alias or name}", field


def _sections(annotation: Any) -> list[type[Settings]]:
    """The settings classes that an annotation consists of, none if it is a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    if get_origin(annotation) is tuple:
        return []
    return [part for argument in get_args(annotation) for part in _sections(argument)]


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
        expected = field.get_default(call_default_factory=True) if usual is None else getattr(usual, name)
        if value == expected and not _is_kind(field):
            continue
        if isinstance(value, Settings):
            value = unusual(value, expected if type(expected) is type(value) else None)
        found[field.alias or name] = written(value)
    return found


def _is_kind(field: FieldInfo) -> bool:
    """Whether a setting names the kind of its section, which decides what else may stand there."""
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
