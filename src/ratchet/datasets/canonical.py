"""Rows of any layout in the one form that versions of datasets are stored in, and prompts made of that form.

A stored row is ``{row, prompt, ground_truth}``, with ``rejected`` for preference pairs and with the optional columns it
had: ``row`` is its number in the source, ``prompt`` a list of messages that ends with a user turn, ``ground_truth`` a
text. For demonstrations that is the last assistant message, for preference pairs the chosen answer. A row of the format
prompt may have a ``completion``: the whole answer, where the ground truth is just the part that is checked; without a
ground truth of its own that is the completion too.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ratchet.datasets import row_columns as columns
from ratchet.datasets.readers import BadRow
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.run.records import Message, Prompt

Format = Literal["prompt", "messages", "preference"]

# What a column may be mapped to, and what a ground truth may be called without any mapping.
TARGETS = ("prompt", "ground_truth", "completion", "messages", "chosen", "rejected", *columns.EXTRA_COLUMNS)
_TRUTHS = ("ground_truth", "answer", "solution")
_NEEDED: dict[Format, tuple[str, ...]] = {
    "preference": ("prompt", "chosen", "rejected"),
    "prompt": ("prompt", "ground_truth"),
    "messages": ("messages",),
}
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.-]{0,39}")  # anything else in a first row may be a question, not a name
_MOST_NAMES_SHOWN = 30


@dataclass(frozen=True)
class RowLayout:
    """How a source's rows are read: the format, and for each of our columns what the source calls it."""

    format: Format
    columns: Mapping[str, str]

    @cached_property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """Our column and the source's, of all that a row may have."""
        whole = ("completion",) if self.format == "prompt" else ()
        targets = dict.fromkeys((*columns.EXTRA_COLUMNS, *whole, *self.columns))
        return tuple((target, self.columns.get(target, target)) for target in targets)


def layout_of(row: Mapping[str, Any], mapped: Mapping[str, str], name: str) -> RowLayout:
    """Find out from a table's first row how its rows are read.

    Args:
        row: The first row.
        mapped: Our column -> the source's, as the user gave it.
        name: What messages call the table.

    Raises:
        InvalidSetting: something is mapped to what is no column of ours.
        IncompatibleData: the row has not the columns of any format.
    """
    for target, column in mapped.items():
        if target not in TARGETS:
            raise InvalidSetting(f"Columns can be mapped to {', '.join(TARGETS)}, not to {target}.")
        if _value(row, column) is None:
            raise IncompatibleData(f"{name} has no column {column}, which {target} was mapped to. {_names(row)}")
    found = {target: mapped.get(target, target) for target in TARGETS}
    if "ground_truth" not in mapped:
        truths = (*_TRUTHS, found["completion"])
        found["ground_truth"] = next((name for name in truths if _value(row, name) is not None), "ground_truth")
    for kind, needed in _NEEDED.items():
        # A row with tests needs no ground truth: they say what is right.
        has_tests = _value(row, found["tests"]) is not None
        required = [target for target in needed if not (target == "ground_truth" and has_tests)]
        if all(_value(row, found[target]) is not None for target in required):
            kept = (*needed, *(extra for extra in (*columns.EXTRA_COLUMNS, "completion") if extra in mapped))
            return RowLayout(kind, {target: found[target] for target in kept if _value(row, found[target]) is not None})
    raise IncompatibleData(
        f"{name} begins with a row that has neither messages, nor prompt and ground_truth (or answer, solution, "
        f"completion), nor prompt, chosen and rejected. {_names(row)} Say which is which, such as "
        "--map prompt=question."
    )


def canonical(layout: RowLayout, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row in the stored form.

    Raises:
        BadRow: it cannot be used.
    """
    own = {target: value for target, name in layout.sources if (value := _value(row, name)) is not None}
    own |= {image: row[image] for image in columns.IMAGE_COLUMNS if row.get(image)}
    try:
        stored: dict[str, Any] = {"row": number, **_exchange(layout.format, own), **columns.extras(own)}
    except BadRow as bad:
        raise BadRow(_in_source_words(str(bad), layout)) from None
    return stored


def line_of(stored: Mapping[str, Any]) -> bytes:
    """The line that a stored row is written as, whatever the order of its keys.

    Raises:
        BadRow: an optional column holds what JSON has not.
    """
    try:
        text = json.dumps(stored, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode() + b"\n"
    except (TypeError, ValueError, RecursionError):
        extras = ", ".join(name for name in columns.EXTRA_COLUMNS if name in stored)
        raise BadRow(f"what is in {extras} cannot be written as JSON (text, numbers, lists, objects)") from None


def prompt_of(stored: Mapping[str, Any], kind: Format = "prompt") -> Prompt:
    """The prompt of a stored row, and the answers of a preference pair.

    Its version's format says whether the ground truth is a whole answer to learn from.
    """
    whole = stored.get("completion") if kind == "prompt" else stored["ground_truth"]
    return Prompt(
        id=stored["row"],
        messages=tuple(stored["prompt"]),
        ground_truth=stored["ground_truth"],
        extras=columns.extras(stored),
        demonstration=whole,
        rejected=stored.get("rejected"),
    )


def _exchange(kind: Format, own: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "messages":
        prompt, truth = columns.exchange(own, "messages")
        return {"prompt": prompt, "ground_truth": columns.ground_truth({"messages": truth}, "messages")}
    prompt = columns.messages(own, "prompt")
    if kind == "prompt":
        truth = columns.ground_truth(_as_text(own), "ground_truth")
        return {"prompt": prompt, "ground_truth": truth, **_completion(own, prompt)}
    answers = {name: columns.reply(own, name, prompt) for name in ("chosen", "rejected")}
    truths = {name: columns.ground_truth(answers, name) for name in answers}
    return {"prompt": prompt, "ground_truth": truths["chosen"], "rejected": truths["rejected"]}


def _completion(own: Mapping[str, Any], prompt: tuple[Message, ...]) -> dict[str, str]:
    """The whole answer of a row that has one: text, or the messages of an exchange. Flags and such are none."""
    if not own.get("completion") or not isinstance(own["completion"], str | list):
        return {}
    return {"completion": columns.reply(own, "completion", prompt).strip()}


def _as_text(own: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns with a ground truth that is a list of any kind as JSON text too."""
    truth = own.get("ground_truth")
    if not isinstance(truth, list) or not truth:
        return own
    return {**own, "ground_truth": columns.json_text(truth, "ground_truth")}


def _value(row: Mapping[str, Any], name: str) -> Any:
    """A column's value, also that of a dotted name in an object, such as reward_model.ground_truth."""
    if name in row or "." not in name:
        return row.get(name)
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _in_source_words(reason: str, layout: RowLayout) -> str:
    """Name a column as the source does."""
    for target, name in layout.columns.items():
        if f"the column {target} " in reason and target != name:
            return reason.replace(f"the column {target} ", f"the column {name} ", 1)
    return reason


def _names(row: Mapping[str, Any]) -> str:
    names = [str(name) for name in row]
    if len(names) > _MOST_NAMES_SHOWN or not all(_PLAIN_NAME.fullmatch(name) for name in names):
        return f"Its first row has {len(names)} columns; in a CSV file that row must name them."
    return f"Its columns are {', '.join(names)}." if names else "It has no columns."
