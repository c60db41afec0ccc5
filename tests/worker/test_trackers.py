"""Trackers with their real libraries: what was written is read back; failing, hanging and resuming cost the run nothing."""

import json
import os
import socket
import sqlite3
import struct
import threading
import time

import pytest

from ratchet import worker
from ratchet.config.config_text import build
from ratchet.errors import InvalidSetting
from ratchet.readiness import check
from ratchet.run.records import RoundRecord
from ratchet.run.run_folder import RunFolder
from ratchet.tracking import is_installed
from ratchet.tracking.trackers import numbers_of, settings_of
from ratchet.worker import Listener, tracker_processes

from ..small_runs import SMALL, adapter_bytes, ended, journal, records

POISON = "zyzzyva"


def config_of(*names, **settings):
    return build({**SMALL, "trackers": list(names), **settings})


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of ours catches it."""


def killed_after(number):
    def on_event(event):
        if event.event == "round" and event.record.round == number:
            raise Killed

    return Listener(on_event=on_event)


def wanted(folder):
    """Return round -> numbers, as they should be in every tracker."""
    return {record["round"]: numbers_of(RoundRecord.model_validate(record)) for record in records(folder)}


def assert_all_there(found, folder):
    assert sorted(found) == sorted(wanted(folder))
    for number, numbers in wanted(folder).items():
        assert found[number] == pytest.approx(numbers, rel=1e-6)


def of_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder.path / "trackers" / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            assert tag not in found.setdefault(event.step, {}), "a round is there twice"
            found[event.step][tag] = event.tensor_proto.float_val[0]
    return found


def of_trackio(folder):
    (database,) = (folder.path / "trackers" / "trackio").glob("*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT step, metrics FROM metrics WHERE run_name = ?", (folder.run_id,)).fetchall()
    connection.close()
    assert len({step for step, _ in rows}) == len(rows), "a round is there twice"
    return {step: json.loads(metrics) for step, metrics in rows}


def wandb_records(file):
    """Yield the records of a .wandb file: LevelDB's log format in blocks of 32 KiB, after a header of seven bytes."""
    content, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # what is left of a block is too short for a header
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def of_wandb(folder):
    from wandb.proto import wandb_internal_pb2

    found = {}
    for file in sorted((folder.path / "trackers" / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in wandb_records(file):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                assert record.run.run_id == folder.run_id
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                row = {key: json.loads(value) for key, value in items.items()}
                step = int(row["_step"])
                assert step not in found, "a round is there twice"
                found[step] = {key: value for key, value in row.items() if not key.startswith("_")}
    return found


def mlflow_run(folder):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder.path / 'trackers' / 'mlflow' / 'mlflow.db'}")
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    return client, run


def of_mlflow(folder):
    client, run = mlflow_run(folder)
    found = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            assert name not in found.setdefault(metric.step, {}), "a round is there twice"
            found[metric.step][name] = metric.value
    return found


READERS = {
    "tensorboard": of_tensorboard,
    "trackio": of_trackio,
    "wandb": of_wandb,
    "mlflow": of_mlflow,
}


@pytest.mark.parametrize(
    "name", [name if name == "tensorboard" else pytest.param(name, marks=pytest.mark.slow) for name in READERS]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::sqlalchemy.exc.SADeprecationWarning")
def test_every_round_is_there_once_also_after_a_resume(name, tmp_path):
    folder = RunFolder.create(config_of(name), tmp_path / "run")
    with pytest.raises(Killed):
        worker.run(folder, listeners=[killed_after(1)])
    result = worker.run(folder)
    assert result.ending == "all_rounds"
    assert [event["text"] for event in journal(folder) if event.get("about")] == []
    assert_all_there(READERS[name](folder), folder)
    assert not [path for path in tmp_path.iterdir() if path.name not in ("run", "home", "hub")]
    private = (folder.path / "trackers").stat().st_mode & 0o077
    assert private == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::sqlalchemy.exc.SADeprecationWarning")
def test_mlflow_holds_the_settings_and_the_end(tmp_path):
    folder = RunFolder.create(config_of("mlflow", rl={**SMALL["rl"], "rounds": 1}), tmp_path / "run")
    worker.run(folder)
    _, run = mlflow_run(folder)
    assert run.info.status == "FINISHED"
    assert (run.info.run_name, run.data.params["rl.rounds"], run.data.params["learning_rate"]) == (
        folder.run_id,
        "1",
        "0.002",
    )


def test_prompts_answers_and_references_are_no_part_of_what_is_sent():
    example = {"user": POISON, "assistant": POISON}
    custom = {"kind": "custom", "metric": "m", "version": 1, "source": f"# {POISON}\ndef score(a, r): return 1"}
    labels = {"kind": "classification", "labels": [POISON, "b"]}
    config = build(
        {
            **SMALL,
            "prompt": {"system_prompt": POISON, "worked_examples": [example]},
            "verifier": {"kind": "composite", "parts": [{"verifier": custom}, {"verifier": labels}]},
            "watch": {"kind": "structured_json", "schema": {"const": POISON}},
        }
    ).resolved()
    assert POISON in config.model_dump_json()
    sent = settings_of(config)
    assert POISON not in json.dumps(sent)
    assert sent["verifier.parts.0.verifier.metric"] == "m"
    assert (sent["data.source"], sent["rl.rounds"], sent["watch.kind"]) == ("math_pairs", 3, "structured_json")
    assert all(isinstance(value, str | int | float | bool) and value != "" for value in sent.values())


def test_a_round_becomes_numbers_by_name():
    record = RoundRecord.model_validate(
        {
            "round": 3,
            "validation": {"prompts": 6, "accuracy": 0.5, "reward": 0.5, "outcomes": {"graded": 6}, "watch": 0.25},
            "best_round": 2,
            "best_accuracy": 0.6,
            "seconds": {"total": 2.0},
            "prompt_ids": [1, 2],
            "reward": 0.4,
            "groups": 4,
            "informative_groups": 3,
            "outcomes": {"graded": 15, "cut_off": 1},
            "failures": {"time": 2},
            "parts": {"odd name: ä!": 0.1},
            "watch": 0.3,
            "watch_failures": {"time": 1},
            "entropy": None,
            "learned": {"steps": 1, "loss": float("nan"), "gradient_norm": 0.5},
        }
    )
    assert numbers_of(record) == {
        "validation/prompts": 6,
        "validation/accuracy": 0.5,
        "validation/reward": 0.5,
        "validation/outcomes/graded": 6,
        "validation/watch": 0.25,
        "validation/answer_tokens": 0,
        "best/round": 2,
        "best/accuracy": 0.6,
        "seconds/sampling": 0,
        "seconds/grading": 0,
        "seconds/update": 0,
        "seconds/validation": 0,
        "seconds/total": 2,
        "reward": 0.4,
        "signal": 0.75,
        "outcomes/graded": 15,
        "outcomes/cut_off": 1,
        "failed/time": 2,
        "parts/odd name_ __": 0.1,
        "watch": 0.3,
        "watch_failed/time": 1,
        "update/steps": 1,
        "update/skipped_steps": 0,
        "update/gradient_norm": 0.5,
        "update/tokens": 0,
    }


@pytest.mark.slow
def test_nothing_is_sent_anywhere_unasked(tmp_path, monkeypatch):
    """Every way out of the machine goes through a proxy that counts who knocks."""
    knocks = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        over = threading.Event()

        def count():
            while not over.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                knocks.append(connection.recv(200))
                connection.close()

        thread = threading.Thread(target=count)
        thread.start()
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.getsockname()[1]}")
        folder = RunFolder.create(config_of(*READERS, rl={**SMALL["rl"], "rounds": 1}), tmp_path / "run")
        worker.run(folder)
        over.set()
        thread.join()
    assert [event["text"] for event in journal(folder) if event.get("about")] == []
    assert knocks == []


def test_one_that_fails_is_noted_once_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "no-such-scheme://nowhere")
    plain = RunFolder.create(build(SMALL), tmp_path / "plain")
    worker.run(plain)
    folder = RunFolder.create(config_of("mlflow", "tensorboard"), tmp_path / "run")
    result = worker.run(folder)
    assert (result.ending, adapter_bytes(folder)) == ("all_rounds", adapter_bytes(plain))
    (note,) = [event["text"] for event in journal(folder) if event.get("about")]
    assert note == "Tracker mlflow failed and is left out; the run continues. Its log: trackers/mlflow.log."
    assert list(journal(folder))[-1]["event"] == "ended"
    assert (folder.path / "trackers" / "mlflow.log").read_text()
    assert_all_there(of_tensorboard(folder), folder)


