"""Ending a run for a worker that cannot: what is on disk decides, and the sentence is the worker's own."""

import hashlib
import json
import shutil
import subprocess
import sys

import pytest

from ratchet import worker
from ratchet.errors import DiskFull
from ratchet.run.end_stalled_run import adapter_checksum, close_stalled_run
from ratchet.run.events import Listener, Note, RunStarted, parse_event
from ratchet.run.run_folder import RunFolder

from ..small_runs import adapter_bytes, ended, journal, keep_events, records, small


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of ours catches it."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three rounds to its end."""
    home = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_HOME", str(home / "home"))
        folder = RunFolder.create(small(), home / "run")
        worker.run(folder)
    return folder


@pytest.fixture
def dead(finished, tmp_path):
    """A copy of it as a worker leaves it that dies after its last round."""
    shutil.copytree(finished.path, tmp_path / "dead")
    folder = RunFolder(tmp_path / "dead")
    keep_events(folder, lambda event: event["event"] not in ("ended", "saving"))
    return folder


def test_a_dead_run_is_closed_like_its_worker_would_have(dead, finished):
    event = close_stalled_run(dead, "stalled", "Nothing moved for 30 minutes.")
    own = ended(finished)
    assert event == parse_event(ended(dead))
    assert (event.status, event.ending) == ("stopped_early", "stalled")
    alike = own.keys() - {"seq", "at", "status", "ending", "message", "seconds", "heldout_after"}
    assert {key: getattr(event, key) for key in alike} == {key: own[key] for key in alike}
    kept = own["message"].removeprefix("All rounds are done. ")
    assert event.message.startswith(f"Nothing moved for 30 minutes. {kept} ")
    assert "raise Stall limit" in event.message
    assert event.seconds > 0
    assert "ended ending=stalled rounds_done=3" in dead.log_path.read_text()


def test_a_run_that_has_ended_stays_as_it_is(finished):
    events = list(journal(finished))
    assert close_stalled_run(finished, "stalled", "Nothing moved.") == parse_event(events[-1])
    assert list(journal(finished)) == events


def test_a_resumed_run_is_closed_anew(dead):
    close_stalled_run(dead, "stopped", "Stopped as asked.")
    dead.append_event(RunStarted(run=dead.run_id, resumed=True))
    assert close_stalled_run(dead, "error", "The worker died three times.").ending == "error"
    assert ended(dead)["status"] == "failed"


def test_what_the_checkpoint_knows_and_the_journal_lacks_is_entered_and_what_it_does_not_know_is_dropped(dead):
    keep_events(dead, lambda event: event["event"] != "round" or event["record"]["round"] < 3)
    shutil.copy(dead.rollouts_file(1), dead.rollouts_file(4))
    with dead.events_path.open("a") as file:
        file.write('{"torn')
    event = close_stalled_run(dead, "stalled", "Nothing moved.")
    assert [record["round"] for record in records(dead)] == [0, 1, 2, 3]
    assert event.rounds_done == 3
    assert not dead.rollouts_file(4).exists()


def test_a_run_without_round_zero_fails_and_one_that_was_stopped_is_cancelled(tmp_path):
    folder = RunFolder.create(small(), tmp_path / "run")
    folder.append_event(RunStarted(run=folder.run_id, resumed=False))
    event = close_stalled_run(folder, "stalled", "Nothing moved.", seconds=12.34567)
    assert (event.status, event.adapter_sha256, event.seconds) == ("failed", None, 12.346)
    assert "no adapter to keep" in event.message
    other = RunFolder.create(small(), tmp_path / "other")
    assert close_stalled_run(other, "stopped", "Stopped as asked.").status == "cancelled"


def best_changes(folder):
    """The rounds in which a run found a new best adapter, after round 0."""
    return [record["round"] for record in records(folder) if record["best_round"] == record["round"] > 0]


@pytest.mark.parametrize("moment", ["staged", "neither"])
def test_an_adapter_that_a_kill_left_beside_its_place_is_put_there(moment, finished, tmp_path, monkeypatch):
    number = best_changes(finished)[0]
    folder = RunFolder.create(small(), tmp_path / "run")
    put = RunFolder.put_adapter
    calls = []

    def killed(self):
        calls.append(self)
        if len(calls) == 2:  # the first one is round 0's
            if moment == "neither":
                self.adapter_path.rename(self.path / ".adapter.old")
            raise Killed
        put(self)

    monkeypatch.setattr(RunFolder, "put_adapter", killed)
    with pytest.raises(Killed):
        worker.run(folder)
    event = close_stalled_run(folder, "stalled", "Nothing moved.")
    assert (event.best_round, event.rounds_done) == (number, number)
    assert event.adapter_sha256 == hashlib.sha256(adapter_bytes(folder)).hexdigest()
    assert not list(folder.path.glob(".adapter*"))


def test_a_staged_adapter_of_a_round_that_never_was_safe_is_not_kept(dead):
    before = adapter_bytes(dead)
    dead.stage_adapter({"adapter_model.safetensors": before[:-4] + b"\x00\x00\x80\x3f", "adapter_config.json": b"{}"})
    close_stalled_run(dead, "stalled", "Nothing moved.")
    assert adapter_bytes(dead) == before


def test_a_damaged_checkpoint_leaves_journal_and_adapter_to_go_by(dead):
    dead.checkpoint_path.write_bytes(b"\xff" * 40)
    event = close_stalled_run(dead, "stalled", "Nothing moved.")
    assert (event.status, event.rounds_done) == ("stopped_early", 3)
    assert event.adapter_sha256 == adapter_checksum(dead)


def test_a_full_disk_costs_the_event_alone(dead, monkeypatch):
    def full(self, event):
        raise DiskFull("full")

    monkeypatch.setattr(RunFolder, "append_event", full)
    event = close_stalled_run(dead, "stalled", "Nothing moved.")
    assert (event.status, event.best_round) == ("stopped_early", records(dead)[-1]["best_round"])


def test_closing_from_outside_loads_no_torch(dead):
    code = (
        "import sys, json\nfrom pathlib import Path\nfrom ratchet.run.end_stalled_run import close_stalled_run\n"
        "from ratchet.run.run_folder import RunFolder\n"
        "event = close_stalled_run(RunFolder(Path(sys.argv[1])), 'stalled', 'Nothing moved.')\n"
        "print(json.dumps([event.status, [n for n in ('torch', 'safetensors') if n in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, dead.path], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["stopped_early", []]


def test_every_sign_of_life_moves_the_count(tmp_path):
    from ratchet.engine.budget import TimeBudget
    from ratchet.worker.session import Session

    seen = []
    folder = RunFolder.create(small(), tmp_path / "run")
    listener = Listener(on_event=seen.append, on_progress=lambda *told: seen.append(told))
    session = Session(folder, TimeBudget(None, lambda: 0.0), [listener])
    counts = [session.progress_count]
    for act in (
        lambda: session.note("x"),
        lambda: session.on_progress("sampling", 1, 2),
        lambda: session.why_stop("within"),
        session.check,
        session.progressed,
    ):
        act()
        counts.append(session.progress_count)
    assert counts == sorted(set(counts))
    assert [type(one) for one in seen] == [Note, tuple]
