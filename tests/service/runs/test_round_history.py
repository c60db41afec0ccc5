"""The rounds of a run as a table and as files that other programs read."""

import csv
import io
import json

import pyarrow.parquet
import pytest

from ratchet.errors import Conflict, InvalidSetting
from ratchet.run.events import RoundDone
from ratchet.run.records import Learned, RoundRecord, Seconds, Validation
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.round_history import as_csv, export_history, history_row

from ...small_runs import small

START = RoundRecord(
    round=0, validation=Validation(prompts=4, accuracy=0.25, reward=0.25, outcomes={}), best_round=0, best_accuracy=0.25,
    seconds=Seconds(validation=2.0, total=2.0),
)  # fmt: skip
FIRST = RoundRecord(
    round=1, validation=Validation(prompts=4, accuracy=0.5, reward=0.5, outcomes={}), best_round=1, best_accuracy=0.5,
    seconds=Seconds(sampling=3.0, grading=0.25, update=4.0, validation=2.0, total=9.5), reward=0.375, accuracy=0.25,
    groups=8, informative_groups=6, outcomes={"graded": 10, "cut_off": 3, "unparseable": 2, "failed": 1},
    failures={"time": 1}, answer_tokens=17.4, learned=Learned(steps=1, loss=0.5),
)  # fmt: skip


def test_a_row_keeps_what_is_not_known_apart_from_zero():
    start, first = history_row(START), history_row(FIRST)
    assert start.keys() == first.keys()
    assert start["reward"] is start["learned_from"] is start["cut_off"] is start["metric_failures"] is None
    assert (first["learned_from"], first["groups"], first["cut_off"], first["metric_failures"]) == (6, 8, 3, 1)
    assert first["kl"] is None


def test_csv_and_parquet_and_json_hold_the_same_numbers(tmp_path):
    for name in ("h.csv", "h.json", "h.parquet"):
        export_history([START, FIRST], tmp_path / name)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "h.csv").read_text())))
    assert (rows[0]["reward"], rows[1]["reward"], rows[1]["seconds_update"]) == ("", "0.375", "4.0")
    table = pyarrow.parquet.read_table(tmp_path / "h.parquet").to_pylist()
    assert table == [history_row(START), history_row(FIRST)]
    assert [RoundRecord.model_validate(one) for one in json.loads((tmp_path / "h.json").read_text())] == [START, FIRST]


def test_another_name_or_no_round_is_refused(tmp_path):
    with pytest.raises(InvalidSetting, match=r"\.csv, \.json, \.parquet"):
        export_history([START], tmp_path / "h.txt")
    with pytest.raises(Conflict, match="No round"):
        export_history([], tmp_path / "h.csv")
    assert as_csv([]) == "round\n"


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create(small(), tmp_path / "run")
    for record in (START, FIRST):
        made.append_event(RoundDone(record=record))
    return made


def test_the_table_is_newest_first_and_fits_eighty_characters(folder, ratchet_command):
    code, out, _ = ratchet_command("runs", "rounds", folder.path)
    lines = [line.rstrip() for line in out.splitlines()]
    rows = [line.split() for line in lines if line.split() and line.split()[0] in ("0", "1")]
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert rows == [
        ["1", "*", "0.375", "50.0%", "6/8", "3", "2", "1", "17", "9.5", "3.0", "0.2", "4.0", "2.0"],
        ["0", "25.0%", "2.0", "0.0", "0.0", "0.0", "2.0"],
    ]


def test_machines_are_told_the_same(folder, ratchet_command, tmp_path):
    code, out, _ = ratchet_command("runs", "rounds", folder.path, "--json", "--export", tmp_path / "h.csv")
    assert code == 0
    assert json.loads(out)["rounds"] == [history_row(FIRST), history_row(START)]
    assert (tmp_path / "h.csv").read_text() == as_csv([START, FIRST])
    assert ratchet_command("runs", "rounds", folder.path, "--csv")[1] == as_csv([START, FIRST])
    assert ratchet_command("runs", "rounds", folder.path, "--export", tmp_path / "h.doc")[0] == 2


def test_samples_list_all_prompts_and_open_the_first_three(folder, ratchet_command):
    answer = {"text": "x" * 700, "reward": 0.5, "correctness": 0.0, "format": 0.0, "parts": {"token_f1": 0.5}}
    answer |= {"outcome": "failed", "failure": "time", "tokens": 9}
    rows = [
        {
            "prompt_id": number,
            "prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": f"question {number}"}],
            "ground_truth": "gold",
            "answers": [answer],
        }
        for number in range(1, 6)
    ]
    folder.write_rollouts(1, iter(rows))
    code, out, _ = ratchet_command("runs", "samples", folder.path)
    assert code == 0
    assert out.count("Reference  gold") == 3
    assert "2 more prompts" in out
    assert "Prompt 5" in out
    assert out.index("question 1") < out.index("be brief")
    assert "failed (time), correctness 0.00, token f1 0.50, 9 tokens" in out
    assert "x" * 601 not in out
    assert "x" * 700 in ratchet_command("runs", "samples", folder.path, "--full")[1]
    assert len(json.loads(ratchet_command("runs", "samples", folder.path, "--json")[1])["prompts"]) == 5
    code, _, err = ratchet_command("runs", "samples", folder.path, "--round", "7")
    assert (code, "Rounds with samples: 1 to 1" in err) == (3, True)
