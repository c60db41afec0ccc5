"""The walk over all settings that surfaces build on, and what every class of settings is made of."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from ratchet.verifiers.settings import Settings as Settings
from ratchet.verifiers.settings import setting as setting


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
