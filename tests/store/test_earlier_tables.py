"""A database from before the first release: every row is in the new tables, and what it was is kept."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from ratchet.errors import Conflict
from ratchet.files import ratchet_home
from ratchet.store import Database, DatasetStore, MetricStore, RunStore, database_url, earlier_tables, sqlite
from ratchet.store.version_rows import BenchmarkStore, Version

DUMP = Path(__file__).parent.parent / "data/database-0004.sql"
SAME = {
    "run": "id",
    "run_round": "run_id, number",
    "adapter": "run_id",
    "evaluation": "run_id",
    "experiment": "id",
    "loop": "id",
}


@pytest.fixture
def earlier(each_database):
    """An earlier database in the place of ours, opened by SQLAlchemy alone. The kind is its ``name``."""
    ratchet_home().mkdir(parents=True, exist_ok=True)
    url = database_url()
    engine = sa.create_engine(url.set(drivername="postgresql+psycopg") if each_database == "postgresql" else url)
    text = DUMP.read_text()
    if each_database == "postgresql":
        text = text.replace("DATETIME", "TIMESTAMP WITH TIME ZONE").replace("DOUBLE,", "DOUBLE PRECISION,")
        text = text.replace("DOUBLE NOT NULL", "DOUBLE PRECISION NOT NULL")
    with engine.begin() as connection:
        for statement in text.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement.replace("%", "%%"))
    yield engine
    engine.dispose()


def rows(engine, schema=None):
    """All rows of the tables that have kept their columns: table -> rows; JSON as values."""
    found = {}
    with engine.connect() as connection:
        for table, order in SAME.items():
            place = table if schema is None else f"{schema}.{table}"
            read = connection.execute(sa.text(f"SELECT * FROM {place} ORDER BY {order}")).mappings()
            found[table] = [
                {name: _value(value) for name, value in row.items() if name != "id" or table != "adapter"}
                for row in read
            ]
    return found


def _value(value):
    return json.loads(value) if isinstance(value, str) and value.startswith(("{", "[")) else value


def test_every_row_is_carried_over(earlier):
    before = rows(earlier)
    with closing(Database()) as database:
        store = RunStore(database)
        assert rows(earlier) == before
        assert {run.status for run in store.all()} == {"draft", "completed"}
        datasets = [(one.name, one.version, one.content.rows) for one in DatasetStore(database).all()]
        assert datasets == [
            ("large", 1, {"train": 26, "validation": 3, "test": 3}),
            ("sums", 1, {"train": 32, "validation": 4, "test": 4}),
            ("sums", 2, {"train": 24, "validation": 3, "test": 3}),
        ]
        metrics = MetricStore(database).all()
        assert [(one.name, one.version, one.is_active) for one in metrics] == [("exact", 1, False), ("exact", 2, True)]
        assert MetricStore(database).add("exact", metrics[0].source) == metrics[0]
        benchmarks = [(one.name, one.source, one.dataset) for one in BenchmarkStore(database).all()]
        assert benchmarks == [
            ("capitals", "bundle", None),
            ("few", "built_in", None),
            ("large-test", "dataset", Version("large", 1)),
        ]
        added = MetricStore(database).add("exact", "another")
        assert (added.version, added.is_new) == (3, True)
    with closing(Database()) as again:
        assert len(RunStore(again).all()) == len(before["run"])


def test_what_it_was_is_kept_beside_it(earlier, caplog):
    before = rows(earlier)
    Database().close()
    if earlier.name == "postgresql":
        [schema] = [name for name in sa.inspect(earlier).get_schema_names() if name.startswith("before_")]
        assert rows(earlier, schema) == before
        assert f"kept in its schema {schema}" in caplog.text
        return
    [copy] = ratchet_home().glob("ratchet.db.before-*")
    assert f"kept in {copy}" in caplog.text
    engine = sa.create_engine(f"sqlite:///{copy}")
    assert rows(engine) == before
    assert copy.stat().st_mode == (ratchet_home() / "ratchet.db").stat().st_mode
    engine.dispose()


def test_a_fault_on_the_way_leaves_it_as_it_was(earlier, monkeypatch):
    before = rows(earlier)
    with monkeypatch.context() as patched:
        patched.setattr(earlier_tables, "_versions", lambda *given, **named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Database()
    assert rows(earlier) == before
    assert not list(ratchet_home().glob("*before*"))
    Database().close()
    assert rows(earlier) == before


@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_one_that_cannot_be_copied_is_left_as_it_is(earlier, monkeypatch):
    before = rows(earlier)

    def refuse(*given):
        raise sqlite.sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(sqlite.sqlite3, "connect", refuse)
        with pytest.raises(Conflict, match=r"could not be copied to .* is full"):
            sqlite.set_aside(earlier.connect(), earlier.url).__enter__()
    assert rows(earlier) == before
