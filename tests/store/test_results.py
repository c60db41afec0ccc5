"""Adapters, and what the tables of benchmarks, evaluations, experiments and loops refuse by themselves."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from ratchet.config import RunConfig
from ratchet.store import AdapterStore, Database, RunStore
from ratchet.store.adapters import NewAdapter, enter
from ratchet.store.models import (
    Adapter,
    Benchmark,
    Evaluation,
    Experiment,
    ExperimentEvaluation,
    Loop,
    LoopRound,
)

NOW = datetime(2026, 11, 30, tzinfo=UTC)
# One valid row of each table, those that others point to first.
ROWS = {
    Adapter: {"id": 1, "run_id": "r1", "base_model": "tiny", "revision": "c0", "sha256": "a" * 64, "folder": "/a", "url": "", "created_at": NOW},
    Benchmark: {"id": 1, "name": "sums", "source": "built_in", "content_hash": "b" * 64, "harness": {}, "verifier": {}, "score_columns": ["accuracy"], "created_at": NOW},
    Evaluation: {"id": "e1", "project": "p", "benchmark_id": 1, "subject": "adapter", "model": "tiny", "revision": "c0", "adapter_id": 1, "status": "completed", "settings": {}, "scores": {"accuracy": 0.5}, "message": "", "folder": "/e1", "created_at": NOW},
    Experiment: {"id": "x1", "name": "first", "status": "training", "settings": {}, "run_id": "r1", "message": "", "created_at": NOW},
    ExperimentEvaluation: {"experiment_id": "x1", "evaluation_id": "e1", "side": "base"},
    Loop: {"id": "l1", "project": "p", "name": "on and on", "source_run": "r1", "benchmark_id": 1, "score_column": "accuracy", "target": 90.0, "max_rounds": 8, "rounds_without_gain": 2, "reclaims_storage": True, "status": "training", "message": "", "created_at": NOW},
    LoopRound: {"loop_id": "l1", "number": 1, "run_id": "r1", "evaluation_id": "e1", "score": 0.5, "created_at": NOW},
}  # fmt: skip
REFUSED = [
    (Adapter, {"folder": None}),
    (Adapter, {"run_id": "nowhere"}),
    (Benchmark, {"source": "somewhere"}),
    (Benchmark, {"source": "dataset"}),
    (Benchmark, {"metric_version_id": 7}),
    (Evaluation, {"subject": "human"}),
    (Evaluation, {"status": "thinking"}),
    (Evaluation, {"adapter_id": None}),
    (Evaluation, {"scores": None}),
    (Evaluation, {"benchmark_id": 7}),
    (Experiment, {"status": "thinking"}),
    (Experiment, {"status": "done"}),
    (Experiment, {"sft_run_id": "nowhere"}),
    (ExperimentEvaluation, {"side": "left"}),
    (ExperimentEvaluation, {"evaluation_id": "nowhere"}),
    (Loop, {"status": "thinking"}),
    (Loop, {"target": 101.0}),
    (Loop, {"target": -1.0}),
    (Loop, {"max_rounds": 0}),
    (Loop, {"rounds_without_gain": 0}),
    (Loop, {"source_run": "nowhere"}),
    (LoopRound, {"number": 0}),
    (LoopRound, {"run_id": None}),
    (LoopRound, {"loop_id": "nowhere"}),
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
        Adapter: {"id": 2, "run_id": None},
        Benchmark: {"id": 2, "name": "other"},
        Evaluation: {"id": "e2", "folder": "/e2"},
        Experiment: {"id": "x2"},
        ExperimentEvaluation: {"side": "after"},
        Loop: {"id": "l2"},
        LoopRound: {"number": 2, "run_id": "r2", "evaluation_id": None},
    }
    for table, change in REFUSED:
        with pytest.raises(sa.exc.IntegrityError):
            insert(database, [(table, {**ROWS[table], **fresh[table], **change})])
    # Without the change each of them is fine, so it was the change that was refused.
    insert(database, [(table, {**ROWS[table], **fresh[table]}) for table in ROWS])


@pytest.mark.parametrize(
    ("table", "change"),
    [
        (Adapter, {"id": 2}),
        (Benchmark, {"id": 2}),
        (Evaluation, {"id": "e2"}),
        (LoopRound, {"number": 2, "run_id": "r2"}),
        (LoopRound, {"number": 2, "evaluation_id": None}),
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
