"""Copies of a run's settings with changes: the user's own, after which the rest is resolved anew, and Ratchet's."""

import copy
import json
from collections.abc import Collection, Mapping
from typing import Any

from ratchet.config.base import unusual, written
from ratchet.config.config_text import build, set_at, typed_text
from ratchet.config.run import RunConfig
from ratchet.config.setting_words import full_key, keys

# Which contents a section names, and what pins them once they are known. A copy keeps the pins while the names stay.
_CONTENTS = {
    "data": ({"source", "name", "path"}, ("name", "version", "revision", "content_hash")),
    "verifier": ({"kind", "metric", "version", "source", "parts"}, None),
    "watch": ({"kind", "metric", "version", "source", "parts"}, None),
    "start_from": ({"adapter"}, None),
}
# Sections that belong to the rows: another source brings its own.
_OF_SOURCE = ("data", "verifier", "prompt", "reward")


def with_changes(config: RunConfig, changes: Mapping[str, str]) -> RunConfig:
    """Lay changes, texts by key, over what a run was given. Whoever checks the result next resolves it anew.

    A setting that was given stays, whatever it was filled in from changes; contents that were pinned (a commit, a
    version, a hash) stay pinned while no change names others.

    Raises:
        InvalidSetting: a change cannot be made.
    """
    changed = {full_key(key): text for key, text in changes.items()}
    settings = with_pins(config, changed)
    if changed.get("data.source", config.data.source) != config.data.source:
        for section in _OF_SOURCE:
            settings.pop(section, None)
    if "start_from.adapter" in changed:  # rank and alpha are those of the new adapter
        settings.pop("start_from", None)
        settings.pop("lora", None)
    for section in ("verifier", "watch"):
        kind = getattr(getattr(config, section), "kind", None)
        if changed.get(f"{section}.kind", kind) != kind:
            settings.pop(section, None)
    if "rl.max_steps" in changed or "rl.rounds" in changed:  # one of the two says how long a run is
        for name in ("max_steps", "rounds"):
            settings.get("rl", {}).pop(name, None)
    if changed.get("objective", config.objective) != config.objective:
        settings.pop("preset", None)
    return build(settings, changed)


def with_pins(config: RunConfig, changed: Collection[str] = ()) -> dict[str, Any]:
    """Put down what was given, with the contents that it names as they were pinned."""
    settings = copy.deepcopy(config.given)
    if "revision" not in changed and "model" not in changed and config.revision != "main":
        settings["revision"] = config.revision
    for section, (names, pins) in _CONTENTS.items():
        value = getattr(config, section)
        of_section = {key.partition(".")[2] for key in changed if key.startswith(f"{section}.")}
        if value is None or of_section & names or not (section in settings or of_section):
            continue
        found = unusual(value)
        if pins is None or section not in settings:
            settings[section] = found
        else:
            settings[section] |= {name: found[name] for name in pins if name in found}
            if "version" in of_section:
                settings[section].pop("content_hash", None)
    return settings


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Set single settings by dotted key and note them as given. Nothing else is resolved anew, or counts as set.

    Args:
        config: Settings as given, or as they are stored with a run, a loop or an experiment.
        values: Texts are read as flags are; a mapping takes the place of a whole section.

    Raises:
        InvalidSetting: a value is none that the setting can have.
    """
    settings = written(config)
    for name, value in values.items():
        key = name if name in RunConfig.model_fields else full_key(name)
        if isinstance(value, str) and key in keys():
            value = typed_text(keys()[key], value)
        for target in (settings, settings["given"]):
            set_at(target, key, copy.deepcopy(value))
    return build(json.loads(json.dumps(settings)))
