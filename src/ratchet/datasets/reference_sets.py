"""Texts of rows that runs are scored on and never read: what the leak guard compares training rows with.

Knows the layouts that questions come in, not the answers. Only the checks before a run read such rows, never the
worker.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ratchet.datasets.leak_guard import NEAR_WORDS, RowText
from ratchet.errors import IncompatibleData

# The first of these columns that a row has holds its question, as text or as messages.
QUESTION_COLUMNS = ("prompt", "messages", "question", "problem")


class ReferenceSet(NamedTuple):
    """Rows to score on: a JSONL file, what messages call it, and whether the user asked for just this file.

    ``is_benchmark``: whether it is a stored benchmark (``ratchet bench list``) and not a split of a dataset.
    """

    name: str
    file: Path
    is_asked_for: bool = False
    is_benchmark: bool = False


def texts(reference: ReferenceSet) -> Iterator[RowText]:
    """Yield the text of each row, numbered as in the source it was made from, else by its place from 1 on.

    Raises:
        IncompatibleData: the file cannot be read, or a row has no question.
    """
    try:
        with reference.file.open(encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate((line for line in lines if line.strip()), start=1):
                yield _row(reference, number, line)
    except OSError as error:
        raise IncompatibleData(f"{reference.file} cannot be read: {error.strerror}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise IncompatibleData(f"{reference.file} is not UTF-8 text.") from error


def text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text by which the leak guard knows a conversation: its last user turn.

    A short turn after others, such as "And why?", says nothing by itself: the turns before it are part of it then.
    """
    users = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not users:
        return ""
    last = str(messages[users[-1]]["content"])
    if len(users) == 1 or len(last.split()) >= NEAR_WORDS:
        return last
    return "\n".join(str(one["content"]) for one in messages[: users[-1] + 1] if one["role"] != "system")


def _row(reference: ReferenceSet, number: int, line: str) -> RowText:
    try:
        row = json.loads(line)
        asked = next(row[column] for column in QUESTION_COLUMNS if row.get(column))
        text = asked if isinstance(asked, str) else text_of(asked)
        given = row.get("row")
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError, StopIteration):
        columns = ", ".join(QUESTION_COLUMNS)
        raise IncompatibleData(
            f"Row {number} of {reference.file} has no question. Each row is a JSON object with one of the columns "
            f"{columns}."
        ) from None
    return RowText(reference.name, given if isinstance(given, int) else number, text)
