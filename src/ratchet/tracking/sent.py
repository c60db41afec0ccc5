"""What is sent to a tracker: a round's numbers and a run's settings, flat names with plain values. No texts of rows."""

import json
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from ratchet.config import RunConfig
from ratchet.run.records import RoundRecord

# Written by people for the model, or worth an answer: none of a tracker's business. Under these names, anywhere below.
_TEXTS = {
    "prompt": {"system_prompt", "few_shot_examples", "template_options"},
    "verifier": {"source", "labels", "schema", "json_schema"},
    "watch": {"source", "labels", "schema", "json_schema"},
    "reward": {"format_reason", "format_pattern"},
}
_LONGEST_SETTING = 200  # characters; MLflow refuses what is much longer
_LONGEST_NAME = 200
# What MLflow takes in a name, the strictest of the four; a verifier may call its parts anything.
_UNUSUAL = re.compile(r"[^\w\-./ ]", re.ASCII)
# No measures: they place a number, or come apart from it.
_LEFT_OUT = {"round", "prompt_ids", "best_round", "best_accuracy", "groups", "informative_groups"}
_SECTIONS = {"learned": "update", "watch_failures": "watch_failed", "failures": "failed"}


def numbers_of(record: RoundRecord) -> dict[str, float]:
    """A round's numbers by name, such as ``reward``, ``validation/accuracy`` and ``update/loss``."""
    found = dict(_numbers("", record.model_dump(mode="json", exclude=_LEFT_OUT)))
    found["best/round"] = float(record.best_round)
    if record.best_accuracy is not None:
        found["best/accuracy"] = record.best_accuracy
    if record.groups:
        found["signal"] = record.signal_fraction
    return {_name(name): value for name, value in found.items() if isfinite(value)}


def _numbers(place: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in fields.items():
        where = f"{place}{_SECTIONS.get(name, name)}"
        if isinstance(value, Mapping):
            yield from _numbers(f"{where}/", value)
        elif isinstance(value, int | float):
            yield where, float(value)


def _name(name: str) -> str:
    return _UNUSUAL.sub("_", name)[:_LONGEST_NAME]


def settings_of(config: RunConfig) -> dict[str, str | int | float | bool]:
    """A run's settings by dotted key; without texts, and without those that are empty or long."""
    fields = config.model_dump(mode="json", exclude={"given"})
    return {_name(key): value for section in fields for key, value in _settings(section, section, fields[section])}


def _settings(section: str, key: str, value: Any) -> Iterator[tuple[str, str | int | float | bool]]:
    if key.rpartition(".")[2] in _TEXTS.get(section, ()) or value is None:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _settings(section, f"{key}.{name}", inner)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for number, inner in enumerate(value):
            yield from _settings(section, f"{key}.{number}", inner)
    else:
        plain = json.dumps(value) if isinstance(value, list) else value
        if not isinstance(plain, str) or 0 < len(plain) <= _LONGEST_SETTING:
            yield key, plain
