"""The database: its tables are those of the models, it is opened by many processes, and what it refuses is said."""

import functools
import os
import subprocess
import sys
import threading
import traceback
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.orm import Session

from ratchet.config import RunConfig
from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.files import ratchet_home
from ratchet.store import Database, DatasetContent, DatasetStore, MetricStore, RunStore
from ratchet.store.database import _MIGRATIONS, HEAD
from ratchet.store.earlier_tables import REVISIONS
from ratchet.store.schema import Base, RoundRow, VersionRow


@pytest.fixture
def database(each_database):
    opened = Database()
    yield opened
    opened.close()


def content(number=1, **changes):
    fields = {
        "content_hash": f"{number:064x}",
        "format": "prompt",
        "column_map": {"prompt": "question"},
        "origin": "rows.jsonl",
        "rows": {"train": 8, "validation": 1, "test": 1},
        "seed": 0,
    }
    return DatasetContent(**{**fields, **changes})


def together(code, count):
    """Run ``code`` in so many processes at once, each with its number in ``number``; return the words they printed.

    Forked: importing the store would take most of their time, and they would hardly meet.
    """
    started = []
    for number in range(count):
        reader, writer = os.pipe()
        if not (process := os.fork()):
            _run_and_exit(code, number, writer)
        os.close(writer)
        started.append((process, reader))
    printed = []
    for process, reader in started:
        with os.fdopen(reader) as output:
            printed += output.read().split()
        assert os.waitpid(process, 0)[1] == 0
    return printed


def _run_and_exit(code, number, writer):
    """End a forked process without leaving anything to pytest, which it is a copy of."""
    status = 1
    try:
        with os.fdopen(writer, "w") as output:
            exec(code, {"number": number, "print": functools.partial(print, file=output)})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def test_the_newest_migration_is_the_one_that_the_code_asks_for():
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_heads() == [HEAD]
    assert not {script.revision for script in scripts.walk_revisions()} & set(REVISIONS)


def test_a_new_database_and_an_up_to_date_one_are_opened_without_alembic():
    code = "import sys\nfrom ratchet.store import *\nRunStore(Database()).all()\nprint('alembic' in sys.modules)"
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_every_constraint_has_the_name_that_migrations_will_look_for(database):
    inspector = sa.inspect(database._engine)
    for table in Base.metadata.tables:
        names = [unique["name"] for unique in inspector.get_unique_constraints(table)]
        names += [key["name"] for key in inspector.get_foreign_keys(table)]
        names.append(inspector.get_pk_constraint(table)["name"])
        assert all(names), table


def test_readers_do_not_wait_for_a_writer(database):
    store = MetricStore(database)
    store.add("one", "x = 1")
    entered, looked, found = threading.Event(), threading.Event(), []

    def work(session):
        session.execute(sa.update(VersionRow).values(name="two"))
        entered.set()
        found.append(looked.wait(60))

    writer = threading.Thread(target=database.write, args=(work,))
    writer.start()
    assert entered.wait(60)
    assert [one.name for one in store.all()] == ["one"]
    looked.set()
    writer.join(60)
    assert (found, [one.name for one in store.all()]) == ([True], ["two"])


def test_foreign_keys_hold(database):
    with pytest.raises(sa.exc.IntegrityError, match=r"(?i)foreign key"):
        database.write(
            lambda session: session.execute(sa.insert(RoundRow).values(run_id="nowhere", number=0, record={}))
        )


def test_a_database_of_a_newer_ratchet_is_refused_in_words(database):
    database.write(lambda session: session.execute(sa.text("UPDATE alembic_version SET version_num = '9999'")))
    with pytest.raises(Conflict, match=r"written by a newer version of Ratchet \(it is at 9999, this one knows up to"):
        Database()


@pytest.mark.parametrize("damage", [b"not a database at all, but long enough to look like one" * 9, None])
def test_what_is_no_database_is_refused_in_words(tmp_path, monkeypatch, damage):
    file = tmp_path / "some.db"
    file.mkdir() if damage is None else file.write_bytes(damage)
    monkeypatch.setenv("RATCHET_DATABASE", f"sqlite:///{file}")
    with pytest.raises(Conflict, match="cannot be used") as refused:
        Database()
    assert str(file) in str(refused.value)
    assert "RATCHET_DATABASE" in str(refused.value)


