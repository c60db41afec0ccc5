"""Where a run is shown: a reader that goes away, a terminal of few characters, a stop while the curve is drawn."""

import json
import os
import sys

import pytest

from ratchet import cli as command_line
from ratchet.cli.live import round_line
from ratchet.cli.output import console_for
from ratchet.cli.run_output import rounds_table
from ratchet.run.records import Learned, RoundRecord, Seconds, Validation
from ratchet.run.round_lines import log_line
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs import round_history

from ..small_runs import ended, flags


class Killed(BaseException):
    """Stands for a signal that ends the process: nothing of ours catches it."""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["for people", "for machines"])
def test_a_run_goes_on_to_its_end_though_nobody_reads_any_more(options, start_cli, tmp_path):
    process = start_cli("train", *flags(rounds=1), "--out", tmp_path / "run", *options)
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=250) == 0
    assert ended(RunFolder(tmp_path / "run"))["ending"] == "all_rounds"
    assert (tmp_path / "run" / "curve.png").stat().st_size > 0


@pytest.mark.slow
def test_a_terminal_of_few_characters_ends_no_run(cli, tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = cli("train", *flags(rounds=1), "--out", tmp_path / "run", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Validation by round  ??" in done.stdout


def test_an_entropy_that_is_unknown_is_not_shown_as_0():
    known = RoundRecord(
        round=1, validation=Validation(prompts=1, accuracy=1, reward=1, outcomes={}), best_round=1, best_accuracy=1,
        seconds=Seconds(), reward=0.5, entropy=0.25, learned=Learned(steps=1, loss=0.1),
    )  # fmt: skip
    console = console_for(as_json=False)
    with console.capture() as captured:
        console.print(rounds_table([known, known.model_copy(update={"entropy": None})]))
    one, other = [line.split() for line in captured.get().splitlines() if "0.500" in line]
    assert "0.250" in one
    assert "?" in other
    assert "0.000" not in other


def test_the_log_says_how_far_sampler_and_trainer_were_apart_where_that_was_corrected():
    learned = Learned(
        steps=1, loss=0.1, sampler_gap=0.01, importance_mean=1.02, importance_max=3.5, importance_capped=0.125
    )
    record = RoundRecord(
        round=1, validation=Validation(prompts=1, accuracy=1, reward=1, outcomes={}), best_round=1, best_accuracy=1,
        seconds=Seconds(), reward=0.5, learned=learned,
    )  # fmt: skip
    assert "gap=1.00e-02 importance=1.0200 largest=3.5000 capped=0.1250" in log_line(record)
    bare = record.model_copy(update={"learned": Learned(steps=1, loss=0.1, sampler_gap=0.01)})
    assert "importance" not in log_line(bare)


def test_a_rounds_line_says_what_validation_cost_of_it():
    record = RoundRecord(
        round=2,
        validation=Validation(prompts=4, accuracy=0.25, reward=0.25, outcomes={}),
        best_round=0,
        best_accuracy=0.5,
        seconds=Seconds(sampling=6.0, update=2.0, validation=4.26, total=12.31),
    )
    assert round_line(record, 20).plain == "Round   2/20  validation  25.0%  12.3 s, 4.3 s of it validation"


@pytest.mark.parametrize(("unparseable", "is_told"), [(3, False), (4, True)])
def test_a_rounds_line_warns_above_three_percent_unparseable(unparseable, is_told):
    record = RoundRecord(
        round=1, validation=Validation(prompts=1, accuracy=1, reward=1, outcomes={}), best_round=1, best_accuracy=1,
        seconds=Seconds(), reward=0.5, outcomes={"graded": 100 - unparseable, "unparseable": unparseable},
    )  # fmt: skip
    assert f"unparseable {unparseable}" in round_line(record, 20).plain
    assert ("(above 3%)" in round_line(record, 20).plain) is is_told


def test_a_console_that_cannot_be_written_to_falls_silent(monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        console = console_for(as_json=False, of_a_run=True)
        console.print("x")
        console.print("y")
        command_line.tell("z")
    assert console.quiet


def test_machines_are_told_before_the_curve_is_drawn_and_a_curve_is_whole_or_not_there(monkeypatch, capsys, tmp_path):
    def killed(*_):
        raise Killed

    monkeypatch.setattr(round_history, "write_atomically", killed)
    monkeypatch.setattr(sys, "argv", ["ratchet", "train", *flags(rounds=1), "--out", str(tmp_path / "run"), "--json"])
    with pytest.raises(Killed):
        command_line.ratchet.main(standalone_mode=False)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["ending"] == "all_rounds"
    assert not (tmp_path / "run" / "curve.png").exists()
