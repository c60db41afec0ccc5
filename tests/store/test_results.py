"""Adapters, and what the tables of versions, evaluations, experiments and loops refuse by themselves."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from ratchet.config import RunConfig
from ratchet.store import AdapterStore, Database, RunStore
from ratchet.store.adapter_rows import NewAdapter, enter
from ratchet.store.schema import AdapterRow, EvaluationRow, ExperimentRow, LoopRow, VersionRow

NOW = datetime(2026, 11, 30, tzinfo=UTC)
# One valid row of each table, those that others point to first.
ROWS = {
    AdapterRow: {"id": 1, "run_id": "r1", "base_model": "tiny", "revision": "c0", "sha256": "a" * 64, "folder": "/a", "url": "", "created_at": NOW},
    VersionRow: {"id": 1, "kind": "benchmark", "name": "sums", "number": 1, "content_hash": "b" * 64, "content": {}, "created_at": NOW},
    EvaluationRow: {"run_id": "r1", "benchmark": "sums", "benchmark_hash": "b" * 64, "subject": "adapter", "spec": {}, "scores": None},
    ExperimentRow: {"id": "x1", "project": "p", "name": "first", "settings": {}, "status": "training", "message": "", "report": None, "created_at": NOW},
    LoopRow: {"id": "l1", "project": "p", "name": "on and on", "settings": {}, "status": "training", "message": "", "report": None, "created_at": NOW},
}  # fmt: skip
REFUSED = [
    (AdapterRow, {"folder": None}),
    (AdapterRow, {"run_id": "nowhere"}),
    (VersionRow, {"content_hash": None}),
    (EvaluationRow, {"run_id": "nowhere"}),
    (ExperimentRow, {"status": "done"}),
    (LoopRow, {"status": None}),
]


@pytest.fixture
def database(each_database):
    opened = Database()
    for name in ("r1", "r2"):
        RunStore(opened).add(RunConfig(), id=name)
    yield opened
    opened.close()


def insert(database, rows):
    database.write(lambda session: [session.execute(sa.insert(table).values(**row)) for table, row in rows])


def test_the_database_itself_refuses_what_cannot_be(database):
    insert(database, ROWS.items())
    fresh = {
        AdapterRow: {"id": 2, "run_id": None},
        VersionRow: {"id": 2, "name": "other"},
        EvaluationRow: {"run_id": "r2"},
        ExperimentRow: {"id": "x2"},
        LoopRow: {"id": "l2"},
    }
    for table, change in REFUSED:
        with pytest.raises(sa.exc.IntegrityError):
            insert(database, [(table, {**ROWS[table], **fresh[table], **change})])
    # Without the change each of them is fine, so it was the change that was refused.
    insert(database, [(table, {**ROWS[table], **fresh[table]}) for table in ROWS])


@pytest.mark.parametrize(
    ("table", "change"),
    [
        (AdapterRow, {"id": 2}),
        (VersionRow, {"id": 2, "content_hash": "c" * 64}),
        (VersionRow, {"id": 2, "number": 2}),
        (EvaluationRow, {"subject": "base"}),
        (LoopRow, {"name": "again"}),
    ],
)
def test_what_there_may_be_once_is_refused_twice(database, table, change):
    insert(database, ROWS.items())
    with pytest.raises(sa.exc.IntegrityError, match=r"(?i)unique"):
        insert(database, [(table, {**ROWS[table], **change})])


def test_a_run_has_one_adapter_which_a_resumed_run_replaces(database):
    store = AdapterStore(database)
    assert store.all() == []

    def entered(run, new):
        database.write(lambda session: bool(enter(session, run, new)))
        [stored] = store.all()
        return stored

    given = NewAdapter(base_model="tiny", revision="c0", sha256="a" * 64, folder=Path("/runs/r1/adapter"))
    first = entered("r1", given)
    assert (first.run, first.base_model, first.revision, first.url) == ("r1", "tiny", "c0", "")
    # The same weights again, now in the storage too: made when they were.
    assert entered("r1", given._replace(url="s3://b/r1")).created_at == first.created_at
    later = entered("r1", given._replace(sha256="b" * 64))
    assert (later.sha256, later.created_at > first.created_at) == ("b" * 64, True)
    with pytest.raises(sa.exc.IntegrityError):
        entered("nowhere", given)
