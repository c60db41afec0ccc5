"""Settings that had another name before. Old names are read in files, flags and stored settings; new ones are written.

What identifies settings (the key of a verifier report, what makes evaluations comparable) is made of the names that
they had first, so that a rename leaves what is stored valid: see ``first_names``.
"""

from collections.abc import Mapping
from typing import Any

# Dotted key of before -> dotted key of today, in the same section.
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
