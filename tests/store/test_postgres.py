"""PostgreSQL in particular: what its faults are called, that no password shows, and how writers take turns."""

import builtins
import threading
import time

import psycopg
import pytest
import sqlalchemy as sa

from ratchet.config import RunConfig
from ratchet.errors import Conflict, InvalidSetting
from ratchet.store import Database, RunStore
from ratchet.store.schema import RunRow


@pytest.fixture
def database(postgres_url, monkeypatch):
    monkeypatch.setenv("RATCHET_DATABASE", postgres_url)
    opened = Database()
    yield opened
    opened.close()


def refusal(monkeypatch, url):
    monkeypatch.setenv("RATCHET_DATABASE", url)
    with pytest.raises(Conflict) as refused:
        Database()
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in "".join(map(str, refused.value.args))
    return str(refused.value)


def test_a_wrong_password_is_said_and_not_shown(postgres_server, postgres_url, monkeypatch):
    postgres_server.psql("DROP ROLE IF EXISTS guarded; CREATE ROLE guarded LOGIN PASSWORD 'right'")
    name = postgres_url.split("@/")[1].split("?")[0]
    said = refusal(monkeypatch, postgres_server.url(name, "guarded", "hunter2"))
    assert "password authentication failed" in said
    assert "Correct user and password in RATCHET_DATABASE" in said
    assert f"postgresql://guarded:***@/{name} cannot be used" in said
    given = f"postgresql://guarded@/{name}?host={postgres_server.folder}&password=hunter2"
    assert "Correct user and password" in refusal(monkeypatch, given)
    assert "Correct user and password" in refusal(monkeypatch, postgres_server.url(name, "guarded"))
    assert "Correct user and password" in refusal(monkeypatch, postgres_server.url(name, "nobody_at_all"))


def test_a_database_that_is_not_there_is_said(postgres_server, monkeypatch):
    said = refusal(monkeypatch, postgres_server.url("nothing", password="hunter2"))
    assert 'database "nothing" does not exist' in said
    assert "Make it with createdb" in said


@pytest.mark.parametrize("host", ["/tmp/nowhere-at-all", "127.0.0.1"])
def test_a_server_that_is_not_there_is_said(monkeypatch, host):
    said = refusal(monkeypatch, f"postgres://tester:hunter2@/some?host={host}&port=1")
    assert "Start the server, or correct its place in RATCHET_DATABASE" in said


def test_a_missing_driver_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setenv("RATCHET_DATABASE", "postgresql+psycopg2://tester:hunter2@/some")
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "psycopg":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidSetting, match=r"pip install 'ratchet-rl\[postgres\]'") as refused:
        Database()
    assert "hunter2" not in str(refused.value)


def test_a_server_that_goes_away_and_comes_back_costs_one_call_at_most(postgres_server, database):
    store = RunStore(database)
    made = store.add(RunConfig())
    postgres_server.stop()
    with pytest.raises(Conflict, match="cannot be used"):
        store.get(made.id)
    with pytest.raises(Conflict, match="Start the server"):
        store.get(made.id)
    postgres_server.start()
    assert store.get(made.id) == made


def test_a_reader_sees_one_moment_and_cannot_write(database):
    store = RunStore(database)
    store.add(RunConfig(), id="a")
    count = sa.select(sa.func.count()).select_from(RunRow)

    def look(session):
        before = session.scalar(count)
        store.add(RunConfig(), id="b")
        return before, session.scalar(count)

    assert database.read(look) == (1, 1)
    assert len(store.all()) == 2
    with pytest.raises(Conflict, match="read-only transaction"):
        database.read(lambda session: session.execute(sa.delete(RunRow)))


def test_a_writer_waits_for_the_one_before_it_and_sees_what_that_one_wrote(database):
    store = RunStore(database)
    store.add(RunConfig(), id="a")
    entered, order = threading.Event(), []

    def slow(session):
        session.execute(sa.select(RunRow.id))  # its turn begins with its first statement
        entered.set()
        time.sleep(0.3)
        session.execute(sa.update(RunRow).values(attempts=RunRow.attempts + 1))
        order.append("slow")

    def quick(session):
        order.append(session.scalar(sa.select(RunRow.attempts)))

    first = threading.Thread(target=database.write, args=(slow,))
    first.start()
    entered.wait(30)
    database.write(quick)
    first.join(30)
    assert order == ["slow", 1]


def test_what_another_programs_locks_undid_is_done_again(database, postgres_url):
    store = RunStore(database)
    for name in ("a", "b"):
        store.add(RunConfig(), id=name)
    attempts = []
    with psycopg.connect(postgres_url) as other:
        # It waits for us without end, so that it is we whom the server sends back.
        other.execute("SET deadlock_timeout = '1h'")
        other.execute("UPDATE run SET message = 'theirs' WHERE id = 'b'")
        waiting = threading.Thread(target=other.execute, args=("UPDATE run SET message = 'theirs' WHERE id = 'a'",))

        def work(session):
            attempts.append(1)
            if len(attempts) == 2:
                waiting.join(30)
                other.commit()
            session.execute(sa.update(RunRow).where(RunRow.id == "a").values(attempts=1))
            if len(attempts) == 1:
                waiting.start()
                time.sleep(0.3)
            session.execute(sa.update(RunRow).where(RunRow.id == "b").values(attempts=2))

        database.write(work)
    assert len(attempts) == 2
    assert [(run.id, run.attempts, run.message) for run in store.all()] == [("a", 1, "theirs"), ("b", 2, "theirs")]


def test_what_a_fault_of_the_server_says_quotes_no_value(database):
    with pytest.raises(Conflict) as refused:
        database.write(lambda session: session.execute(sa.text("SELECT CAST('secret words' AS json)")))
    assert "invalid input syntax for type json" in str(refused.value)
    assert "secret" not in str(refused.value)
