"""Rows that were checked before, so that what takes a tenth of a second a row is done once and not before every start.

Holds hashes of rows that passed, one a line with what was found out, in ``RATCHET_HOME/checked``; a row that did not is
checked again, since whoever corrects it wants to see that. No text of a row is kept. A file that cannot be read or
written costs the time alone.
"""

import hashlib
import json
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from ratchet.files import make_folder, ratchet_home


class CheckedRows:
    """What passed one kind of check under one set of conditions.

    Args:
        kind: Of check; names the file.
        conditions: All that a result depends on beside the row, as JSON has it: limits, versions.
    """

    def __init__(self, kind: str, conditions: Any) -> None:
        self._conditions = json.dumps(conditions, sort_keys=True)
        self._kind = kind

    def key(self, row: Any) -> str:
        """The hash of a row, as JSON has it, under these conditions."""
        return hashlib.sha256(f"{self._conditions}\n{json.dumps(row, sort_keys=True)}".encode()).hexdigest()

    def found(self, key: str) -> list[str] | None:
        """What was found out about that row when it passed, None if it has not."""
        return self._known.get(key)

    def add(self, key: str, found: list[str]) -> None:
        """Remember that it passed."""
        self._known[key] = found
        with suppress(OSError):
            make_folder(self._path.parent)
            # One write of one short line: processes that append at once do not tear each other's.
            with self._path.open("a", encoding="ascii") as file:
                file.write(f"{key} {json.dumps(found)}\n")

    @property
    def _path(self) -> Path:
        return ratchet_home() / "checked" / f"{self._kind}.txt"

    @cached_property
    def _known(self) -> dict[str, list[str]]:
        known = {}
        with suppress(OSError, ValueError):
            for line in self._path.read_text(encoding="ascii").splitlines():
                key, _, found = line.partition(" ")
                with suppress(ValueError):  # a torn or damaged line is of no row
                    known[key] = [str(one) for one in json.loads(found)]
        return known
