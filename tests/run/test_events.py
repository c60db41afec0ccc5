"""Events keep the form that journals have had since 0.1, and what they add up to is the run's state."""

import json
from pathlib import Path

import pytest

from ratchet.errors import Conflict
from ratchet.run.events import (
    Answered,
    HeldOut,
    Note,
    NotStarted,
    Planned,
    RoundDone,
    RunEnded,
    RunStarted,
    Saving,
    UnknownEvent,
    parse_event,
)
from ratchet.run.journal import append, read_from, read_state
from ratchet.run.records import RoundRecord, Seconds, Validation
from ratchet.run.state import RunState

JOURNAL = Path(__file__).parents[1] / "data" / "events-0.1.jsonl"  # written by 0.1, one event of each kind at least
NEWER = '{"seq": 1, "at": "2026-12-01T00:00:00+00:00", "event": "paused", "why": {"x": 1}}'


def done(number, best=0, seconds=2.0, accuracy=0.5):
    validation = Validation(prompts=4, accuracy=accuracy, loss=1.0 - number / 10)
    return RoundDone(
        record=RoundRecord(
            round=number,
            validation=validation,
            best_round=best,
            best_accuracy=accuracy,
            seconds=Seconds(total=seconds),
        ),
        at=f"2026-12-01T00:00:{number:02d}+00:00",
    )


def ended(**fields):
    return RunEnded(**{"status": "stopped_early", "ending": "stopped", "message": "m", "seconds": 9.0, **fields})


@pytest.mark.parametrize("line", JOURNAL.read_text().splitlines(), ids=lambda line: json.loads(line)["event"])
def test_an_event_of_an_older_version_is_read_and_written_with_the_same_bytes(line):
    event = parse_event(json.loads(line))
    assert not isinstance(event, UnknownEvent)
    assert json.dumps({"seq": event.seq, "at": event.at, "event": event.event, **event.fields()}) == line


def test_what_is_left_out_of_an_event_is_left_out_of_its_line(tmp_path):
    written = append(tmp_path / "events.jsonl", Note(text="Mind the gap."))
    row = json.loads((tmp_path / "events.jsonl").read_text())
    assert list(row) == ["seq", "at", "event", "text", "crc"]
    assert (written.seq, written.at) == (row["seq"], row["at"])


def test_an_event_of_a_newer_version_is_kept_and_skipped(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(NEWER + "\n")
    append(path, Planned(rounds=3))
    newer, planned = (event for event, _ in read_from(path))
    assert isinstance(newer, UnknownEvent)
    assert newer.model_dump()["why"] == {"x": 1}
    assert planned.seq == 2
    assert read_state(path).rounds == 3


def test_an_event_without_a_time_it_needs_is_damage(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"event": "started", "at": "yesterday"}\n')
    with pytest.raises(Conflict, match="damaged"):
        read_state(tmp_path / "events.jsonl")


@pytest.fixture
def written(tmp_path):
    """A journal of seven events."""
    path = tmp_path / "events.jsonl"
    for event in (RunStarted(), Planned(rounds=3), done(0), done(1), Note(text="one"), done(2), Note(text="two")):
        append(path, event)
    return path


TORN = [b"\0" * 600, b"\xff\xfe\x80\n\xff", b"\xff\n\x80\r\n\n", b'{"seq": 8, "at": "2', b"\x80\n" * 3]


@pytest.mark.parametrize("end", TORN, ids=["zeros", "bytes", "lines", "half", "more lines"])
def test_whatever_a_crash_leaves_at_the_end_is_cut_off(written, end):
    whole = written.read_bytes()
    written.write_bytes(whole + end)
    assert [event.seq for event, _ in read_from(written)] == list(range(1, 8))
    assert append(written, Note(text="three")).seq == 8
    assert written.read_bytes().startswith(whole)
    assert [event.seq for event, _ in read_from(written)] == list(range(1, 9))


def test_a_flipped_bit_in_any_text_is_damage_and_the_rest_is_whole(written):
    lines = written.read_bytes().splitlines(keepends=True)
    for place in range(len(lines)):
        text = lines[place].replace(b"one", b"onf").replace(b"two", b"twp").replace(b"T", b"U", 1)
        assert text != lines[place]
        written.write_bytes(b"".join([*lines[:place], text, *lines[place + 1 :]]))
        seen = []
        with pytest.raises(Conflict, match=f"after event {place}:" if place else "at its first event:"):
            seen.extend(event.seq for event, _ in read_from(written))
        assert seen == list(range(1, place + 1))
        with pytest.raises(Conflict, match="damaged"):
            read_state(written)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([0, 1, 3, 4, 5, 6], "event 3 is missing"),
        ([2, 3, 4, 5, 6], "events 1 to 2 are missing"),
        ([0, 1, 2, 2, 3, 4, 5, 6], "event 3 is there twice"),
    ],
)
def test_events_that_are_missing_are_named(written, kept, said):
    lines = written.read_bytes().splitlines(keepends=True)
    written.write_bytes(b"".join(lines[place] for place in kept))
    with pytest.raises(Conflict, match=f"{said}. Put a copy of the file back"):
        read_state(written)


def test_lines_of_before_the_checksums_are_read_and_gone_on_from(written):
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    written.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "crc"}) + "\n" for row in rows))
    assert append(written, Note(text="three")).seq == 8
    assert read_state(written).rounds_done == 2


def test_rounds_add_up_to_the_state_of_a_run():
    state = RunState.fold([RunStarted(), Planned(rounds=5), done(0), done(1, best=1, accuracy=0.75), done(2, best=1)])
    assert (state.status, state.rounds, state.rounds_done, state.best_round) == ("training", 5, 2, 1)
    assert (state.start_accuracy, state.start_loss, state.best_loss, state.seconds) == (0.5, 1.0, 0.9, 6.0)
    assert RunState.fold([Saving()], state).status == "saving"


def test_folding_in_pieces_is_folding_at_once():
    events = [RunStarted(), done(0), HeldOut(when="before", accuracy=0.1), ended(), RunStarted(resumed=True), done(1)]
    whole = RunState.fold(events)
    for cut in range(len(events) + 1):
        assert RunState.fold(events[cut:], RunState.fold(events[:cut])) == whole


def test_the_last_of_started_and_ended_says_whether_a_run_has_ended():
    before = RunState.fold([RunStarted(), done(0), ended(artifacts="s3://a", adapter_sha256="ab")])
    assert before.has_ended
    assert before.has_adapter
    assert (before.status, before.ended.ending, before.seconds) == ("stopped_early", "stopped", 9.0)
    again = RunState.fold([RunStarted(resumed=True)], before)
    assert not again.has_ended
    assert (again.status, again.ended_seconds, again.artifacts_url) == ("training", 9.0, "s3://a")


def test_a_refusal_counts_until_something_else_is_written():
    refused = RunState.fold([RunStarted(), NotStarted(message="Another device.")])
    assert refused.refused.message == "Another device."
    assert RunState.fold([RunStarted()], refused).refused is None


def test_an_evaluation_counts_its_answers_and_notes_are_kept_once_by_what_they_are_about():
    events = [Answered(done=8, of=20, seconds=1.5), Note(text="a", about="x"), Answered(done=16, of=20, seconds=2.0)]
    state = RunState.fold([*events, Note(text="b")])
    assert (state.rounds_done, state.rounds, state.answered_seconds) == (16, 20, 3.5)
    assert (state.notes, state.noted) == (("a", "b"), {"x"})
