"""PostgreSQL as our database, through psycopg 3 (extra ``postgres``): the same manners as SQLite.

A reader sees one moment. Writers take turns by an advisory lock that each takes first, for migrations too: what a
writer has read stays true until it commits, and no two of ours can wait for each other. That costs nothing, since
writes take milliseconds and only the scheduler and few commands write. A writer that is stopped in its turn loses it:
the server ends its session.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from ratchet.errors import Conflict, DiskFull, InvalidSetting, RatchetError

_DRIVER = "postgresql+psycopg"
_TURN = 0x7261746368  # the key of the lock; locks of other databases of the same server are others
_LOCK_SECONDS = 30  # how long a writer waits for its turn
_IDLE_SECONDS = 60  # how long one may do nothing within it
_CONNECT_SECONDS = 10

_DISK_FULL, _LOCK_NOT_HAD = "53100", "55P03"
# Another program's locks, or a server that takes over from another: the transaction was undone and may be tried again.
_AGAIN = {"40001", "40P01"}

_ACCOUNT = "Correct user and password in RATCHET_DATABASE; the password may also be in PGPASSWORD or ~/.pgpass."
_ELSE = "Correct that, or name another database with RATCHET_DATABASE."
# What libpq says when it cannot connect comes without a code. A server that says it in another language gets _ELSE.
_CONNECT_ADVICE = (
    (("authentication failed", "no password supplied", "role ", "pg_hba.conf"), _ACCOUNT),
    (("does not exist",), "Make it with createdb, or name another one in RATCHET_DATABASE."),
    (
        ("Connection refused", "No such file", "could not translate", "timeout", "is the server running"),
        "Start the server, or correct its place in RATCHET_DATABASE.",
    ),
)


def is_postgres(url: URL) -> bool:
    """Whether a URL is of a PostgreSQL database; whichever driver it names, ours is used."""
    return url.get_backend_name() in ("postgresql", "postgres")


def engine(url: URL) -> sa.Engine:
    """The engine of a database. Nothing is connected yet.

    Raises:
        InvalidSetting: the driver is not installed.
    """
    # Without prepared statements, so that it works through a pooler that gives each transaction another connection.
    arguments: dict[str, int | None] = {"prepare_threshold": None}
    if "connect_timeout" not in url.query:
        arguments["connect_timeout"] = _CONNECT_SECONDS
    try:
        made = sa.create_engine(url.set(drivername=_DRIVER), connect_args=arguments, pool_pre_ping=True)
    except ImportError as error:
        raise InvalidSetting(
            "RATCHET_DATABASE names a PostgreSQL database, which needs the package psycopg. Install it with "
            "pip install 'ratchet-rl[postgres]'."
        ) from error

    @sa.event.listens_for(made, "begin")
    def begin(connection: sa.Connection) -> None:
        if not connection.get_execution_options().get("writes", False):
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return
        # Read committed: each statement sees what was committed before it, and with the lock held nobody commits.
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{_IDLE_SECONDS}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_TURN})")

    return made


def is_to_try_again(error: DBAPIError) -> bool:
    """Whether a transaction was undone because of what other programs did at the same time."""
    return getattr(error.orig, "sqlstate", None) in _AGAIN


def rebuilding_tables(connection: sa.Connection) -> AbstractContextManager[None]:
    """Do nothing: PostgreSQL changes tables as they are."""
    return nullcontext()


@contextmanager
def set_aside(connection: sa.Connection, url: URL) -> Iterator[tuple[sa.Connection, str | None, str]]:
    """Move all tables into a schema of their own, in the transaction of a writer.

    Yields:
        The connection to read them with, that schema, and where they are in words.
    """
    schema = f"before_{datetime.now():%Y%m%d_%H%M%S}"
    connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    for table in sa.inspect(connection).get_table_names():
        connection.exec_driver_sql(f'ALTER TABLE "{table}" SET SCHEMA {schema}')
    yield connection, schema, f"its schema {schema}"


def fault(error: DBAPIError, url: URL) -> RatchetError:
    """The error to raise where the database cannot be used. Neither the password nor any value is in it."""
    name = shown(url)
    code = getattr(error.orig, "sqlstate", None)
    diagnosis = getattr(error.orig, "diag", None)
    # The first line of a server's message alone: its details quote values.
    reason = " ".join((getattr(diagnosis, "message_primary", None) or str(error.orig)).split())
    for secret in (url.password, url.query.get("password")):
        if secret:
            reason = reason.replace(str(secret), "***")
    if code == _DISK_FULL:
        return DiskFull(f"The disk of the server of the database {name} is full. Free some space there.")
    if code == _LOCK_NOT_HAD:
        return Conflict(
            f"Other programs kept the database {name} locked for {_LOCK_SECONDS} seconds. Try again; see "
            "pg_stat_activity for who holds it."
        )
    advice = _ELSE if code else _advice(reason)
    return Conflict(f"The database {name} cannot be used ({reason.rstrip('.')}). {advice}")


def shown(url: URL) -> str:
    """A URL without what may be secret: the password and the parameters behind the question mark."""
    return url.set(query={}).render_as_string(hide_password=True)


def _advice(reason: str) -> str:
    return next((advice for phrases, advice in _CONNECT_ADVICE if any(one in reason for one in phrases)), _ELSE)
