"""SQLite as our database: readers never wait (write-ahead log), writers wait for their turn."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from ratchet.errors import Conflict, DiskFull, RatchetError
from ratchet.files import disk_full_as_error, make_folder, unusable_as_error

_BUSY_SECONDS = 30  # how long a writer waits for its turn; a write takes milliseconds
_PAUSE_SECONDS = 0.01
_HOME_ADVICE = "Set RATCHET_HOME to a folder that can be written to."


def engine(url: URL) -> sa.Engine:
    """The engine of a file; its folder is made where it is missing.

    Raises:
        Conflict: there can be no such folder.
        DiskFull: there is no room for it.
    """
    file = Path(url.database or "")
    with unusable_as_error(file.parent, _HOME_ADVICE), disk_full_as_error(file, _HOME_ADVICE):
        make_folder(file.parent)
        with suppress(OSError):  # it is there, or SQLite says what is wrong with it
            # Nobody else may read it. SQLite gives the files beside it the same mode.
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    made = sa.create_engine(url, connect_args={"timeout": _BUSY_SECONDS})

    @sa.event.listens_for(made, "connect")
    def set_up(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late, only before the first change
        for pragma in (f"busy_timeout={_BUSY_SECONDS * 1000}", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()
        _write_ahead(connection)

    @sa.event.listens_for(made, "begin")
    def begin(connection: sa.Connection) -> None:
        # A transaction that turns from reading to writing is refused at once where another has written meanwhile; one
        # that says at its start that it will write waits for its turn.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return made


def _write_ahead(connection: Any) -> None:
    """Turn the write-ahead log on. SQLite waits for no turn here: of processes that make a database one is refused."""
    end = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(_PAUSE_SECONDS)


@contextmanager
def rebuilding_tables(connection: sa.Connection) -> Iterator[None]:
    """Let a transaction inside the block replace tables that others point to.

    SQLite changes a table by making a new one and dropping the old, which would take the rows along that belong to
    its own (https://www.sqlite.org/lang_altertable.html, section 7). The switch works outside transactions alone.
    """
    driver: Any = connection.connection.driver_connection
    driver.execute("PRAGMA foreign_keys=OFF").close()
    try:
        yield
    finally:
        driver.execute("PRAGMA foreign_keys=ON").close()


@contextmanager
def set_aside(connection: sa.Connection, url: URL) -> Iterator[tuple[sa.Connection, str | None, str]]:
    """Copy the file beside itself and drop its tables, in the transaction of a writer.

    Yields:
        A connection to the copy, the schema of the tables in it (the usual one), and where it is. What fails in the
        block removes the copy.

    Raises:
        Conflict: the copy cannot be written.
    """
    file = Path(url.database or "")
    copy = file.with_name(f"{file.name}.before-{datetime.now():%Y%m%d-%H%M%S}")
    earlier = sa.create_engine(URL.create("sqlite", database=str(copy)))
    try:
        try:
            # Through another connection, which sees what was committed; nobody else writes during our transaction.
            with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
                copy.chmod(file.stat().st_mode & 0o777)
                source.backup(target)
                target.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
        except (sqlite3.Error, OSError) as error:
            raise Conflict(
                f"The database {file} is of an earlier version of Ratchet and could not be copied to {copy} ({error}), "
                "so it was left as it is. Correct that and try again."
            ) from error
        for table in sa.inspect(connection).get_table_names():
            connection.exec_driver_sql(f'DROP TABLE "{table}"')
        with earlier.connect() as opened:
            yield opened, None, str(copy)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    finally:
        earlier.dispose()


def fault(error: DBAPIError, url: URL) -> RatchetError:
    """The error to raise where the database cannot be used."""
    name = url.render_as_string()
    if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return DiskFull(f"The disk that holds the database {name} is full. Free some space.")
    return Conflict(
        f"The database {name} cannot be used ({error.orig}). Correct that, or name another one with RATCHET_DATABASE "
        "or RATCHET_HOME."
    )
