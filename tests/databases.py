"""A PostgreSQL server for tests, from the programs of the distribution: its own folder and socket, no network, no sync.

The server runs as an ordinary user, since PostgreSQL refuses to run as root. Each test gets an empty database.
"""

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

_ASK_SECONDS, _START_SECONDS = 0.05, 60


def without_server(what, advice):
    """Skip a test that needs a server which is not installed; where nothing may be skipped, fail it."""
    reason = f"{what} is not installed: {advice}"
    if os.environ.get("RATCHET_TESTS") == "all":
        pytest.fail(reason)
    pytest.skip(reason)


def _programs():
    """Return the folder of the newest server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if found:
        return found[-1]
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else without_server("PostgreSQL", "apt install postgresql")


def bound_to_us(command, signal):
    """Return the command of a server that gets a signal when our end of its input closes, as it does when we die."""
    return ["sh", "-c", f'"$@" & read gone; kill -{signal} $!; wait $!', "sh", *map(str, command)]


class Server:
    """A running server. ``url`` is of one of its databases, as its superuser, who needs no password."""

    def __init__(self, programs):
        self._programs = programs
        self._user = None if os.geteuid() else next(name for name in ("postgres", "nobody") if _exists(name))
        self._process = None
        self._names, self._free = itertools.count(), []
        # Not under pytest's folder, which that user cannot enter, and short: a socket's path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="ratchet-pg-", dir="/tmp"))
        if self._user:
            shutil.chown(self.folder, self._user)
        initdb = ("initdb", "--pgdata=data", "--username=tester", "--auth=trust", "--no-sync", "--locale=C.UTF-8")
        self._run(*initdb, "--encoding=UTF8")
        # One user who needs a password, for the tests of wrong ones.
        rules = self.folder / "data/pg_hba.conf"
        rules.write_text("local all guarded scram-sha-256\nlocal all all trust\n")
        self.start()

    def _options(self):
        return {
            "cwd": self.folder,
            "user": self._user,
            "group": _group(self._user),
            "extra_groups": [] if self._user else None,
        }

    def _run(self, program, *arguments):
        done = subprocess.run(
            [self._programs / program, *arguments], capture_output=True, text=True, check=False, **self._options()
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self):
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": self.folder,
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "shared_buffers": "16MB",
            "max_connections": "60",
            "log_destination": "stderr",
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            command = bound_to_us([self._programs / "postgres", "-D", "data", *flags], "INT")
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, **self._options())
        deadline = time.monotonic() + _START_SECONDS
        while subprocess.run(
            [self._programs / "pg_isready", "-q", "-h", self.folder], check=False, timeout=_START_SECONDS
        ).returncode:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(_ASK_SECONDS)

    def stop(self):
        """Stop it; connections break."""
        self._process.stdin.close()
        self._process.wait(_START_SECONDS)

    def psql(self, statement, database="postgres"):
        """Run a statement as the superuser; return what it printed."""
        return self._run("psql", "-h", self.folder, "-U", "tester", "-d", database, "-Atqc", statement)

    def url(self, database, user="tester", password=None):
        account = user if password is None else f"{user}:{password}"
        return f"postgresql://{account}@/{database}?host={self.folder}"

    @contextmanager
    def empty(self):
        """Lend an empty database by its URL. It is emptied and lent again: to make one takes 300 files."""
        if not self._free:
            self._free.append(f"ratchet_{next(self._names)}")
            self.psql(f"CREATE DATABASE {self._free[0]}")
        name = self._free.pop()
        yield self.url(name)
        self._empty(name)
        self._free.append(name)

    def _empty(self, name):
        import psycopg  # here, since the tests with vLLM have an environment without it

        with psycopg.connect(self.url(name), autocommit=True) as own:
            others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            own.execute(f"SELECT pg_terminate_backend(pid) {others}")
            made = own.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'before%' OR nspname = 'public'")
            for (schema,) in made.fetchall():
                own.execute(f"DROP SCHEMA {schema} CASCADE")
            own.execute("CREATE SCHEMA public")


def _exists(user):
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _group(user):
    return pwd.getpwnam(user).pw_gid if user else None


@pytest.fixture(scope="session")
def postgres_server():
    """A server for all tests of this process."""
    server = Server(_programs())
    yield server
    server.stop()
    shutil.rmtree(server.folder)


@pytest.fixture
def postgres_url(postgres_server):
    """The URL of an empty database."""
    with postgres_server.empty() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def each_database(request, monkeypatch):
    """Let the test run once with each kind of database; also processes that it starts get it. Returns the kind."""
    if request.param == "postgresql":
        monkeypatch.setenv("RATCHET_DATABASE", request.getfixturevalue("postgres_url"))
    return request.param
