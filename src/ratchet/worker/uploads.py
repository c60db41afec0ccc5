"""Sending a run's files to the storage of artifacts while it goes on, where RATCHET_ARTIFACTS names one.

A thread does the sending; a round only wakes it. What fails never ends a run: it is noted once, tried again after the
next round and at the end, and what is missing then is said. At the end the adapter goes first, and all of it takes no
longer than closing may. The journal's last event is sent after it was written.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import DiskFull, RatchetError
from ratchet.run.display import listed
from ratchet.run.events import Event, Listener, RoundDone
from ratchet.worker.session import Session

if TYPE_CHECKING:
    from ratchet.store.artifact_store import ArtifactStore

log = logging.getLogger(__name__)

# What sending may take where no time limit is near, at least, and for the event that ends the run: in all less than
# the three minutes after which a run that was asked to stop is killed.
_CLOSING_SECONDS, _LEAST_SECONDS, _LAST_SECONDS = 120.0, 5.0, 20.0
_SECONDS_BETWEEN_SIGNS = 1.0
_SHOWN = 3  # files named in a note

_State = tuple[int, int, int]


@contextmanager
def uploading(session: Session) -> Iterator[Callable[[], None]]:
    """Send what each round leaves inside the block; yield what sends the rest, to be called before the run is closed.

    That sets the session's ``artifacts_url`` where the storage has files of the run.
    """
    from ratchet.store.artifact_store import ArtifactStore, artifacts_url

    url = artifacts_url()
    if url is None:
        yield lambda: None
        return
    try:
        store = ArtifactStore(url)
    except RatchetError as error:
        # Refused before a run is made; a worker that was started elsewhere may still have been given something else.
        reason = str(error)
        yield lambda: _note(session, f"This run's files are in its folder alone. {reason}")
        return
    uploads = _Uploads(session, store)
    session.listeners.append(Listener(uploads.on_event))
    try:
        yield uploads.finish
        uploads.send_last()
    except Exception:
        uploads.send_last()  # how it failed is what somebody will want to read
        raise
    finally:
        uploads.sender.give_up()


def _note(session: Session, text: str) -> None:
    if session.is_started:
        with suppress(DiskFull):
            session.note(text)


class _Uploads:
    """The worker's side: wakes the sender, and says what came of it."""

    def __init__(self, session: Session, store: "ArtifactStore") -> None:
        self._session = session
        self._run = session.folder.run_id
        self._url = store.url_of(self._run)
        self.sender = _Sender(store, self._run, session.folder.path)
        self._has_noted = False
        self._is_whole = False

    def on_event(self, event: Event) -> None:
        """Send what a finished round has left."""
        if not isinstance(event, RoundDone):
            return
        if self.sender.fault and not self._has_noted:
            self._has_noted = True
            again = "The run continues; its files are sent again after each round and at its end."
            _note(self._session, f"{self.sender.fault} {again}")
        self.sender.ask()

    def finish(self) -> None:
        """Send the rest, the adapter first, as far as it gets in the time that closing may take."""
        session = self._session
        if not session.is_started:
            return
        seconds = _seconds_for_closing(session)
        self.sender.ask(at_once=True)
        self._is_whole = self._waited(seconds) and not self.sender.fault
        session.artifacts_url = self._url if self.sender.has_sent else ""
        if not self._is_whole:
            self.sender.give_up()
            missing = self.sender.missing()
            why = self.sender.fault or f"The {seconds:.0f} seconds that closing may take were not enough for them."
            _note(
                session,
                f"{len(missing)} files of this run are not in {self._url} ({listed(missing, _SHOWN)}). {why} "
                f"Send them with ratchet runs upload {self._run}",
            )

    def send_last(self) -> None:
        """Send the event that ended the run, where all before it was sent."""
        if not self._is_whole:
            return
        self.sender.ask()
        if not self._waited(_LAST_SECONDS) or self.sender.fault:
            _note(
                self._session,
                f"How this run ended is not in {self._url}. Send it with ratchet runs upload {self._run}",
            )

    def _waited(self, seconds: float) -> bool:
        """Wait for the sender; tell whether it is done. Whoever watches sees that the run has not come to a halt."""
        deadline = time.monotonic() + seconds
        shown = None
        while not self.sender.waited(max(0.0, min(_SECONDS_BETWEEN_SIGNS, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
            self._session.progressed()  # it waits for no longer than it may
            if shown != (shown := self.sender.pieces):
                self._session.on_progress("uploading", 0, 0)
        return True


def _seconds_for_closing(session: Session) -> float:
    limit = session.budget.limit_seconds
    left = _CLOSING_SECONDS if limit is None else limit - session.budget.elapsed
    return max(_LEAST_SECONDS, min(_CLOSING_SECONDS, left))


class _GivenUpError(Exception):
    """Something more urgent is to be sent, or nothing any more."""


class _Sender:
    """The thread that sends. ``fault`` is what the last try met, in words; ``pieces`` goes up with what is sent."""

    def __init__(self, store: "ArtifactStore", run: str, folder: Path) -> None:
        self.fault = ""
        self.has_sent = False
        self.pieces = 0
        self._store, self._run, self._folder = store, run, folder
        self._sent: dict[str, _State] = {}
        self._changed = threading.Condition()
        self._asked = self._done = 0
        self._is_cut = self._is_over = False
        threading.Thread(target=self._work, name="uploads", daemon=True).start()

    def ask(self, *, at_once: bool = False) -> None:
        """Have what is new sent; ``at_once``: what is being sent is given up, to begin with the adapter."""
        with self._changed:
            self._asked += 1
            self._is_cut = at_once
            self._changed.notify_all()

    def waited(self, seconds: float) -> bool:
        """Wait until all that was asked for has been tried; tell whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= self._asked, seconds)

    def give_up(self) -> None:
        """Send nothing any more. A piece under way is not waited for."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def missing(self) -> list[str]:
        """Files that have not been sent as they are now."""
        from ratchet.store.artifact_store import files_of

        return [path for path in files_of(self._folder) if self._sent.get(path) != self._state(path)]

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._asked > self._done)
                if self._is_over:
                    return
                asked, self._is_cut = self._asked, False
            try:
                self._send()
                self.fault = ""
            except _GivenUpError:
                pass
            except RatchetError as error:
                self.fault = str(error)
            except Exception as error:
                log.exception("sending artifacts failed")
                self.fault = f"Sending this run's files failed unforeseen ({type(error).__name__})."
            with self._changed:
                self._done = asked
                self._changed.notify_all()

    def _send(self) -> None:
        """Send in three parts, each with its manifest: the adapter and what it is, the checkpoint, the rollouts."""
        from ratchet.store.artifact_store import files_of, in_parts

        for part in in_parts(files_of(self._folder)):
            states = {path: self._state(path) for path in part}
            self._store.upload(self._run, self._folder, part, check=self._check)
            self.has_sent = True
            self._sent |= {path: state for path, state in states.items() if state is not None}

    def _check(self) -> None:
        self.pieces += 1
        if self._is_cut or self._is_over:
            raise _GivenUpError

    def _state(self, path: str) -> _State | None:
        try:
            status = (self._folder / path).stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns
