"""Report cards in their folder: what is written and for whom, what a confirmation is of, and who may go past a refusal."""

import getpass
import json
import multiprocessing
import stat

import pytest

from ratchet import service
from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.run.display import whole
from ratchet.run.report_card import Confirmation
from ratchet.run.report_store import ReportFolder
from ratchet.service import Consent
from ratchet.service.verification.report_gate import described

from ...cards import KEY, card, worth


def stored(**changes):
    ReportFolder(KEY).write(card(**changes), "<page>")
    return service.find_report(KEY)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_report_is_read_back_as_it_was_written_and_is_its_owners_alone(monkeypatch):
    report = stored(worth_reading=[worth('"<b>&\\ \u202e \N{SNOWMAN}\n' + whole("half \ud83d"))])
    assert report.card == card(worth_reading=report.card.worth_reading)
    assert report.page.read_text() == "<page>"
    folder = ReportFolder(KEY)
    assert {path.name for path in folder.path.iterdir()} == {"report.json", "report.html", ".lock"}
    assert mode(folder.path) == mode(folder.path.parent) == 0o700
    assert mode(folder.card_path) == mode(folder.page_path) == 0o600
    service.confirm(report, Consent("python"))
    assert mode(folder.path / "confirmation.json") == 0o600


def test_a_confirmation_says_who_when_and_how():
    report = stored()
    made = service.confirm(report, Consent("terminal"))
    assert (made.by, made.how, made.override, made.key) == (getpass.getuser(), "terminal", "", KEY)
    assert service.find_report(KEY).confirmation == made
    assert described(made).startswith(f"confirmed by {getpass.getuser()} on 20")
    by_caller = service.confirm(report, Consent("api"), by="token of build agent")
    assert service.find_report(KEY).confirmation.by == "token of build agent"
    assert "by the API" in described(by_caller)


def test_the_same_report_made_again_stays_confirmed_and_another_does_not():
    service.confirm(stored(), Consent("flag"))
    assert stored(made_at="2026-12-01T00:00:00+00:00").confirmation is not None
    assert stored(accuracy=0.5).confirmation is None
    # What was read was the first one: it cannot be confirmed any more.
    with pytest.raises(Conflict, match="A newer report replaced the one you were shown"):
        service.confirm(
            service.Report(card(), ReportFolder(KEY).path, ReportFolder(KEY).page_path, None), Consent("flag")
        )


def test_a_refusal_is_passed_with_a_reason_alone():
    report = stored(refusal="All 256 answers scored 0.00: every one is wrong.")
    with pytest.raises(Conflict, match=r"refuses this run\. All 256 answers scored 0\.00.*--override-report"):
        service.confirm(report, Consent("flag"))
    with pytest.raises(InvalidSetting, match="has 2 words; give 3 or more"):
        service.confirm(report, Consent("flag", " just because "))
    assert service.find_report(KEY).confirmation is None
    made = service.confirm(report, Consent("flag", " it is a test of the plumbing "))
    assert made.override == "it is a test of the plumbing"
    assert "although it refuses the run" in described(made)


def test_a_reason_is_not_recorded_where_nothing_is_refused():
    made = service.confirm(stored(), Consent("flag", "just to be sure of it"))
    assert made.override == ""
    assert "refuses" not in described(made)


@pytest.mark.parametrize("key", ["", "../../etc", "z" * 32, "0" * 31])
def test_what_is_no_key_names_no_file(key):
    with pytest.raises(NotFound, match="There is no report"):
        service.find_report(key)


def test_a_report_that_was_never_made_is_not_found():
    with pytest.raises(NotFound, match="Make one: ratchet inspect CONFIG"):
        service.find_report(KEY)
    assert not ReportFolder(KEY).path.exists()


@pytest.mark.parametrize("name", ["report.json", "confirmation.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"key": 5}'])
def test_damage_is_named_and_never_taken_for_a_confirmation(name, content):
    service.confirm(stored(), Consent("flag"))
    (ReportFolder(KEY).path / name).write_text(content)
    with pytest.raises(Conflict, match=f"{name} cannot be read"):
        service.find_report(KEY)


def test_a_confirmation_without_its_report_is_none():
    service.confirm(stored(), Consent("flag"))
    ReportFolder(KEY).card_path.unlink()
    assert ReportFolder(KEY).confirmation() is None


def test_a_home_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "file"))
    with pytest.raises(Conflict, match="set RATCHET_HOME"):
        ReportFolder(KEY).write(card(), "")


def _write_often(home, number):
    import os

    os.environ["RATCHET_HOME"] = home
    for turn in range(40):
        ReportFolder(KEY).write(card(mean_tokens=float(number), longest_tokens=turn), f"{number} {turn}")


def test_processes_that_make_the_same_report_at_once_leave_one_of_them_whole(tmp_path, monkeypatch):
    home = str(tmp_path / "shared")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_often, args=(home, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    monkeypatch.setenv("RATCHET_HOME", home)
    found = service.find_report(KEY)
    assert found.page.read_text() == f"{found.card.mean_tokens:.0f} {found.card.longest_tokens}"


def test_a_page_can_be_copied_to_a_file_of_ones_own(tmp_path):
    service.write_page(stored(), tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "<page>"
    assert mode(tmp_path / "mine.html") == 0o600
    with pytest.raises(Conflict, match="Choose another --out"):
        service.write_page(stored(), tmp_path / "none" / "mine.html")


def test_a_record_of_a_later_version_with_more_in_it_is_read():
    fields = json.loads(json.dumps(Confirmation(key=KEY, by="a", at="b", how="flag").model_dump()))
    assert Confirmation.model_validate({**fields, "more": 1}).by == "a"
