"""One keeper for a RATCHET_HOME, and what it is called among those that share a database."""

import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.errors import Conflict
from ratchet.files import disk_full_as_error, ratchet_home, unusable_as_error, write_atomically
from ratchet.run import run_lock

_HOME_ADVICE = "Set RATCHET_HOME to a folder that can be written to."


class KeeperHome:
    """The keeper's files in a RATCHET_HOME: its lock, its name, its log."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or ratchet_home()
        self.lock_path = self.path / "keeper.lock"
        self.name_path = self.path / "keeper-name"
        self.log_path = self.path / "logs" / "keeper.log"

    @contextmanager
    def held(self) -> Iterator[str]:
        """Be the keeper of this home inside the block; yield its name.

        The name stays the same over restarts, also where the machine is called otherwise each time: by it the keeper
        knows which runs of a shared database are its own.

        Raises:
            Conflict: another process is, or the home cannot be written to.
            DiskFull: there is no room.
        """
        with unusable_as_error(self.path, _HOME_ADVICE), disk_full_as_error(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self.log_path.parent.mkdir(exist_ok=True)
            descriptor = run_lock.take(self.lock_path)
        if descriptor is None:
            other = run_lock.holder(self.lock_path)
            who = f" (process {other.pid})" if other else ""
            raise Conflict(
                f"A keeper looks after {self.path} already{who}. One is enough: it starts what is queued. For a second "
                "one set RATCHET_HOME to another folder."
            )
        try:
            run_lock.write_holder(descriptor)
            yield self._name()
        finally:
            os.close(descriptor)

    def is_held(self) -> bool:
        """Tell whether a keeper looks after this home now."""
        return run_lock.is_taken(self.lock_path)

    def _name(self) -> str:
        if self.name_path.exists():
            return self.name_path.read_text(encoding="utf-8").strip()
        machine = re.sub(r"[^\w.-]", "-", socket.gethostname())[:60] or "machine"
        name = f"{machine}-{secrets.token_hex(2)}"
        write_atomically(self.name_path, name.encode())
        return name
