"""A run's files on their way to the storage: after each round, at the end, and whatever the storage does meanwhile."""

import json
import shutil
import socket
import threading
import time

import pytest

from ratchet import worker
from ratchet.engine.budget import TimeBudget
from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.run.events import RoundDone, RunEnded
from ratchet.run.records import RoundRecord, Seconds, Validation
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.run_files import fetch_run, upload_run
from ratchet.service.runs.start_checks import check_run
from ratchet.store import Database, RunStore
from ratchet.store.artifact_store import ArtifactStore, files_of
from ratchet.worker import uploads
from ratchet.worker.session import Session
from ratchet.worker.uploads import uploading

from ..small_runs import adapter_bytes, ended, journal, records, small


@pytest.fixture
def session(tmp_path):
    folder = RunFolder.create(small(), tmp_path / "run")
    made = Session(folder, TimeBudget(None, time.monotonic))
    made.start(resumed=False)
    return made


def a_round(number):
    validation = Validation(prompts=1, accuracy=0.5, reward=0.5, outcomes={"graded": 1})
    return RoundRecord(round=number, validation=validation, best_round=1, best_accuracy=0.5, seconds=Seconds())


def finish_round(session, number, size=1000):
    """Write what a round writes, and its event."""
    folder = session.folder
    folder.write_rollouts(number, iter([{"round": number}]))
    folder.checkpoint_path.write_bytes(b"%d" % number * size)
    folder.stage_adapter({"adapter_model.safetensors": b"best of %d" % number, "adapter_config.json": b"{}"})
    folder.put_adapter()
    session.event(RoundDone(record=a_round(number)))


def close(session, finish):
    finish()
    session.event(RunEnded(status="completed", ending="all_rounds", message="", artifacts=session.artifacts_url))


def wait_until(told, seconds=60):
    deadline = time.monotonic() + seconds
    while not told():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def notes(session):
    return [event["text"] for event in journal(session.folder) if event["event"] == "note"]


def files(folder):
    return {path: (folder / path).read_bytes() for path in files_of(folder)}


def held(store, run, path):
    """Tell whether the storage has a file."""
    try:
        return path in store.manifest(run)
    except NotFound:
        return False


def test_without_a_storage_nothing_is_loaded_or_said(session):
    with uploading(session) as finish:
        finish_round(session, 1)
        close(session, finish)
    assert [thread.name for thread in threading.enumerate() if thread.name == "uploads"] == []
    assert ended(session.folder)["artifacts"] == ""
    assert notes(session) == []