def test_the_environment_names_another_database(tmp_path, monkeypatch):
    monkeypatch.setenv("RATCHET_DATABASE", f"sqlite:///{tmp_path / 'deep' / 'other.db'}")
    Database().close()
    assert (tmp_path / "deep/other.db").exists()
    assert not (ratchet_home() / "ratchet.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        "no url with hunter2",
        "mysql://user:hunter2@host/base",
        "sqlite://",
        "sqlite:///:memory:",
        "postgresql://user:hunter2@host",
        "postgresql://user:hunter2@host:five/base",
        "postgresql://user:before@hunter2@host/base",
    ],
)
def test_a_database_that_cannot_be_used_is_refused_without_its_password(monkeypatch, url):
    monkeypatch.setenv("RATCHET_DATABASE", url)
    with pytest.raises(InvalidSetting, match="RATCHET_DATABASE") as refused:
        Database()
    assert "hunter2" not in str(refused.value)


def test_a_time_without_zone_is_refused_and_others_come_back_in_utc(database):
    store = MetricStore(database)
    before = datetime.now(UTC)
    made = store.add("one", "x = 1").created_at
    assert before <= made <= datetime.now(UTC)
    assert store.get("one").created_at == made
    with pytest.raises(sa.exc.StatementError, match="without time zone"), Session(database._engine) as session:
        session.execute(sa.update(VersionRow).values(created_at=datetime(2026, 1, 1)))


def test_versions_are_numbered_by_name_and_the_same_content_is_the_same_version(database):
    store = DatasetStore(database)
    numbers = [store.add("a", content(number)).version for number in (1, 2, 1, 3)]
    assert numbers == [1, 2, 1, 3]
    assert store.add("b", content(2)).version == 1
    assert [(one.name, one.version) for one in store.all()] == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
    assert store.get("a").version == 3
    assert store.get("a", 2).content == content(2)
    assert not store.add("a", content(2)).is_new


def test_what_is_not_there_is_said(database):
    DatasetStore(database).add("a", content(1))
    with pytest.raises(NotFound, match="no dataset b"):
        DatasetStore(database).get("b")
    with pytest.raises(NotFound, match="has no version 2: it has 1 to 1"):
        DatasetStore(database).get("a", 2)
    with pytest.raises(NotFound, match="no metric m"):
        MetricStore(database).get("m")


def test_a_metric_is_archived_once_and_the_newest_active_one_stands_for_its_name(database):
    store = MetricStore(database)
    for number in (1, 2, 3):
        store.add("m", f"x = {number}")
    assert store.archive("m").version == 3
    assert store.get("m").version == 2
    assert not store.get("m", 3).is_active
    with pytest.raises(Conflict, match="Version 3 of metric m is archived already"):
        store.archive("m", 3)
    assert store.add("m", "x = 3").version == 3
    store.archive("m")
    store.archive("m")
    assert store.get("m").version == 3  # nothing active is left: the newest can still be looked at


def test_processes_that_add_at_once_to_a_new_database_do_not_collide():
    # The first use too is part of the race: all of them find no tables.
    code = (
        "from ratchet.store import *\n"
        "database = Database()\n"
        "for one in range(4):\n"
        "    stored = DatasetStore(database).add('a', DatasetContent(f'{number * 4 + one:064x}', 'prompt', {}, 'x', "
        "{'train': 1, 'validation': 1, 'test': 1}, None))\n"
        "    print(stored.version)\n"
    )
    assert sorted(map(int, together(code, 5))) == list(range(1, 21))


def test_processes_that_add_the_same_at_once_get_the_same_version():
    code = (
        "from ratchet.store import *\n"
        "stored = MetricStore(Database()).add('m', 'def score(answer, reference): return 1')\n"
        "print(stored.version, stored.is_new)\n"
    )
    printed = together(code, 5)
    assert printed.count("1") == 5
    assert printed.count("True") == 1


def test_of_processes_that_archive_at_once_one_does_and_the_others_are_told(database):
    MetricStore(database).add("m", "x = 1")
    code = (
        "from ratchet.errors import Conflict\n"
        "from ratchet.store import *\n"
        "store = MetricStore(Database())\n"
        "try:\n"
        "    store.archive('m', 1)\n"
        "    print('done')\n"
        "except Conflict:\n"
        "    print('refused')\n"
    )
    assert sorted(together(code, 4)) == ["done", "refused", "refused", "refused"]


def test_runs_are_claimed_and_ingested_by_one_process_each(database):
    store = RunStore(database)
    for number in range(12):
        store.add(RunConfig(), id=f"r{number}", status="queued", folder=ratchet_home() / f"r{number}")
    code = (
        "from ratchet.store import *\n"
        "store = RunStore(Database())\n"
        "while run := store.claim('here', f'cpu-{number}', lambda run: True):\n"
        "    print(run.id)\n"
        "for one in range(12):\n"
        "    if store.ingest(f'r{one}', 0, 10, [], 'training'):\n"
        "        print(one)\n"
    )
    printed = together(code, 4)
    expected = [f"r{number}" for number in range(12)] + [str(number) for number in range(12)]
    assert sorted(printed) == sorted(expected)
    assert {run.status for run in store.all()} == {"training"}
