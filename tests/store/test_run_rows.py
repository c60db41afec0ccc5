"""Runs in the database: what was entered comes back, a move has one winner, and a journal is taken in once."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from ratchet.config import RunConfig
from ratchet.errors import Conflict, NotFound
from ratchet.run.records import Learned, RoundRecord, Seconds, Validation
from ratchet.store import Database, RunStore
from ratchet.store.schema import RunRow

MONDAY = datetime(2026, 11, 30, 12, tzinfo=UTC)
CONFIG = RunConfig(project="sums", seed=7)


@pytest.fixture
def database(each_database):
    opened = Database()
    yield opened
    opened.close()


@pytest.fixture
def store(database):
    return RunStore(database)


def record(number, accuracy=0.25, best=0):
    validation = Validation(prompts=8, accuracy=accuracy, reward=accuracy, outcomes={"graded": 8})
    learned = Learned(steps=4, loss=-0.125) if number else None
    return RoundRecord(
        round=number,
        validation=validation,
        best_round=best,
        best_accuracy=accuracy,
        seconds=Seconds(total=1.5),
        prompt_ids=[3, 1],
        learned=learned,
    )


def queued(store, name, **given):
    return store.add(CONFIG, id=name, status="queued", folder=Path(f"/runs/{name}"), **given)


def test_a_draft_has_settings_and_what_is_usual_for_the_rest(store):
    made = store.add(CONFIG)
    assert made == store.get(made.id)
    assert (made.project, made.kind, made.status, made.config, made.folder) == ("sums", "full", "draft", CONFIG, None)
    assert (made.rounds_done, made.ending, made.seconds, made.is_kept, made.journal_offset) == (
        None,
        None,
        0.0,
        True,
        0,
    )
    assert datetime.now(UTC) - made.created_at < timedelta(minutes=1)
    assert store.records(made.id) == []


def test_everything_that_is_entered_comes_back(store):
    source = store.add(CONFIG).id
    given = {
        "kind": "trial",
        "folder": Path("/runs/a"),
        "created_at": MONDAY,
        "queued_at": MONDAY + timedelta(seconds=1),
        "started_at": MONDAY.astimezone(timezone(timedelta(hours=5))),
        "ended_at": MONDAY + timedelta(microseconds=3),
        "ending": "time_limit",
        "message": "The time limit came near.",
        "rounds": 20,
        "rounds_done": 3,
        "best_round": 2,
        "start_accuracy": 0.25,
        "best_accuracy": 0.5,
        "seconds": 12.5,
        "adapter_sha256": "a" * 64,
        "source_run": source,
        "source_relation": "trial",
        "confirmation": {"key": "k", "by": "someone", "at": "now", "how": "flag"},
        "is_kept": False,
        "host": "here",
        "slot": "cpu-0",
        "pid": 4_000_000,
        "process_started": 1234.5,
        "attempts": 2,
        "journal_offset": 3_000_000_000,
        "stop_requested_at": MONDAY,
        "artifacts_url": "s3://bucket/runs/a",
        "project": "other",
    }
    made = store.add(CONFIG, id="a", status="stopped_early", **given)
    assert made.status == "stopped_early"
    for name, value in given.items():
        assert getattr(made, name) == value, name
    assert made.started_at.tzinfo is UTC
    assert store.of_folder(Path("/runs/a")) == made
    assert store.of_folder(Path("/runs/b")) is None


def test_the_same_id_or_folder_twice_and_a_source_that_is_not_there_are_refused(store):
    queued(store, "a")
    with pytest.raises(Conflict, match="Run a is in the database already"):
        store.add(CONFIG, id="a")
    with pytest.raises(Conflict, match="another run in /runs/a"):
        store.add(CONFIG, id="b", folder=Path("/runs/a"))
    with pytest.raises(NotFound, match="no run nowhere"):
        store.add(CONFIG, source_run="nowhere", source_relation="retry")
    assert [run.id for run in store.all()] == ["a"]


@pytest.mark.parametrize(
    "broken",
    [
        {"source_relation": "retry"},
        {"status": "queued", "folder": None},
    ],
    ids=str,
)
def test_the_database_itself_refuses_what_no_run_can_be(store, broken):
    with pytest.raises(sa.exc.IntegrityError):
        store.add(CONFIG, **broken)


@pytest.mark.parametrize("name", ["status", "kind", "ending", "source_relation"])
def test_a_word_that_is_not_of_its_list_is_refused_before_anything_is_written(store, name):
    with pytest.raises(ValueError, match=f"a run's {name} cannot be 'bored'"):
        store.add(CONFIG, **{name: "bored"})
    run = store.add(CONFIG)
    with pytest.raises(ValueError, match=f"a run's {name} cannot be 'bored'"):
        store.ingest(run.id, 0, 9, [], **({"target": "bored"} if name == "status" else {name: "bored"}))
    assert store.all() == [run]


def test_what_is_no_field_of_a_run_is_our_own_mistake(store):
    made = store.add(CONFIG)
    with pytest.raises(TypeError, match="colour"):
        store.change(made.id, colour="red")
    with pytest.raises(TypeError, match="status"):
        store.change(made.id, status="queued")
    with pytest.raises(TypeError, match="journal_offset"):
        store.ingest(made.id, 0, 1, [], journal_offset=5)


def test_lists_are_by_project_and_status_and_oldest_first(store):
    for number, (name, project, status) in enumerate(
        [("c", "x", "queued"), ("a", "y", "training"), ("b", "x", "completed")]
    ):
        made = MONDAY + timedelta(seconds=number)
        store.add(CONFIG, id=name, status=status, project=project, created_at=made, folder=Path(f"/runs/{name}"))
    assert [run.id for run in store.all()] == ["c", "a", "b"]
    assert [run.id for run in store.all(project="x")] == ["c", "b"]
    assert [run.id for run in store.all(statuses=["queued", "training"])] == ["c", "a"]
    assert store.all(project="x", statuses=["training"]) == []


def test_a_run_is_moved_only_from_where_it_is_thought_to_be(store):
    queued(store, "a")
    assert store.move("a", ["queued", "draft"], "cancelled", message="Stopped before it began.", ending="stopped")
    moved = store.get("a")
    assert (moved.status, moved.message, moved.ending) == ("cancelled", "Stopped before it began.", "stopped")
    assert not store.move("a", ["queued"], "starting", message="Off it goes.")
    assert store.get("a") == moved
    with pytest.raises(NotFound, match="no run b"):
        store.move("b", ["queued"], "starting")


def test_a_draft_can_be_changed_and_launched(store):
    draft = store.add(CONFIG)
    other = CONFIG.model_copy(update={"seed": 8})
    store.change(draft.id, config=other, project="renamed")
    assert store.move(draft.id, ["draft"], "queued", folder=Path("/runs/d"), queued_at=MONDAY)
    launched = store.get(draft.id)
    assert (launched.config, launched.project, launched.folder) == (other, "renamed", Path("/runs/d"))
    with pytest.raises(NotFound):
        store.change("nothing", project="x")


def test_the_oldest_queued_run_that_fits_is_claimed(store):
    for number, name in enumerate(["late", "early", "inline"]):
        queued(store, name, queued_at=MONDAY - timedelta(seconds=number), is_kept=name != "inline", pid=9)
    taken = store.claim("here", "gpu-0", lambda run: True)
    assert (taken.id, taken.status, taken.host, taken.slot, taken.pid) == ("early", "starting", "here", "gpu-0", None)
    assert store.claim("here", "gpu-1", lambda run: run.id != "late") is None
    assert store.claim("here", "gpu-1", lambda run: run.config.seed == 7).id == "late"
    assert store.claim("here", "gpu-2", lambda run: True) is None


def test_a_run_that_another_claims_meanwhile_is_passed_over(store):
    queued(store, "first", queued_at=MONDAY)
    queued(store, "second", queued_at=MONDAY + timedelta(seconds=1))

    def fits(run):
        store.move("first", ["queued"], "cancelled")
        return True

    assert store.claim("here", "cpu", fits).id == "second"


def test_a_piece_of_the_journal_is_taken_in_once_and_whole(store):
    queued(store, "a")
    records = [record(0), record(1, 0.5, 1)]
    assert store.ingest("a", 0, 900, records, "training", rounds_done=1, best_accuracy=0.5)
    run = store.get("a")
    assert (run.journal_offset, run.status, run.rounds_done, run.best_accuracy) == (900, "training", 1, 0.5)
    assert store.records("a") == records
    # Another process read the same piece, and a third one a part of it.
    assert not store.ingest("a", 0, 900, records, "queued", rounds_done=7)
    assert not store.ingest("a", 400, 900, [record(1)], "queued")
    assert (store.get("a"), store.records("a")) == (run, records)
    # A resumed run writes its last round again.
    assert store.ingest("a", 900, 1500, [record(1, 0.5, 1), record(2)])
    assert [one.round for one in store.records("a")] == [0, 1, 2]
    assert store.get("a").status == "training"
    for unknown in (lambda: store.ingest("b", 0, 1, []), lambda: store.records("b")):
        with pytest.raises(NotFound, match="no run b"):
            unknown()


def test_what_breaks_half_way_through_leaves_nothing_behind(store):
    queued(store, "a")
    with pytest.raises(sa.exc.IntegrityError):
        store.ingest("a", 0, 900, [record(0)], "training", source_relation="retry")
    with pytest.raises(AttributeError):
        store.ingest("a", 0, 900, [record(0), None], "training")
    assert (store.get("a").journal_offset, store.get("a").status, store.records("a")) == (0, "queued", [])


def test_settings_of_another_version_hide_no_other_run(database, store, caplog):
    queued(store, "new")
    queued(store, "old")
    later = {**json.loads(CONFIG.model_dump_json()), "config_version": 99}
    database.write(lambda session: session.execute(sa.update(RunRow).where(RunRow.id == "new").values(config=later)))
    assert [run.id for run in store.all()] == ["old"]
    assert "Run new has settings of another version" in caplog.text
    assert store.claim("here", "cpu", lambda run: True).id == "old"
    with pytest.raises(Conflict, match="another version of Ratchet"):
        store.get("new")
