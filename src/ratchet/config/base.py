"""What every class of settings is made of, and the walk over all of them that surfaces build on."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


def setting(default: Any, *, label: str, help: str, unit: str = "", typed: bool = True, **limits: Any) -> Any:
    """Declare one setting. ``label`` and ``help`` are required so that no surface invents them.

    One that is not ``typed`` is filled in by Ratchet, or given in a file: there is no flag for it.
    """
    return Field(default, title=label, description=help, json_schema_extra={"unit": unit, "typed": typed}, **limits)


class Settings(BaseModel):
    """Base of all settings: frozen, no unknown keys, no NaN, and ``true`` is not 1.

    A setting whose name Python needs for itself has an alias, which is its name everywhere but in Python attributes.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, serialize_by_alias=True)


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
    """Return the settings classes that an annotation consists of, none if it is a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    if get_origin(annotation) is tuple:
        return []
    return [part for argument in get_args(annotation) for part in _sections(argument)]
