"""Runs are known by the database, and no run is lost where the database is, or where its folder was moved."""

import json
import shutil
from contextlib import closing

import pytest

from ratchet import service
from ratchet.config import RunConfig
from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.files import ratchet_home
from ratchet.run.events import RunEnded, RunStarted
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.registry import bring_up_to_date, find_run, open_store, register
from ratchet.service.runs.scheduling import take_inline
from ratchet.store import Database, RunStore

from ...small_runs import journal

ENDED = {"status": "completed", "ending": "all_rounds", "message": "Done.", "seconds": 2.0}
CONFIRMED = {"key": "k", "by": "tester", "at": "2026-11-30T00:00:00+00:00", "how": "flag"}


def made(place=None, *, is_kept=False, is_registered=True, **settings):
    folder = RunFolder.create(RunConfig.model_validate(settings), place, CONFIRMED)
    if is_registered:
        with open_store() as store:
            register(store, folder, is_kept=is_kept)
    return folder


def stored(folder):
    with closing(Database()) as database:
        return RunStore(database).get(folder.run_id)


def listed(**asked):
    return [(one.stored.id, one.status) for one in service.list_runs(**asked)]


def test_a_run_is_found_by_id_and_by_folder_and_listed_with_what_its_journal_says(tmp_path):
    folder = made(tmp_path / "run", project="sums")
    folder.append_event(RunStarted(run=folder.run_id, resumed=False))
    assert listed() == [(folder.run_id, "interrupted")]
    with folder.locked():
        assert listed() == [(folder.run_id, "starting")]
    folder.append_event(RunEnded(**ENDED))
    assert listed() == [(folder.run_id, "completed")]
    assert find_run(folder.run_id).path == find_run(str(folder.path)).path == folder.path
    assert (stored(folder).seconds, stored(folder).project, stored(folder).confirmation) == (2.0, "sums", CONFIRMED)


def test_runs_are_listed_by_project_and_by_status(tmp_path):
    one, two = made(tmp_path / "1", project="a"), made(tmp_path / "2", project="b", is_kept=True)
    three = made(tmp_path / "3", project="b")
    three.append_event(RunEnded(**ENDED))
    assert listed() == [(one.run_id, "interrupted"), (two.run_id, "queued"), (three.run_id, "completed")]
    assert [id for id, _ in listed(project="b")] == [two.run_id, three.run_id]
    assert listed(project="b", status="queued") == [(two.run_id, "queued")]
    assert listed(status="interrupted") == [(one.run_id, "interrupted")]
    assert listed(project="c") == []


def test_what_a_lost_database_knew_is_known_again(tmp_path):
    here, elsewhere = made(None), made(tmp_path / "run")
    waiting = made(None, is_kept=True)
    here.append_event(RunEnded(**ENDED))
    for file in ratchet_home().glob("ratchet.db*"):
        file.unlink()
    assert set(listed()) == {(here.run_id, "completed"), (waiting.run_id, "queued")}
    assert stored(waiting).is_kept
    assert find_run(str(elsewhere.path)).run_id == elsewhere.run_id  # opened by path, it is known from now on
    assert stored(elsewhere).folder == elsewhere.path
    assert (elsewhere.run_id, "interrupted") in listed()


def test_a_run_in_the_home_is_found_by_id_though_no_database_knows_it():
    folder = made(None, is_registered=False)
    assert find_run(folder.run_id).path == folder.path
    assert stored(folder).folder == folder.path


def test_a_run_that_was_moved_is_found_by_id_once_it_was_opened_by_path(tmp_path):
    folder = made(tmp_path / "run")
    run_id = folder.run_id
    folder.path.rename(tmp_path / "moved")
    with pytest.raises(NotFound, match="holds no run any more"):
        find_run(run_id)
    assert listed() == []
    moved = find_run(str(tmp_path / "moved"))
    assert find_run(run_id).path == find_run(moved.run_id).path == tmp_path / "moved"


def test_opening_a_copy_leaves_the_database_at_the_original(tmp_path):
    folder = made(tmp_path / "run")
    shutil.copytree(folder.path, tmp_path / "copy")
    assert find_run(str(tmp_path / "copy")).path == tmp_path / "copy"
    assert find_run(folder.run_id).path == folder.path
    assert service.summary(str(tmp_path / "copy")).folder == tmp_path / "copy"
    with pytest.raises(Conflict, match="is a copy of run"):
        service.stop(str(tmp_path / "copy"))
    assert take_inline(str(tmp_path / "copy")).path == tmp_path / "copy"


def test_a_place_can_be_used_again_after_its_run_was_removed(tmp_path):
    first = made(tmp_path / "run")
    first_id = first.run_id
    shutil.rmtree(first.path)
    second = made(tmp_path / "run")
    assert [id for id, _ in listed()] == [second.run_id]
    with pytest.raises(NotFound, match="holds no run any more"):
        find_run(first_id)


def test_a_damaged_run_is_left_out_of_the_list_and_said(tmp_path, caplog):
    good, bad = made(None), made(None, is_registered=False)
    bad.config_path.write_text("{")
    assert listed() == [(good.run_id, "interrupted")]
    assert "config.json cannot be read" in caplog.text


