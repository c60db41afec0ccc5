"""The run folder: what is written survives a kill at any moment, and a full disk ends a run in good order."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from ratchet import service
from ratchet.config import RunConfig
from ratchet.errors import Conflict, DiskFull, NotFound
from ratchet.files import check_room, disk_full_as_error, ratchet_home, write_atomically
from ratchet.run import run_lock
from ratchet.run.events import RoundDone, RunStarted
from ratchet.run.records import RoundRecord, Seconds, Validation
from ratchet.run.run_folder import RunFolder


class Killed(BaseException):
    """Stands for a SIGKILL at a certain call: nothing catches it."""


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(RunConfig(), tmp_path / "run")


def files_of(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_a_new_run_has_its_settings_and_is_opened_by_its_folder(folder):
    assert folder.read_config() == RunConfig()
    assert RunFolder.at(folder.path).path == folder.path
    assert RunFolder.at(str(folder.path)).run_id == folder.run_id


def test_without_a_folder_of_its_own_a_run_is_under_the_users_data():
    folder = RunFolder.create(RunConfig(), None)
    assert folder.path == ratchet_home().resolve() / "runs" / folder.run_id


@pytest.mark.parametrize("name", ["r1", "", "../etc/passwd", "x" * 5000, "a\0b", "/none/such", "~nobody-such/x"])
def test_a_run_that_is_not_there_is_not_found(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound):
        RunFolder.at(name)
    with pytest.raises(NotFound):
        service.find_run(name)


def test_a_place_that_holds_something_is_refused(tmp_path, folder):
    with pytest.raises(Conflict, match="already holds a run"):
        RunFolder.create(RunConfig(), folder.path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(Conflict, match="is not empty"):
        RunFolder.create(RunConfig(), tmp_path / "full")
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Conflict):
            RunFolder.create(RunConfig(), path)


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "empty").mkdir()
    RunFolder.create(RunConfig(), tmp_path / "empty")


@pytest.mark.parametrize("given", [True, False], ids=["folder given", "new folder"])
def test_a_run_that_cannot_be_written_leaves_nothing_behind(given, tmp_path, monkeypatch):
    if given:
        (tmp_path / "run").mkdir()
    monkeypatch.setattr(os, "replace", failing_after(1))
    with pytest.raises(DiskFull):
        RunFolder.create(RunConfig(), tmp_path / "run")
    assert (tmp_path / "run").exists() is given
    assert files_of(tmp_path) == []


def failing_after(calls, error=None, function=os.replace):
    """Return a stand-in for ``function`` that works so many times and then raises, by default for a full disk."""
    left = [calls]

    def call(*arguments, **keywords):
        if left[0] == 0:
            raise error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        return function(*arguments, **keywords)

    return call


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_a_kill_while_writing_leaves_the_old_content_whole(step, tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, step, failing_after(0, Killed()))
    with pytest.raises(Killed):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    monkeypatch.undo()
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert files_of(tmp_path) == ["file"]


def test_a_write_that_fails_leaves_the_old_content_and_no_leftover(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", failing_after(0))
    with pytest.raises(DiskFull, match=str(tmp_path)):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert files_of(tmp_path) == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_every_way_of_having_no_room_is_a_full_disk(number, tmp_path):
    with pytest.raises(DiskFull, match="Free some space"), disk_full_as_error(tmp_path):
        raise OSError(number, "x")


def test_another_fault_of_the_system_is_not_a_full_disk(tmp_path):
    with pytest.raises(PermissionError), disk_full_as_error(tmp_path):
        raise PermissionError(errno.EACCES, "x")


RECORD = RoundRecord(round=0, validation=Validation(prompts=1), best_round=0, best_accuracy=None, seconds=Seconds())


def test_a_disk_without_the_room_that_a_run_needs_is_refused(tmp_path):
    check_room(tmp_path, 1)
    with pytest.raises(DiskFull, match="the run needs about"):
        check_room(tmp_path, 1 << 60)


def test_events_are_numbered_and_read_back_in_order(folder):
    folder.append_event(RunStarted(resumed=False))
    folder.append_event(RoundDone(record=RECORD))
    assert [(event.seq, event.event) for event in folder.events()] == [(1, "started"), (2, "round")]


def test_a_run_without_events_has_none(folder):
    assert list(folder.events()) == []


@pytest.mark.parametrize("torn", [b'{"seq": 2, "ev', b"{", b"\xff\xfe", b'{"seq": 2}'])
def test_a_torn_last_line_is_no_event_and_is_cut_off_by_the_next(folder, torn):
    folder.append_event(RunStarted())
    with folder.events_path.open("ab") as file:
        file.write(torn)
    assert [event.seq for event in folder.events()] == [1]
    folder.append_event(RoundDone(record=RECORD))
    assert [(event.seq, event.event) for event in folder.events()] == [(1, "started"), (2, "round")]
    assert folder.events_path.read_bytes().count(b"\n") == 2


def test_no_event_holds_a_number_that_json_does_not_have(folder):
    with pytest.raises(ValueError, match="JSON"):
        folder.append_event(RoundDone(record=RECORD.model_copy(update={"reward": float("nan")})))
    assert list(folder.events()) == []


@pytest.mark.parametrize("name", ["config_path", "run_path", "events_path"])
@pytest.mark.parametrize("content", [b"{\n", b"[]\n", b"\xff\n", b""])
def test_a_damaged_file_is_named_and_not_quoted(folder, name, content):
    path = getattr(folder, name)
    path.write_bytes(content)
    read = {
        "config_path": folder.read_config,
        "run_path": folder.read_run,
        "events_path": lambda: list(folder.events()),
    }
    if (name, content) == ("events_path", b""):
        assert read[name]() == []
        return
    with pytest.raises(Conflict, match=str(path)):
        read[name]()


ROWS = [{"prompt_id": 1, "text": "a\u2028b\x85c"}, {"prompt_id": 2, "text": "half \ud83d of a pair"}]


def test_rollouts_are_read_back_as_they_were_written(folder):
    folder.write_rollouts(1, iter(ROWS))
    folder.write_heldout(iter(ROWS))
    assert folder.read_rollouts(1) == ROWS
    assert folder.read_heldout() == ROWS
    assert folder.last_rollouts() == 1


def test_rollouts_are_readable_by_their_owner_alone(folder, monkeypatch):
    before = os.umask(0)
    try:
        folder.write_rollouts(1, iter(ROWS))
        folder.write_heldout(iter(ROWS))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rollouts_path.iterdir()}
    assert modes == {"round-001.jsonl": 0o600, "heldout.jsonl": 0o600}
    assert folder.rollouts_path.stat().st_mode & 0o777 == 0o700


def test_rounds_without_samples_are_not_found_and_those_with_are_named(folder):
    with pytest.raises(NotFound, match="No round of this run has samples yet"):
        folder.last_rollouts()
    with pytest.raises(NotFound, match="No round has samples yet"):
        folder.read_rollouts(1)
    for number in (1, 2):
        folder.write_rollouts(number, iter(ROWS))
    with pytest.raises(NotFound, match="Rounds with samples: 1 to 2"):
        folder.read_rollouts(3)
    with pytest.raises(NotFound, match="were not scored"):
        folder.read_heldout()


def test_rollouts_of_rounds_that_never_finished_are_dropped(folder):
    for number in (1, 2, 10):
        folder.write_rollouts(number, iter(ROWS))
    folder.write_heldout(iter(ROWS))
    folder.drop_rollouts_after(1)
    assert files_of(folder.rollouts_path) == ["heldout.jsonl", "round-001.jsonl"]


def adapter_of(text):
    return {"adapter_config.json": b"{}", "adapter_model.safetensors": text}


def replace_adapter(folder, text):
    folder.stage_adapter(adapter_of(text))
    folder.put_adapter()


def kept(folder):
    path = folder.adapter_path / "adapter_model.safetensors"
    return path.read_bytes() if path.exists() else None


STEPS = [(os, "open"), (os, "fsync"), (os, "replace"), (os, "rename"), (shutil, "rmtree")]


@pytest.mark.parametrize("calls", range(6))
@pytest.mark.parametrize(("module", "step"), STEPS, ids=[step for _, step in STEPS])
def test_a_kill_while_replacing_the_adapter_leaves_one_of_both_whole_or_none(folder, module, step, calls, monkeypatch):
    replace_adapter(folder, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(module, step, failing_after(calls, Killed(), getattr(module, step)))
        try:
            replace_adapter(folder, b"new")
            was_killed = False
        except Killed:
            was_killed = True
    assert kept(folder) in ((b"old", b"new", None) if was_killed else (b"new",))
    if kept(folder) is not None:
        assert files_of(folder.adapter_path) == sorted(adapter_of(b""))
    replace_adapter(folder, b"newest")  # as a resume does
    assert kept(folder) == b"newest"
    assert not [name for name in os.listdir(folder.path) if name.startswith(".adapter")]


def test_an_adapter_that_finds_no_room_leaves_the_old_one_and_takes_none(folder, monkeypatch):
    replace_adapter(folder, b"old")
    monkeypatch.setattr(os, "replace", failing_after(1))
    with pytest.raises(DiskFull):
        folder.stage_adapter(adapter_of(b"new"))
    assert kept(folder) == b"old"
    assert not [name for name in os.listdir(folder.path) if name.startswith(".adapter")]


HOLD = """
import sys
from pathlib import Path
from ratchet.run.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_by_another_process(folder):
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_run_that_another_process_works_on_is_refused_until_that_ends_however_it_ends(folder):
    with held_by_another_process(folder):
        assert folder.is_locked()
        with (
            pytest.raises(Conflict, match=f"Run {folder.run_id} is already running in another process"),
            folder.locked(),
        ):
            pass
    assert not folder.is_locked()
    with folder.locked():
        pass


