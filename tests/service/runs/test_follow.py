"""Following a run by its journal and heartbeat: times worked by hand, and a run at work in another process."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from ratchet.run.events import Planned, RoundDone, RunEnded, RunStarted, parse_event
from ratchet.run.records import RoundRecord, Seconds, Validation
from ratchet.run.run_folder import RunFolder
from ratchet.run.state import RunState
from ratchet.service.runs.follow import Followed, follow, follow_log, log_lines

from ...small_runs import flags, journal, small

START = datetime(2026, 11, 30, 12, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


def record(number, seconds=10.0):
    return RoundRecord(
        round=number, validation=Validation(prompts=1, accuracy=0.5, reward=0.5, outcomes={}), best_round=0,
        best_accuracy=0.5, seconds=Seconds(total=seconds),
    )  # fmt: skip


def event(kind, seconds, **fields):
    return parse_event({"event": kind, "at": at(seconds).isoformat(), **fields})


def followed(*events, **settings):
    return Followed("r", small(**settings), RunState.fold(events))


def rounds(*seconds):
    """Return the events of rounds that took so long, from round 0 on, each written as it ended."""
    ends = [sum(seconds[: number + 1]) for number in range(len(seconds))]
    return [
        event("round", end, record=record(number, took).model_dump())
        for number, (end, took) in enumerate(zip(ends, seconds, strict=True))
    ]


def test_time_left_is_the_rounds_left_at_the_pace_of_the_last_ones():
    run = followed(event("started", 0), event("planned", 1, rounds=10), *rounds(5, 10, 10, 40, 10, 10, 10))
    # Of rounds 2 to 6 the median is 10; 4 rounds are left; 3 seconds of the next one have passed.
    assert run.seconds_left(at(95 + 3)) == pytest.approx(4 * 10 - 3)
    assert run.seconds(at(98)) == 98


def test_the_time_limit_bounds_the_time_left():
    events = [event("started", 0), event("planned", 1, rounds=1000), *rounds(5, 100)]
    assert followed(*events, time_hours=0.05).seconds_left(at(105)) == pytest.approx(180 - 105)


def test_before_a_round_is_done_nothing_is_estimated():
    run = followed(event("started", 0), event("planned", 1, rounds=10), *rounds(5))
    assert run.seconds_left(at(6)) is None


def test_cost_counts_the_seconds_of_all_sessions_but_not_the_time_between():
    run = followed(
        event("started", 0), *rounds(5, 95), event("ended", 100, status="stopped_early", ending="stopped", message="m"),
        event("started", 1000), price_per_hour=36,
    )  # fmt: skip
    assert run.seconds(at(1010)) == 110
    assert run.cost(at(1010)) == pytest.approx(1.10)
    assert run.ended is None
    assert followed(event("started", 0)).cost(at(100)) is None


def test_a_round_that_is_written_again_after_a_resume_takes_the_place_of_the_first():
    run = followed(event("started", 0), *rounds(1, 2, 3), event("started", 9), *rounds(1, 2)[1:])
    assert [one.round for one in run.state.records] == [0, 1]


@pytest.mark.parametrize(
    ("ending", "best_round", "is_kept"),
    [("all_rounds", 2, True), ("stopped", 0, True), ("stalled", 2, False), ("error", None, False)],
)
def test_only_good_endings_with_an_adapter_are_a_success(ending, best_round, is_kept):
    run = followed(event("ended", 1, status="failed", ending=ending, message="m", best_round=best_round))
    assert run.has_kept_adapter == is_kept


@pytest.mark.slow
def test_a_run_at_work_is_followed_to_its_end(start_cli, ratchet_command, tmp_path):
    process = start_cli("train", *flags(rounds=3), "--out", tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    for _ in follow_until_there(folder):
        pass
    looks = list(follow(str(tmp_path / "run")))
    last = looks[-1].run
    assert process.wait(timeout=250) == 0
    assert [event.seq for look in looks for event in look.events] == [one["seq"] for one in journal(folder)]
    assert (last.ended.ending, last.state.rounds, len(last.state.records), last.is_at_work) == (
        "all_rounds",
        3,
        4,
        False,
    )
    code, out, _ = ratchet_command("runs", "follow", tmp_path / "run")
    assert code == 0
    assert out.count("Round   3/3") == 1
    assert last.ended.message in out
    code, out, _ = ratchet_command("runs", "follow", tmp_path / "run", "--json")
    assert (code, json.loads(out)["ending"], json.loads(out)["cost"]) == (0, "all_rounds", None)


def follow_until_there(folder):
    import time

    deadline = time.monotonic() + 200
    while not (folder.run_path.exists() and folder.is_locked()) and time.monotonic() < deadline:
        yield time.sleep(0.2)


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(small(), tmp_path / "run")
    made.append_event(RunStarted(run=made.run_id, resumed=False))
    made.append_event(Planned(rounds=2, prompts=32))
    made.append_event(RoundDone(record=record(0)))
    return made


def test_a_run_that_nobody_works_on_is_told_as_such(folder, ratchet_command):
    code, out, _ = ratchet_command("runs", "follow", folder.path)
    assert code == 3
    assert f"ratchet resume {folder.run_id}" in out


def test_the_exit_code_is_that_of_the_ending(folder, ratchet_command):
    folder.append_event(RunEnded(status="stopped_early", ending="out_of_memory", message="No room.", best_round=0))
    code, out, _ = ratchet_command("runs", "follow", folder.path)
    assert code == 4
    assert "No room." in out


def test_the_heartbeat_says_what_a_run_is_at_and_a_damaged_one_says_nothing(folder):
    beat = {"pid": 1, "phase": "sampling", "done": 3, "total": 16, "round": 1, "progress": 9}
    for content, phase in [(json.dumps(beat), "sampling"), ("{", None), ("[]", None)]:
        (folder.path / "heartbeat.json").write_text(content)
        with folder.locked():
            look = next(follow(str(folder.path)))
        assert (look.run.doing and look.run.doing.phase) == phase


def test_the_log_is_read_from_its_end_and_followed_also_when_it_is_begun_anew(folder):
    for number in range(5):
        folder.log(f"line={number}")
    assert [line.split()[1] for line in log_lines(str(folder.path), 2)] == ["line=3", "line=4"]
    assert len(log_lines(str(folder.path), None)) == 5
    steps = iter(["line=5", None, "line=6"])

    def pause(_):
        step = next(steps)
        if step is None:
            folder.log_path.write_text("")
        else:
            folder.log(step)

    seen = []
    with folder.locked():
        stream = follow_log(str(folder.path), 1, pause=pause)
        seen = [[line.split()[1] for line in next(stream)] for _ in range(4)]
    assert seen == [["line=4"], ["line=5"], [], ["line=6"]]


def test_a_log_that_is_not_there_yet_has_no_lines(folder, ratchet_command):
    assert ratchet_command("runs", "log", folder.path) == (0, "", "")
    code, out, _ = ratchet_command("runs", "log", folder.path, "--json")
    assert (code, json.loads(out)) == (0, {"lines": []})