def test_each_round_is_sent_while_the_run_goes_on_and_its_end_too(session, each_storage, monkeypatch, tmp_path):
    monkeypatch.setenv("RATCHET_ARTIFACTS", each_storage)
    run, store = session.folder.run_id, ArtifactStore(each_storage)
    with uploading(session) as finish:
        for number in (1, 2):
            finish_round(session, number)
            wait_until(lambda number=number: held(store, run, f"rollouts/round-{number:03d}.jsonl"))
        close(session, finish)
    assert ended(session.folder)["artifacts"] == f"{each_storage}/{run}"
    fetched = fetch_run(run, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(session.folder.path)
    assert (fetched.files, fetched.url) == (len(files_of(session.folder.path)), f"{each_storage}/{run}")
    assert ended(RunFolder(tmp_path / "copy"))["artifacts"] == fetched.url
    assert notes(session) == []


def test_a_round_does_not_wait_for_a_storage_that_does_not_answer_and_closing_is_bounded(session, monkeypatch):
    monkeypatch.setattr(uploads, "_CLOSING_SECONDS", 2.0)
    monkeypatch.setattr(uploads, "_LEAST_SECONDS", 2.0)
    monkeypatch.setenv("RATCHET_ARTIFACTS", "s3://runs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with uploading(session) as finish:
            started = time.monotonic()
            finish_round(session, 1)
            assert time.monotonic() - started < 20  # one attempt alone waits for half a minute
            close(session, finish)
        assert time.monotonic() - started < 25
    [note] = notes(session)
    expected = len(files_of(session.folder.path))
    assert note.startswith(f"{expected} files of this run are not in s3://runs/{session.folder.run_id} (adapter/")
    assert "The 2 seconds that closing may take were not enough" in note
    assert f"ratchet runs upload {session.folder.run_id}" in note
    assert ended(session.folder)["artifacts"] == ""


def test_a_bucket_that_vanishes_is_noted_once_and_all_is_there_in_the_end(
    session, bucket_server, monkeypatch, tmp_path
):
    monkeypatch.setenv("RATCHET_ARTIFACTS", "s3://runs")
    client, run, store = bucket_server.client(), session.folder.run_id, ArtifactStore("s3://runs")
    with uploading(session) as finish:
        finish_round(session, 1)
        wait_until(lambda: held(store, run, "rollouts/round-001.jsonl"))
        for name in bucket_server.names():
            client.delete_object(Bucket="runs", Key=name)
        client.delete_bucket(Bucket="runs")
        for number in (2, 3, 4):
            finish_round(session, number)
            time.sleep(0.5)
        client.create_bucket(Bucket="runs")
        close(session, finish)
    [note] = notes(session)
    assert "s3://runs cannot be used" in note
    assert "The run continues" in note
    fetch_run(run, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(session.folder.path)
    assert ended(session.folder)["artifacts"] == f"s3://runs/{run}"


def test_a_server_that_is_killed_costs_no_run_and_the_rest_is_sent_later(session, bucket_server, monkeypatch, tmp_path):
    monkeypatch.setenv("RATCHET_ARTIFACTS", "s3://runs")
    run, store = session.folder.run_id, ArtifactStore("s3://runs")
    with Database()._engine.connect():
        RunStore(Database()).add(small(), id=run, status="training", folder=session.folder.path)
    with uploading(session) as finish:
        finish_round(session, 1)
        wait_until(lambda: held(store, run, "rollouts/round-001.jsonl"))
        bucket_server.kill()
        finish_round(session, 2)
        close(session, finish)
    assert "cannot be used" in notes(session)[-1]
    assert f"Send them with ratchet runs upload {run}" in notes(session)[-1]
    bucket_server.start()
    with pytest.raises(NotFound, match="has no files of run"):
        fetch_run(run, tmp_path / "copy")
    sent = upload_run(str(session.folder.path))
    assert (sent.files, sent.damaged) == (len(files_of(session.folder.path)), 0)
    # The database knows now where they are.
    monkeypatch.delenv("RATCHET_ARTIFACTS")
    fetch_run(run, tmp_path / "copy")
    assert files(tmp_path / "copy") == files(session.folder.path)


def test_at_the_end_the_adapter_goes_first(session, tmp_path, monkeypatch):
    """A storage that takes the adapter and then no more: what it has of a run that ends is the adapter."""
    (tmp_path / "storage").mkdir()
    monkeypatch.setenv("RATCHET_ARTIFACTS", str(tmp_path / "storage"))
    run = session.folder.run_id
    place = tmp_path / "storage" / run / "objects"
    place.mkdir(parents=True)
    (place / "checkpoint.safetensors").write_bytes(b"no folder")
    with uploading(session) as finish:
        finish_round(session, 1)
        close(session, finish)
    stored = ArtifactStore(str(tmp_path / "storage")).manifest(run)
    assert {"adapter/adapter_model.safetensors", "run.json", "config.json", "events.jsonl"} <= stored.keys()
    assert "checkpoint.safetensors" not in stored
    assert notes(session)[-1].startswith("3 files of this run are not in ") or "checkpoint" in notes(session)[-1]
    assert ended(session.folder)["artifacts"].endswith(run)


def test_a_big_checkpoint_under_way_is_given_up_for_the_adapter_when_the_run_ends(session, tmp_path, monkeypatch):
    (tmp_path / "storage").mkdir()
    monkeypatch.setenv("RATCHET_ARTIFACTS", str(tmp_path / "storage"))
    monkeypatch.setattr(uploads, "_CLOSING_SECONDS", 4.0)
    order, hold = [], threading.Event()
    upload = ArtifactStore.upload

    def slow(self, run, folder, part, check):
        order.append(part[0])
        if part[0] == "checkpoint.safetensors" and len(order) == 2:
            while not hold.wait(0.01):  # a line as slow as this one
                check()
        return upload(self, run, folder, part, check=check)

    monkeypatch.setattr(ArtifactStore, "upload", slow)
    with uploading(session) as finish:
        finish_round(session, 1)
        wait_until(lambda: order == ["adapter/adapter_config.json", "checkpoint.safetensors"])
        close(session, finish)
    assert order[2:5] == ["adapter/adapter_config.json", "checkpoint.safetensors", "rollouts/round-001.jsonl"]
    assert notes(session) == []


def test_what_is_damaged_in_the_storage_is_sent_again(session, each_storage, monkeypatch, tmp_path):
    monkeypatch.setenv("RATCHET_ARTIFACTS", each_storage)
    with uploading(session) as finish:
        finish_round(session, 1)
        close(session, finish)
    run, store = session.folder.run_id, ArtifactStore(each_storage)
    path = "adapter/adapter_model.safetensors"
    store._storage.replace(f"{run}/objects/{path}/{store.manifest(run)[path].sha256}", b"other weights")
    with pytest.raises(Conflict, match=r"1 files of run .* are damaged"):
        fetch_run(run, tmp_path / "copy")
    sent = upload_run(str(session.folder.path))
    assert (sent.files, sent.damaged) == (1, 1)
    assert fetch_run(run, tmp_path / "copy").files == len(files_of(session.folder.path))


def test_a_run_at_work_is_not_sent_by_a_command(session, tmp_path, monkeypatch):
    with pytest.raises(InvalidSetting, match="RATCHET_ARTIFACTS is not set"):
        upload_run(str(session.folder.path))
    with pytest.raises(InvalidSetting, match="does not know where files of run r1 are"):
        fetch_run("r1", tmp_path / "copy")
    (tmp_path / "storage").mkdir()
    monkeypatch.setenv("RATCHET_ARTIFACTS", str(tmp_path / "storage"))
    with session.folder.locked(), pytest.raises(Conflict, match="already running in another process"):
        upload_run(str(session.folder.path))


def test_a_setting_that_is_none_is_found_before_a_run_starts(monkeypatch):
    monkeypatch.setenv("RATCHET_ARTIFACTS", "here")
    report = check_run(small())
    try:
        assert any("RATCHET_ARTIFACTS is 'here'" in str(fault) for fault in report.faults)
    finally:
        report.close()


def test_a_worker_that_is_given_a_useless_setting_runs_all_the_same(session, monkeypatch):
    monkeypatch.setenv("RATCHET_ARTIFACTS", "here")
    with uploading(session) as finish:
        finish_round(session, 1)
        close(session, finish)
    [note] = notes(session)
    assert "in its folder alone" in note


def test_a_real_run_can_be_fetched_elsewhere_and_shown(each_storage, monkeypatch, tmp_path, ratchet_command):
    monkeypatch.setenv("RATCHET_ARTIFACTS", each_storage)
    folder = RunFolder.create(small(rl__rounds=2), tmp_path / "run")
    result = worker.run(folder)
    assert result.status == "completed"
    assert ended(folder)["artifacts"] == f"{each_storage}/{folder.run_id}"
    weights, rounds, run = adapter_bytes(folder), records(folder), folder.run_id
    shutil.rmtree(folder.path)
    code, out, _ = ratchet_command("runs", "fetch", run, "--to", tmp_path / "copy", "--json")
    assert code == 0
    assert json.loads(out)["url"] == f"{each_storage}/{run}"
    copy = RunFolder(tmp_path / "copy")
    assert (adapter_bytes(copy), records(copy), ended(copy)["status"]) == (weights, rounds, "completed")
    code, out, _ = ratchet_command("runs", "show", tmp_path / "copy", "--json")
    assert (code, len(json.loads(out)["rounds"])) == (0, 3)
    code, out, err = ratchet_command("runs", "upload", tmp_path / "copy")
    assert (code, out) == (0, f"{each_storage}/{run} has all files of run {run}, undamaged.\n"), err