@pytest.mark.slow
def test_one_that_hangs_is_dropped_with_its_processes_and_holds_the_end_up_for_a_moment(tmp_path, monkeypatch):
    # A server that takes connections and never answers: the library waits for it, for minutes.
    monkeypatch.setattr(tracker_processes, "CLOSING_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        folder = RunFolder.create(config_of("mlflow", rl={**SMALL["rl"], "rounds": 1}), tmp_path / "run")
        worker.run(folder)
    (note,) = [event["text"] for event in journal(folder) if event.get("about")]
    assert note.startswith("Tracker mlflow hangs and is left out")
    assert ended(folder)["status"] == "completed"
    assert not trackers_left(folder)


def trackers_left(folder):
    """Return the processes that name the run's folder."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and int(entry) != os.getpid():
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    command = file.read()
                if str(folder.path).encode() in command:
                    found.append(command)
        except OSError:
            continue
    return found


def test_one_that_is_stuck_while_the_run_goes_on_is_dropped(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        folder = RunFolder.create(config_of("mlflow"), tmp_path / "run")
        notes = []
        watched = tracker_processes.Trackers(folder, ("mlflow",), lambda name, text: notes.append(text))
        watched.look(0)
        watched.look(1)
        assert notes == []
        monkeypatch.setattr(tracker_processes, "STUCK_SECONDS", 0.0)
        watched.look(2)
        (note,) = notes
        assert note.startswith("Tracker mlflow hangs and is left out")
        watched.look(3)
        watched.finish("completed", lambda: None)
    assert len(notes) == 1
    assert not trackers_left(folder)


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_no_tracker_behind(tmp_path, start_cli):
    settings = tmp_path / "run.json"
    settings.write_text(json.dumps({**SMALL, "trackers": ["tensorboard"], "rl": {**SMALL["rl"], "rounds": 500}}))
    process = start_cli("train", settings, "--inspected", "--out", tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    until = time.monotonic() + 120
    while not folder.tracker_state("tensorboard").exists():
        assert time.monotonic() < until, "no tracker was started"
        time.sleep(0.1)
    process.kill()
    process.wait()
    while trackers_left(folder):
        assert time.monotonic() < until, "the tracker outlived its worker"
        time.sleep(0.1)
    found = of_tensorboard(folder)
    assert sorted(found) == sorted(record["round"] for record in records(folder))


def test_one_that_is_not_installed_is_refused_with_the_command(monkeypatch):
    monkeypatch.setattr("ratchet.readiness.device_checks.is_installed", lambda name: name != "wandb")
    report = check(config_of("wandb", "tensorboard"))
    report.close()
    (fault,) = report.faults
    assert isinstance(fault, InvalidSetting)
    assert fault.field == "trackers"
    assert "wandb is not installed. Run: pip install 'ratchet-rl[tracking]'" in str(fault)


def test_a_folder_of_a_trackers_name_is_no_library(tmp_path, monkeypatch):
    (tmp_path / "no_such_tracker").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not is_installed("no_such_tracker")
    assert is_installed("tensorboard")
