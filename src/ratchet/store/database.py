"""The connection to the database: where it is, how it is brought up to date, and what its faults are called.

SQLite in ``RATCHET_HOME/ratchet.db`` unless ``RATCHET_DATABASE`` holds another URL. Several processes may use it at
once: readers never wait (write-ahead log), writers take their turn. The migrations run when a process first uses a
database that is behind; they hold the write lock, so that two processes never migrate at once.
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.orm import Session

from ratchet.errors import Conflict, DiskFull, InvalidSetting
from ratchet.files import disk_full_as_error, ratchet_home, unusable_as_error

log = logging.getLogger(__name__)

# The newest migration, so that a database that is up to date is known without loading Alembic; a test compares.
HEAD = "0002"
URL_VARIABLE = "RATCHET_DATABASE"

_MIGRATIONS = Path(__file__).parent / "migrations"
_BUSY_SECONDS = 30  # how long a writer waits for its turn; a write takes milliseconds
_ATTEMPTS = 20  # of a write that met another one: each such meeting means that the other has got through
_HOME_ADVICE = "Set RATCHET_HOME to a folder that can be written to."

Written = TypeVar("Written")


def database_url() -> URL:
    """Return where the database is.

    Raises:
        InvalidSetting: ``RATCHET_DATABASE`` is no URL of a database that Ratchet can use.
    """
    given = os.environ.get(URL_VARIABLE)
    if not given:
        return URL.create("sqlite", database=str(ratchet_home() / "ratchet.db"))
    try:
        url = sa.make_url(given)
    except ArgumentError as error:
        # The text is not shown: it may hold a password.
        raise InvalidSetting(
            f"{URL_VARIABLE} is not a database URL. Write it like sqlite:////path/ratchet.db."
        ) from error
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        raise InvalidSetting(
            f"{URL_VARIABLE} names a {url.get_backend_name()} database; so far it must be a SQLite file such as "
            "sqlite:////path/ratchet.db."
        )
    return url


class Database:
    """One database. Opening brings it up to date; reads and writes are functions of a session.

    Raises:
        Conflict: it cannot be opened, is damaged, or was written by a newer version of Ratchet.
    """

    def __init__(self, url: URL | None = None) -> None:
        self._url = url or database_url()
        self.name = self._url.render_as_string(hide_password=True)
        file = Path(self._url.database or "")
        with unusable_as_error(file.parent, _HOME_ADVICE), disk_full_as_error(file, _HOME_ADVICE):
            file.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._engine = _engine(self._url)
        except NoSuchModuleError as error:
            raise InvalidSetting(f"{URL_VARIABLE} names a kind of database that is not installed.") from error
        with self._faults():
            self._migrate()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def read(self, work: Callable[[Session], Written]) -> Written:
        """Return what ``work`` finds; it sees one moment of the database."""
        with self._faults(), Session(self._engine) as session:
            return work(session)

    def write(self, work: Callable[[Session], Written]) -> Written:
        """Do ``work`` in one transaction, and again from its beginning where another process got in between.

        ``work`` must hold all that its changes rest on: what it read before an attempt may be out of date.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._faults(), Session(self._engine.execution_options(writes=True)) as session, session.begin():
                    return work(session)
            except IntegrityError:
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError("not reached")

    def _migrate(self) -> None:
        with self._engine.connect() as connection:
            if _revision(connection) == HEAD:
                return
        with self._engine.execution_options(writes=True).begin() as connection:
            # Asked again with the write lock held: another process may have done it.
            found = _revision(connection)
            if found == HEAD:
                return
            _upgrade(connection, found, self.name)
            log.info("database brought from %s to %s", found or "nothing", HEAD)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Put what a database says when it cannot be used into words. A broken constraint is left to the caller."""
        try:
            yield
        except IntegrityError:
            raise
        except DBAPIError as error:
            reason = str(error.orig)
            if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise DiskFull(f"The disk that holds the database {self.name} is full. Free some space.") from error
            raise Conflict(
                f"The database {self.name} cannot be used ({reason}). Correct that, or name another one with "
                f"{URL_VARIABLE} or RATCHET_HOME."
            ) from error


def _engine(url: URL) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": _BUSY_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late, only before the first change
        for pragma in (f"busy_timeout={_BUSY_SECONDS * 1000}", "journal_mode=WAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A transaction that turns from reading to writing is refused at once where another has written meanwhile; one
        # that says at its start that it will write waits for its turn.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _revision(connection: sa.Connection) -> str | None:
    """Return which migration the database is at, None for a new one."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return found


def _upgrade(connection: sa.Connection, found: str | None, name: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise Conflict(
            f"The database {name} was written by a newer version of Ratchet (it is at {found}, this one knows up to "
            f"{HEAD}). Upgrade Ratchet, or name another database with {URL_VARIABLE} or RATCHET_HOME."
        )
    command.upgrade(config, "head")