def test_asking_whether_a_run_is_at_work_writes_nothing(folder):
    before = files_of(folder.path)
    assert not folder.is_locked()
    assert files_of(folder.path) == before


def test_somebody_asking_whether_a_run_is_at_work_does_not_keep_it_from_starting(folder, monkeypatch):
    with folder.locked():
        pass
    asking = folder.lock_path.open()
    fcntl.flock(asking, fcntl.LOCK_SH | fcntl.LOCK_NB)
    monkeypatch.setattr(run_lock.time, "sleep", lambda seconds: asking.close())
    with folder.locked():
        pass


def test_a_folder_that_cannot_be_written_to_is_refused_in_words(folder, monkeypatch):
    shutil.rmtree(folder.path)
    with pytest.raises(Conflict, match="cannot be written to"), folder.locked():
        pass


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"5",
        b'{"event": 5}',
        b'{"event": "round"}',
        b'{"event": "round", "record": {}}',
        b'{"event": "round", "record": 5}',
        b'{"event": "ended", "ending": "stopped"}',
        b'{"event": "heldout", "when": []}',
        b'{"event": "note"}',
        b'{"event": []}',
    ],
)
def test_an_event_without_what_its_kind_holds_is_damage(folder, line):
    folder.events_path.write_bytes(line + b"\n")
    with pytest.raises(Conflict, match="damaged"):
        list(folder.events())


