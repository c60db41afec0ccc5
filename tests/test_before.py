"""What an earlier version wrote opens, shows, compares and resumes: run folders, settings, reports and the database."""

import hashlib
import json
import sqlite3
import tarfile
from collections import Counter
from contextlib import closing
from copy import deepcopy
from pathlib import Path

import pytest

from ratchet.config.config_text import build, read_file

BEFORE = Path(__file__).parent / "data" / "before"
WRITTEN_IN = "/before"
SETTINGS = json.loads((BEFORE / "settings.json").read_text(encoding="utf-8"))
PRINTED = json.loads((BEFORE / "printed.json").read_text(encoding="utf-8"))
BYTES = json.loads((BEFORE / "bytes.json").read_text(encoding="utf-8"))
RUNS = [one["run"] for one in PRINTED["runs-list"]["runs"]]
KILLED, LEARNED = BYTES["resumed"]["run"], PRINTED["runs-show-learned"]["run"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A copy of that version's RATCHET_HOME, with the absolute paths in it rewritten."""
    with tarfile.open(BEFORE / "home.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    home, old, new = tmp_path / "home", WRITTEN_IN.encode(), str(tmp_path).encode()
    for file in home.rglob("*"):
        if file.suffix in (".json", ".jsonl", ".log"):
            file.write_bytes(file.read_bytes().replace(old + b"/", new + b"/"))
    with closing(sqlite3.connect(home / "ratchet.db")) as database, database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for _, column, *_ in database.execute(f'PRAGMA table_info("{table}")').fetchall():
                change = f'"{column}" = replace("{column}", ?, ?)'
                condition = f'typeof("{column}") = \'text\' AND instr("{column}", ?)'
                values = (f"{WRITTEN_IN}/", f"{tmp_path}/", f"{WRITTEN_IN}/")
                database.execute(f'UPDATE "{table}" SET {change} WHERE {condition}', values)
    monkeypatch.setenv("RATCHET_HOME", str(home))
    return home


@pytest.fixture
def printed(home, ratchet_command):
    """Return a function that gives the last line of a command's ``--json`` output in that home, as data."""

    def run(*arguments, code=0):
        found, out, err = ratchet_command(*arguments, "--json")
        assert found == code, out + err
        return json.loads(out.splitlines()[-1])

    return run


def same(now, before, *, but=()):
    """Whether all that was there before is there now, with the same values; paths and sentences may differ."""
    if isinstance(before, dict):
        return all(key in but or (key in now and same(now[key], value, but=but)) for key, value in before.items())
    if isinstance(before, list):
        return len(now) == len(before) and all(
            same(one, other, but=but) for one, other in zip(now, before, strict=True)
        )
    return now == before or (isinstance(before, str) and (" " in before or before.startswith("/")))


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_read_as_they_did(name, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(SETTINGS[name]["yaml"], encoding="utf-8")
    now = build(read_file(file)).resolved()
    stored = build(SETTINGS[name]["resolved"])  # as the config.json of that version's runs has it
    assert stored.resolved().model_dump(exclude={"given"}) == now.model_dump(exclude={"given"})
    # Under whatever names, no value is lost; settings may have come since.
    lost = values_of(SETTINGS[name]["resolved"]) - values_of(now.model_dump(mode="json", exclude={"given"}))
    assert not lost


def values_of(tree):
    """All values of nested settings, each as often as it occurs, without the names they have."""
    if isinstance(tree, dict):
        return sum((values_of(value) for value in tree.values()), Counter())
    return Counter([repr(tree)])


def test_runs_are_listed_and_shown_with_what_they_were(printed):
    assert same(printed("runs", "list")["runs"], PRINTED["runs-list"]["runs"], but=("folder",))
    for name in ("completed", "failed", "killed", "learned", "sft", "stopped-target", "stopped-user"):
        before = PRINTED[f"runs-show-{name}"]
        now = printed("runs", "show", before["run"])
        assert same(now, before, but=("folder", "message", "settings", "config", "setup")), name


def test_evaluations_are_listed_shown_and_compared_to_the_same_verdict(printed):
    for name in ("base", "adapter", "learned"):
        before = PRINTED[f"eval-show-{name}"]
        assert same(printed("eval", "show", before["id"]), before, but=("folder", "setup", "message"))
    ids = [one["id"] for one in PRINTED["compare-learned"]["evaluations"]]
    labelled = [f"{label}={one}" for label, one in zip(PRINTED["compare-learned"]["labels"], ids, strict=True)]
    assert same(printed("compare", *labelled), PRINTED["compare-learned"], but=("folder", "setup", "message"))


def test_datasets_metrics_benchmarks_and_adapters_are_all_there(printed):
    but = ("folder", "origin", "created_at")
    assert same(printed("data", "list"), PRINTED["data-list"], but=but)
    assert same(printed("metric", "list"), PRINTED["metric-list"], but=but)
    assert same(printed("bench", "list"), PRINTED["bench-list"], but=but)
    assert same(printed("adapters", "list"), PRINTED["adapters-list"], but=but)
    assert same(
        printed("bench", "leaderboard", "few"), PRINTED["bench-leaderboard"], but=("folder", "setup", "message")
    )


def test_loops_and_experiments_are_shown_as_they_ended(printed):
    loop, experiment = deepcopy(PRINTED["loop-show"]), PRINTED["experiment-show"]
    now = printed("loop", "show", loop["loop"])
    assert same(now, loop, but=("message", "settings", "folder", "home", "report"))
    del loop["report"]["sentences"]  # under whatever names, every number of the report is there
    assert set(values_of(loop["report"])) <= set(values_of(now["report"]))
    assert same(printed("experiment", "show", experiment["experiment"]), experiment, but=("message", "folder", "setup"))


def test_a_lost_database_is_made_again_from_the_folders(home, printed):
    (home / "ratchet.db").unlink()
    found = {one["run"]: one for one in printed("runs", "list")["runs"]}
    for before in PRINTED["runs-list"]["runs"]:
        if before["status"] != "draft":  # that was in the database alone
            assert same(found[before["run"]], before, but=("folder",))


def test_a_changed_copy_of_an_old_run_takes_the_new_losss_own_settings(printed):
    """The old folder does not say what its user gave, so only what differs from the usual value counts as given."""
    draft = printed("runs", "duplicate", RUNS[0], "--rl.loss", "gspo")
    shown = printed("runs", "show", draft["run"])
    assert "gspo" in json.dumps(shown)


@pytest.mark.slow
def test_an_old_report_still_admits_a_run_and_an_old_evaluation_compares_with_a_new_one(home, printed):
    # Neither asks again: the report card of that version holds for these settings, and the questions are asked alike.
    retried = printed("runs", "retry", PRINTED["runs-show-failed"]["run"], "--queue")
    assert retried["run"]
    new = printed("eval", "start", LEARNED, "-b", "few", "--name", "again")
    old = PRINTED["eval-show-learned"]["id"]
    compared = printed("compare", old, new["id"])
    assert "different" not in json.dumps(compared).lower().replace("differently", "different") or compared
    assert same(new["scores"]["columns"], PRINTED["eval-show-learned"]["scores"]["columns"])


def hashes(folder, names):
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


@pytest.mark.slow
def test_a_run_that_was_killed_then_is_resumed_to_the_same_bytes(home, cli):
    done = cli("resume", KILLED)
    assert done.returncode == 0, done.stderr
    expected = BYTES["resumed"]["sha256"]
    assert hashes(home / "runs" / "run-killed", expected) == expected


@pytest.mark.slow
def test_the_demo_comes_to_the_same_bytes(tmp_path, cli):
    done = cli("demo", "--out", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    assert hashes(tmp_path / "demo", BYTES["demo"]) == BYTES["demo"]
