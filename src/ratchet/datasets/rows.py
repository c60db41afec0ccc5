"""Rows and what is wrong with them: every row is converted, and bad ones are named by number.

Knows nothing of columns: what a row must hold is in ``row_columns.py`` and in each source; where rows come from is in
``tables.py``. A row's number counts the rows of its table from 1; blank lines are no rows.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ratchet.datasets.readers import BadRow, Table
from ratchet.errors import IncompatibleData

MOST_NAMED_ROWS = 20

Row = Mapping[str, Any]
Converted = TypeVar("Converted")


class BadRows:
    """Counts the bad rows of a table and keeps the first ones by number."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[tuple[int, str]] = []

    def add(self, number: int, reason: str) -> None:
        """Note that a row is bad, and why; the reason completes "row 3: ..." and never quotes the row."""
        self.count += 1
        if len(self._first) < MOST_NAMED_ROWS:
            self._first.append((number, reason))

    def named(self) -> str:
        """List bad rows by reason, and count those left out of the list."""
        by_reason: dict[str, list[int]] = {}
        for number, reason in self._first:
            by_reason.setdefault(reason, []).append(number)
        parts = [
            f"{'row' if len(numbers) == 1 else 'rows'} {', '.join(map(str, numbers))}: {reason}"
            for reason, numbers in by_reason.items()
        ]
        if self.count > MOST_NAMED_ROWS:
            parts.append(f"and {self.count - MOST_NAMED_ROWS:,} more")
        return "; ".join(parts)


def converted(table: Table, convert: Callable[[int, Row], Converted]) -> Iterator[Converted]:
    """Yield every row as ``convert`` makes it, which is given the row's number and raises ``BadRow``.

    Bad rows are passed over until the table has been read, so that all of them can be named.

    Raises:
        IncompatibleData: at the end: there were bad rows, or none at all.
    """
    faults = BadRows()
    number = 0
    for number, raw in enumerate(table, start=1):
        try:
            yield convert(number, decoded(raw))
        except BadRow as bad:
            faults.add(number, str(bad))
    if faults.count:
        count = "1 row" if faults.count == 1 else f"{faults.count:,} rows"
        raise IncompatibleData(
            f"{table.name} has {count} that cannot be used: {faults.named()}. Correct or remove them."
        )
    if not number:
        raise IncompatibleData(f"{table.name} holds no rows.")


def decoded(raw: bytes | Row | BadRow) -> Row:
    """Decode what a table yielded as a row.

    Raises:
        BadRow: it is none.
    """
    if isinstance(raw, BadRow):
        raise raw
    if not isinstance(raw, bytes):
        return raw
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRow("not valid UTF-8") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadRow("not valid JSON") from None
    if not isinstance(value, dict):
        raise BadRow("not a JSON object")
    return value
