"""The connection to the database: where it is, how it is brought up to date, and what its faults are called.

SQLite in ``RATCHET_HOME/ratchet.db`` unless ``RATCHET_DATABASE`` holds another URL, of a SQLite file or of a
PostgreSQL database. Several processes may use it at once: readers see one moment of it, writers take their turn. The
first process that uses a new database makes its tables, and the first that uses one that is behind migrates it, as a
writer. What differs between the two kinds is in ``sqlite.py`` and ``postgres.py``.
"""

import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from ratchet.errors import Conflict, InvalidSetting
from ratchet.files import ratchet_home
from ratchet.store import earlier_tables, postgres, sqlite
from ratchet.store.schema import Base

log = logging.getLogger(__name__)

# The newest migration, so that a database that is up to date is known without loading Alembic; a test compares.
HEAD = "0010"
_REVISION = sa.Table("alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), nullable=False))
URL_VARIABLE = "RATCHET_DATABASE"

_MIGRATIONS = Path(__file__).parent / "migrations"
_EXAMPLES = "sqlite:////path/ratchet.db or postgresql://user@host/database"
_RETRIES, _PAUSE_SECONDS = 8, 0.05  # of a write that other programs' locks undid; each pause is twice the one before

Written = TypeVar("Written")


def database_url() -> URL:
    """Where the database is.

    Raises:
        InvalidSetting: ``RATCHET_DATABASE`` is no URL of a database that Ratchet can use.
    """
    given = os.environ.get(URL_VARIABLE)
    if not given:
        return URL.create("sqlite", database=str(ratchet_home() / "ratchet.db"))
    try:
        url = sa.make_url(given)
    except (ArgumentError, ValueError) as error:
        # The text is not shown: it may hold a password.
        raise InvalidSetting(f"{URL_VARIABLE} is not a database URL. Write it like {_EXAMPLES}.") from error
    if "@" in (url.host or ""):  # what stands after it would be shown as the host's name
        raise InvalidSetting(
            f"{URL_VARIABLE} is not a database URL: user or password hold an @, which is written %40. Write it like "
            f"{_EXAMPLES}."
        )
    is_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
    if not is_file and not (postgres.is_postgres(url) and url.database):
        raise InvalidSetting(
            f"{URL_VARIABLE} names a {url.get_backend_name()} database that Ratchet cannot use. Give a SQLite file or "
            f"a named PostgreSQL database, such as {_EXAMPLES}."
        )
    return url


class Database:
    """One database. Opening brings it up to date; reads and writes are functions of a session.

    Raises:
        Conflict: it cannot be opened, is damaged, or was written by a newer version of Ratchet.
        InvalidSetting: what its kind needs is not installed.
    """

    def __init__(self, url: URL | None = None) -> None:
        self._url = url or database_url()
        self.name = postgres.shown(self._url)
        self._kind = postgres if postgres.is_postgres(self._url) else sqlite
        self._engine = self._kind.engine(self._url)
        try:
            with self._faults():
                self._bring_up_to_date()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def read(self, work: Callable[[Session], Written]) -> Written:
        """Run ``work`` on one moment of the database and return its result."""
        with self._faults(), Session(self._engine) as session:
            return work(session)

    def write(self, work: Callable[[Session], Written]) -> Written:
        """Do ``work`` in one transaction. No other writer of ours comes in between.

        ``work`` is done again from its beginning where other programs' locks undid it, so it must hold all that its
        changes rest on.
        """
        with self._faults():
            for attempt in count():
                try:
                    with Session(self._engine.execution_options(writes=True)) as session, session.begin():
                        return work(session)
                except DBAPIError as error:
                    if not postgres.is_to_try_again(error) or attempt == _RETRIES:
                        raise
                time.sleep(_PAUSE_SECONDS * 2**attempt * random.uniform(0.5, 1))
        raise AssertionError("not reached")

    def _bring_up_to_date(self) -> None:
        with self._engine.connect() as connection:
            if _revision(connection) == HEAD:
                return
        with (
            self._engine.execution_options(writes=True).connect() as connection,
            self._kind.rebuilding_tables(connection),
            connection.begin(),
        ):
            # Asked again in this writer's turn: another process may have done it.
            found = _revision(connection)
            if found == HEAD:
                return
            if found is None:
                _make_tables(connection)
            elif found in earlier_tables.REVISIONS:
                with self._kind.set_aside(connection, self._url) as (source, schema, place):
                    _make_tables(connection)
                    earlier_tables.carry_over(source, schema, connection)
                log.warning(
                    "The database %s is of an earlier version of Ratchet. Its rows are in new tables now; what it was "
                    "before is kept in %s.",
                    self.name,
                    place,
                )
            else:
                _upgrade(connection, found, self.name)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Put what a database says when it cannot be used into words. A broken constraint is left to the caller."""
        try:
            yield
        except IntegrityError:
            raise
        except DBAPIError as error:
            raise self._kind.fault(error, self._url) from error


def _revision(connection: sa.Connection) -> str | None:
    """The migration that the database is at, None for a new one."""
    if not sa.inspect(connection).has_table(_REVISION.name):
        return None
    return connection.execute(sa.select(_REVISION.c.version_num)).scalar()


def _make_tables(connection: sa.Connection) -> None:
    """Make all tables as the newest migration would, without loading Alembic."""
    Base.metadata.create_all(connection, checkfirst=False)
    _REVISION.create(connection)
    connection.execute(sa.insert(_REVISION).values(version_num=HEAD))


def _upgrade(connection: sa.Connection, found: str, name: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found not in known:
        raise Conflict(
            f"The database {name} was written by a newer version of Ratchet (it is at {found}, this one knows up to "
            f"{HEAD}). Upgrade Ratchet, or name another database with {URL_VARIABLE} or RATCHET_HOME."
        )
    command.upgrade(config, "head")
