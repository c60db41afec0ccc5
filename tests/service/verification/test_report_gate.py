"""The gate as its users meet it: ratchet inspect, a question on a terminal, a refusal without one, and from Python."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

import ratchet
import ratchet.cli
from ratchet import service
from ratchet.config.config_text import build
from ratchet.engine import report_sampling as engine_card
from ratchet.errors import Conflict, InvalidSetting
from ratchet.files import ratchet_home
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs import demo_presets
from ratchet.worker.__main__ import main

from ...small_runs import SMALL, flags, journal

ASKED = "I have read the report. Start the run?"
# Without the flag by which the other tests' runs say that the report was read.
BARE = [flag for flag in flags(rounds=1) if flag != "--inspected"]
UNKNOWN_TASK = ["--pairs", "6", "--max-answer-tokens", "16"]  # the tiny model has never seen six pairs


def no_report(monkeypatch):
    def make(*_):
        raise AssertionError("a report was made")

    monkeypatch.setattr(engine_card, "make_report", make)


def test_without_a_terminal_an_unconfirmed_run_is_refused_with_3_before_any_model_loads(cli, tmp_path):
    done = cli("train", *BARE, "--out", tmp_path / "run", "--json")
    assert done.returncode == 3
    fault = json.loads(done.stdout.splitlines()[-1])["error"]
    assert fault["code"] == "conflict"
    assert "ratchet inspect CONFIG --confirm" in fault["message"]
    assert "--inspected" in fault["message"]
    assert not (tmp_path / "run").exists()
    assert not (ratchet_home() / "reports").exists()


class Terminal:
    """``ratchet ARGS`` on a terminal of its own, as somebody at a keyboard has it."""

    def __init__(self, *arguments):
        self._own, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ratchet", *map(str, arguments)],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200"},
            start_new_session=True,
        )
        os.close(other)
        self.text = ""

    def wait_for(self, words, seconds=200):
        limit = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < limit, self.text
            if not self._read():
                break
        assert words in self.text, self.text

    def _read(self):
        ready, _, _ = select.select([self._own], [], [], 1)
        if not ready:
            return self.process.poll() is None
        try:
            piece = os.read(self._own, 65536)
        except OSError:  # the other end is closed
            return False
        self.text += piece.decode("utf-8", "replace")
        return bool(piece)

    def answer(self, word):
        os.write(self._own, f"{word}\n".encode())

    def end(self):
        while self._read():
            pass
        code = self.process.wait(200)
        os.close(self._own)
        return code


def test_on_a_terminal_the_report_is_shown_and_yes_starts_the_run(tmp_path, ratchet_command):
    terminal = Terminal("train", *BARE, "--out", tmp_path / "run")
    terminal.wait_for(ASKED)
    assert "Verifier report" in terminal.text
    assert "answers worth reading" in terminal.text
    assert not (tmp_path / "run").exists()
    terminal.answer("yes")
    assert terminal.end() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.text)
    assert re.search(r"Device +cpu \(1 thread\)", plain)
    assert re.search(r"Limits +1 round, at most 2 hours", plain)
    assert re.search(r"Report +confirmed by \S+ on 20", plain)
    assert re.search(rf"Writes +.*{re.escape(str(tmp_path / 'run'))}", plain)
    record = RunFolder(tmp_path / "run").read_run()["report"]
    assert (record["how"], record["override"]) == ("terminal", "")
    # From now on nobody is asked: not where nobody could be, nor for other settings of training.
    code, out, _ = ratchet_command("train", *BARE, "--learning-rate", "1e-3", "--out", tmp_path / "again", "--json")
    assert (code, json.loads(out.splitlines()[-1])["ending"]) == (0, "all_rounds")
    assert RunFolder(tmp_path / "again").read_run()["report"] == record
    code, out, _ = ratchet_command("runs", "show", tmp_path / "again")
    assert re.search(rf"Report +confirmed by .*key {record['key']}", out)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["no", "y"])
def test_any_other_word_starts_nothing_and_the_report_is_kept(word, tmp_path):
    terminal = Terminal("train", *BARE, "--out", tmp_path / "run")
    terminal.wait_for(ASKED)
    terminal.answer(word)
    assert terminal.end() == 3
    assert "The run was not started" in terminal.text
    assert not (tmp_path / "run").exists()
    [folder] = (ratchet_home() / "reports").iterdir()
    assert service.find_report(folder.name).confirmation is None


def test_inspect_reports_and_confirms_for_the_runs_that_follow(tmp_path, ratchet_command, monkeypatch):
    code, out, err = ratchet_command("inspect", *BARE, "--json")
    assert code == 0, err
    [line] = out.splitlines()
    told = json.loads(line)
    assert (told["confirmation"], told["report"]["answers"]) == (None, 64)
    assert told["key"] == told["report"]["key"]
    assert not service.list_runs()
    code, _, _ = ratchet_command("train", *BARE, "--json")
    assert code == 3
    no_report(monkeypatch)  # what was read is confirmed, and not another one that is made for it
    code, out, _ = ratchet_command("inspect", *BARE, "--confirm", "--out", tmp_path / "report.html")
    assert code == 0
    assert "Verifier report" in out
    assert f"Report {told['key']}: confirmed by" in out
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert ratchet_command("train", *BARE, "--out", tmp_path / "run", "--json")[0] == 0
    other = ["--max-answer-tokens", "24", "--temperature", "0.9"]
    code, _, err = ratchet_command("train", *BARE, *other, "--out", tmp_path / "other", "--json")
    assert code == 0
    assert re.search(r"Report +confirmed by .*; it was made with Temperature 1, Max answer tokens 32\n", err)
    # Other data is another report.
    code, _, err = ratchet_command("train", *BARE, "--data.seed", "5", "--json")
    assert code == 3


def test_the_flag_makes_a_missing_report_and_records_who_said_so(tmp_path, ratchet_command):
    code, _, err = ratchet_command("train", *BARE, "--inspected", "--out", tmp_path / "run", "--json")
    assert code == 0, err
    record = RunFolder(tmp_path / "run").read_run()["report"]
    assert record["how"] == "flag"
    assert service.find_report(record["key"]).confirmation.model_dump() == record
    assert service.summary(str(tmp_path / "run")).report.model_dump() == record


def test_a_run_that_its_report_refuses_starts_for_a_reason_alone(tmp_path, ratchet_command):
    hopeless = [*BARE, *UNKNOWN_TASK, "--inspected", "--out", tmp_path / "run", "--json"]
    code, _, err = ratchet_command("train", *hopeless)
    assert code == 3
    assert (
        "The report refuses this run. All 256 answers of the starting model scored 0.00: all answers were wrong." in err
    )
    assert not (tmp_path / "run").exists()
    code, _, err = ratchet_command("train", *hopeless, "--override-report", "why not")
    assert code == 2
    assert "has 2 words" in err
    assert ratchet_command("train", *hopeless, "--override-report", "the plumbing is what is tried")[0] == 0
    record = RunFolder(tmp_path / "run").read_run()["report"]
    assert record["override"] == "the plumbing is what is tried"


def test_a_report_for_another_longest_answer_is_made_again_before_it_is_asked_about(ratchet_command, monkeypatch):
    assert ratchet_command("inspect", *BARE, "--json")[0] == 0
    no_report(monkeypatch)
    assert ratchet_command("train", *BARE, "--inspected", "--json")[0] == 0
    (folder,) = (ratchet_home() / "reports").iterdir()
    (folder / "confirmation.json").unlink()
    with pytest.raises(AssertionError, match="a report was made"):
        ratchet.train({**SMALL, "rl": {**SMALL["rl"], "max_answer_tokens": 24}}, inspected=True)


def test_the_demo_needs_no_flag_unless_what_its_report_holds_for_is_changed(tmp_path, ratchet_command, monkeypatch):
    no_report(monkeypatch)
    small = ["--rounds", "1", "--prompts-per-round", "2", "--answers-per-prompt", "2", "--validation-prompts", "4"]
    code, _, err = ratchet_command("demo", *small, "--heldout", "4", "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert re.search(r"Report +confirmed; this preset ships with a confirmed report", err)
    assert RunFolder(tmp_path / "run").read_run()["report"]["how"] == "shipped"
    code, _, err = ratchet_command("demo", *small, "--largest", "8", "--json")
    assert code == 3
    assert "no confirmed report" in err


def test_a_resumed_run_is_not_asked_about(tmp_path, ratchet_command, monkeypatch):
    def stop(record):
        if record.round == 1:
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        ratchet.train(SMALL, inspected=True, on_round=stop, out=tmp_path / "run")
    report = RunFolder(tmp_path / "run").read_run()["report"]
    for file in (ratchet_home() / "reports" / report["key"]).iterdir():
        file.unlink()
    no_report(monkeypatch)
    code, out, _ = ratchet_command("resume", tmp_path / "run", "--json")
    assert (code, json.loads(out.splitlines()[-1])["ending"]) == (0, "all_rounds")
    assert RunFolder(tmp_path / "run").read_run()["report"] == report


def test_a_folder_made_by_hand_is_not_begun_by_a_resume_or_by_the_worker(tmp_path, monkeypatch):
    no_report(monkeypatch)
    folder = RunFolder.create(build(SMALL).resolved(), tmp_path / "run")
    with pytest.raises(Conflict, match="nobody has confirmed the report of its verifier"):
        service.resume(str(folder.path))
    assert main([str(folder.path)]) == 1
    assert [event["event"] for event in journal(folder)] == ["refused"]


def closeness(answer, ground_truth):
    return 1.0 if answer.split()[-1:] == [ground_truth] else 0.0


def test_in_python_a_report_is_made_shown_and_confirmed(tmp_path):
    settings = {**SMALL, "rl": {**SMALL["rl"], "rounds": 1}}
    with pytest.raises(Conflict, match=r"ratchet\.inspect and ratchet\.confirm_report"):
        ratchet.train(settings, verifier=closeness, out=tmp_path / "run")
    report = ratchet.inspect(settings, verifier=closeness)
    shown = report._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert shown.count("<") == 2
    assert (report.card.probes.false_positive_rate, report.card.probes.false_negative_rate) == (0.0, 0.0)
    with pytest.raises(Conflict):
        ratchet.train(settings, verifier=closeness, out=tmp_path / "run")
    ratchet.confirm_report(report)
    assert ratchet.train(settings, verifier=closeness, out=tmp_path / "run").ending == "all_rounds"
    with pytest.raises(Conflict):  # another function is another verifier
        ratchet.train(settings, verifier=lambda answer, truth: 0.5, out=tmp_path / "other")


def test_in_python_a_refusal_is_passed_with_a_reason_alone():
    def never(answer, ground_truth):
        return 0.0

    report = ratchet.inspect(SMALL, verifier=never)
    with pytest.raises(Conflict, match="refuses this run"):
        ratchet.confirm_report(report)
    with pytest.raises(InvalidSetting, match="give 3 or more"):
        ratchet.confirm_report(report, override="because")
    ratchet.confirm_report(report, override="it is to be seen failing")
    assert service.find_report(report.key).confirmation.override == "it is to be seen failing"


def test_no_text_of_an_answer_is_in_what_is_logged_or_raised(tmp_path, caplog):
    def odd(answer, ground_truth):
        raise ValueError(answer)

    caplog.set_level("DEBUG", logger="ratchet")
    report = ratchet.inspect(SMALL, verifier=odd)
    texts = {one.text for one in report.card.worth_reading}
    with pytest.raises(Conflict) as refused:
        ratchet.confirm_report(report)
    said = caplog.text + str(refused.value) + " ".join(report.card.advice) + report.card.refusal
    assert texts
    assert not [text for text in texts if text in said]
    assert "the verifier failed on most answers" in str(refused.value)


def test_every_shipped_key_is_one():
    assert all(re.fullmatch("[0-9a-f]{32}", key) for key in demo_presets.SHIPPED_REPORTS.values())
