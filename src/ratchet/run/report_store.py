"""Where verifier report cards are on disk: one folder a key, under ``RATCHET_HOME/reports``.

    KEY/
      report.json        the card
      report.html        its HTML version
      confirmation.json  who has read it, if anyone

They hold texts of prompts and answers, so folders and files are readable by their owner alone. Files are written to a
temporary name, synced and renamed, the card last. A confirmation is of one card: where another took its place, the
confirmation counts no more.
"""

import fcntl
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from ratchet.errors import NotFound
from ratchet.files import (
    damage_as_error,
    disk_full_as_error,
    make_folder,
    ratchet_home,
    unusable_as_error,
    write_atomically,
)
from ratchet.run.report_card import Confirmation, ReportCard

_KEY = re.compile(r"[0-9a-f]{32}")
_ADVICE = "It is where Ratchet keeps its reports: set RATCHET_HOME to a folder that can be written to."


class ReportFolder:
    """The files of one report. Creating the object touches nothing."""

    def __init__(self, key: str) -> None:
        if not _KEY.fullmatch(key):
            raise NotFound(f"There is no report {key[:40]}: a report's key has 32 digits and letters from a to f.")
        self.key = key
        self.path = ratchet_home() / "reports" / key
        self.card_path = self.path / "report.json"
        self.page_path = self.path / "report.html"
        self._confirmation_path = self.path / "confirmation.json"

    def card(self) -> ReportCard | None:
        """Card, None where none was made.

        Raises:
            Conflict: the file is damaged, or of another version of Ratchet.
        """
        if not self.card_path.is_file():
            return None
        with damage_as_error(self.card_path):
            return ReportCard.model_validate(json.loads(self.card_path.read_bytes()))

    def write(self, card: ReportCard, page: str) -> None:
        """Store a card with its page. One that says the same as the stored one changes nothing.

        Raises:
            DiskFull, Conflict: the folder cannot be written to.
        """
        with self._locked():
            if self.card_path.is_file() and _content(self.card()) == _content(card):
                return
            write_atomically(self.page_path, page.encode(), private=True)
            write_atomically(self.card_path, _json(card.model_dump(mode="json")), private=True)

    def confirmation(self) -> Confirmation | None:
        """Who has read the card that is there now, None where nobody said so.

        Raises:
            Conflict: a file is damaged.
        """
        if not self._confirmation_path.is_file() or not self.card_path.is_file():
            return None
        with damage_as_error(self._confirmation_path):
            found = Confirmation.model_validate(json.loads(self._confirmation_path.read_bytes()))
        return found if found.report_sha256 == self.card_sha256() else None

    def confirm(self, confirmation: Confirmation) -> None:
        """Store that somebody has read the card."""
        with self._locked():
            write_atomically(self._confirmation_path, _json(confirmation.model_dump(mode="json")), private=True)

    def card_sha256(self) -> str:
        """A hash of the stored card.

        Raises:
            Conflict: it cannot be read.
        """
        with damage_as_error(self.card_path):
            return hashlib.sha256(self.card_path.read_bytes()).hexdigest()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Make the folder and keep other processes from writing to it: two runs may make the same report at once."""
        with unusable_as_error(self.path, _ADVICE):
            with disk_full_as_error(self.path):
                for folder in (self.path.parent, self.path):
                    make_folder(folder, private=True)
                lock = (self.path / ".lock").open("w")
            with lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield


def _json(content: object) -> bytes:
    return json.dumps(content, indent=1, allow_nan=False).encode()


def _content(card: ReportCard | None) -> dict[str, object] | None:
    """What a card says, whenever it was made."""
    return None if card is None else card.model_dump(exclude={"made_at"})