def test_a_run_opens_by_path_though_the_database_cannot_be_used(tmp_path, monkeypatch, caplog):
    folder = made(tmp_path / "run", is_registered=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "file"))
    assert service.summary(str(folder.path)).run == folder.run_id
    bring_up_to_date(folder)
    assert "cannot be used" in caplog.text
    with pytest.raises(Conflict):
        find_run(folder.run_id)


def test_a_run_that_was_cut_short_is_handed_to_the_keeper_and_taken_out_again(tmp_path):
    folder = made(tmp_path / "run")
    folder.append_event(RunStarted(run=folder.run_id, resumed=False))
    queued = service.queue_again(folder.run_id)
    assert (queued.run, queued.ahead, queued.is_kept) == (folder.run_id, 0, False)
    assert (stored(folder).status, stored(folder).is_kept) == ("queued", True)
    assert json.loads(folder.run_path.read_text())["kept"] is True
    for refused in (service.queue_again, service.resume):
        with pytest.raises(Conflict, match="is queued"):
            refused(folder.run_id)
    assert service.stop(folder.run_id) == "cancelled"
    assert (stored(folder).status, stored(folder).ending) == ("cancelled", "stopped")
    last = list(journal(folder))[-1]
    assert (last["event"], last["status"]) == ("ended", "cancelled")
    with pytest.raises(Conflict, match=r"has ended already \(cancelled\)"):
        service.stop(folder.run_id)


def test_the_second_in_the_queue_is_told_so(tmp_path):
    first, second = made(tmp_path / "1"), made(tmp_path / "2")
    assert service.queue_again(first.run_id).ahead == 0
    assert service.queue_again(second.run_id).ahead == 1


def test_a_run_that_was_stopped_and_queued_again_is_again_what_it_was_when_taken_out(tmp_path):
    folder = made(tmp_path / "run")
    folder.append_event(RunEnded(**{**ENDED, "status": "stopped_early", "ending": "stopped"}))
    folder.ask_to_stop("user")
    service.queue_again(folder.run_id)
    assert not folder.stop_path.exists()
    assert service.stop(folder.run_id) == "cancelled"
    assert (stored(folder).status, stored(folder).message) == ("stopped_early", "Done.")


def test_a_run_at_work_is_asked_to_stop_by_word_and_one_that_nobody_works_on_is_not(tmp_path):
    folder = made(tmp_path / "run")
    with pytest.raises(Conflict, match="is not running: it was interrupted"):
        service.stop(folder.run_id)
    assert not folder.stop_path.exists()
    with folder.locked():
        assert service.stop(folder.run_id) == "asked"
    assert json.loads(folder.stop_path.read_text())["by"] == "user"
    assert stored(folder).stop_requested_at is not None
    assert take_inline(folder.run_id).path == folder.path
    assert (folder.stop_path.exists(), stored(folder).stop_requested_at) == (False, None)


def test_what_has_ended_for_good_is_not_queued(tmp_path):
    folder = made(tmp_path / "run")
    folder.append_event(RunEnded(**ENDED))
    with pytest.raises(Conflict, match="is completed"):
        service.queue_again(folder.run_id)


def test_a_verifier_that_is_a_function_of_this_process_is_not_queued(tmp_path):
    python = {"kind": "python", "module": "m", "name": "f", "source_hash": "0"}
    folder = made(tmp_path / "run", verifier=python)
    with pytest.raises(InvalidSetting, match="Python function of this process"):
        service.queue_again(folder.run_id)
    with pytest.raises(InvalidSetting, match="Python function of this process"):
        service.create_and_queue(RunConfig.model_validate({"verifier": python}))


def test_a_run_that_somebody_listed_in_the_instant_it_was_made_is_entered_as_meant(tmp_path):
    folder = made(tmp_path / "run", is_registered=False)
    find_run(str(folder.path))  # adopts it, as a run at work
    with open_store() as store:
        run = register(store, folder, is_kept=True)
    assert (run.status, run.is_kept) == ("queued", True)


def test_a_resumed_run_is_listed_by_what_it_does_now(tmp_path):
    folder = made(tmp_path / "run")
    folder.append_event(RunEnded(**{**ENDED, "status": "stopped_early", "ending": "stopped"}))
    assert listed() == [(folder.run_id, "stopped_early")]
    folder.append_event(RunStarted(run=folder.run_id, resumed=True))
    assert listed() == [(folder.run_id, "interrupted")]
    with folder.locked():
        assert listed() == [(folder.run_id, "starting")]


@pytest.mark.parametrize(
    "event", [{"event": "round", "record": {"round": 0}}, {"event": "planned", "rounds": "x"}, {"event": "started"}]
)
def test_a_journal_that_cannot_be_read_costs_no_other_run_its_place_in_the_list(event, tmp_path, caplog):
    bad, good = made(tmp_path / "bad"), made(tmp_path / "good")
    bad.events_path.write_text(json.dumps(event) + "\n")
    good.append_event(RunEnded(**ENDED))
    assert (good.run_id, "completed") in listed()
    assert str(bad.events_path) in caplog.text