def test_a_run_without_its_time_is_damaged(folder):
    folder.write_run({"id": "r1"})
    with pytest.raises(Conflict, match="damaged"):
        folder.read_run()


def test_a_round_of_another_name_is_somebody_elses_file(folder):
    folder.write_rollouts(1, iter(ROWS))
    (folder.rollouts_path / "round-abc.jsonl").write_text("x")
    assert folder.last_rollouts() == 1
    folder.drop_rollouts_after(0)
    assert files_of(folder.rollouts_path) == ["round-abc.jsonl"]


@pytest.mark.parametrize("content", [b"{\n", b"\xff\n"])
def test_damaged_rollouts_are_named(folder, content):
    folder.rollouts_file(1).write_bytes(content)
    with pytest.raises(Conflict, match=r"round-001\.jsonl"):
        folder.read_rollouts(1)


def test_the_rollouts_folder_is_made_again_where_someone_removed_it(folder):
    shutil.rmtree(folder.rollouts_path)
    folder.write_rollouts(1, iter(ROWS))
    assert folder.read_rollouts(1) == ROWS
    assert folder.rollouts_path.stat().st_mode & 0o777 == 0o700


def loop(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    return tmp_path / "loop" / "run"


@pytest.mark.parametrize(
    "place", [loop, lambda path: path / ("x" * 300), lambda path: path / "a\0b"], ids=["loop", "long", "null"]
)
def test_a_place_that_cannot_be_is_refused_in_words(place, tmp_path):
    with pytest.raises(Conflict, match=r"cannot be used: .* Choose another --out"):
        RunFolder.create(RunConfig(), place(tmp_path))
    (tmp_path / "again").mkdir()
    with pytest.raises(Conflict, match=r"cannot be used: .* Choose another --out"):
        service.create_and_train(RunConfig(), place(tmp_path / "again"))


def test_a_home_that_is_a_file_is_refused_in_words_and_leaves_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "file"))
    with pytest.raises(Conflict, match="RATCHET_HOME"):
        RunFolder.create(RunConfig(), None)
    with pytest.raises(Conflict, match="RATCHET_HOME"):
        service.create_and_train(RunConfig(), tmp_path / "run")
    assert files_of(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "row",
    [
        {},
        5,
        {"prompt_id": 1, "prompt": [], "ground_truth": "1", "answers": []},
        {"prompt_id": 1, "prompt": [{"content": "a"}], "ground_truth": "1", "answers": [{"text": "a"}]},
    ],
)
def test_samples_without_what_is_shown_of_them_are_damaged(folder, row):
    folder.write_rollouts(1, iter([row]))
    with pytest.raises(Conflict, match="damaged"):
        service.samples(str(folder.path), 1)
