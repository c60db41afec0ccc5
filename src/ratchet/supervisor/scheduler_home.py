"""One scheduler for a RATCHET_HOME, and its name among those that share a database."""

import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.errors import Conflict
from ratchet.files import disk_full_as_error, make_folder, ratchet_home, unusable_as_error, write_atomically
from ratchet.run import run_lock

_HOME_ADVICE = "Set RATCHET_HOME to a folder that can be written to."


class SchedulerHome:
    """The scheduler's files in a RATCHET_HOME: its lock, its name, its log. They keep the names of version 0.1."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or ratchet_home()
        self.lock_path = self.path / "keeper.lock"
        self.name_path = self.path / "keeper-name"
        self.log_path = self.path / "logs" / "keeper.log"

    @contextmanager
    def held(self) -> Iterator[str]:
        """Hold the scheduler's lock of this home inside the block; yield the scheduler's name.

        The name stays the same over restarts, even if the host name changes: by it the scheduler knows which runs of a
        shared database are its own.

        Raises:
            Conflict: another process is, or the home cannot be written to.
            DiskFull: there is no room.
        """
        with unusable_as_error(self.path, _HOME_ADVICE), disk_full_as_error(self.path):
            make_folder(self.log_path.parent)
            descriptor = run_lock.take(self.lock_path)
        if descriptor is None:
            other = run_lock.holder(self.lock_path)
            who = f" (process {other.pid})" if other else ""
            raise Conflict(
                f"A scheduler is already running for {self.path}{who} and starts what is queued. For a second one, set "
                "RATCHET_HOME to another folder."
            )
        try:
            run_lock.write_holder(descriptor)
            yield self._name()
        finally:
            os.close(descriptor)

    def is_held(self) -> bool:
        """Whether a scheduler is running for this home."""
        return run_lock.is_taken(self.lock_path)

    def _name(self) -> str:
        if self.name_path.exists():
            return self.name_path.read_text(encoding="utf-8").strip()
        machine = re.sub(r"[^\w.-]", "-", socket.gethostname())[:60] or "machine"
        name = f"{machine}-{secrets.token_hex(2)}"
        write_atomically(self.name_path, name.encode())
        return name
