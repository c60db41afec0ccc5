"""``ratchet data``: output for people and machines, exit codes, and a run on a dataset."""

import json
import os
import pty
import resource
import select
import subprocess
import sys
from contextlib import suppress

import pytest

from ratchet.files import ratchet_home
from ratchet.run.run_folder import RunFolder

from ..small_runs import adapter_bytes, flags


@pytest.fixture
def rows(tmp_path):
    from ratchet.config import MathPairsData
    from ratchet.datasets import load

    problems = load(MathPairsData(prompts=64), validation_prompts=8, format_kind="off").train
    found = [{"question": one.messages[0]["content"], "gold": one.ground_truth} for one in problems]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return tmp_path / "rows.jsonl"


MAP = ("--map", "prompt=question", "--map", "ground_truth=gold")


def last(done):
    return json.loads(done.stdout.splitlines()[-1])


def test_add_list_show_and_check(called, rows):
    added = called("data", "add", rows, "--name", "sums", *MAP, "--json")
    assert (added.returncode, added.stderr) == (0, "")
    fields = last(added)
    assert (fields["name"], fields["version"], fields["is_new"]) == ("sums", 1, True)
    assert fields["rows"] == {"train": 52, "validation": 6, "test": 6}
    assert (ratchet_home() / "datasets" / fields["content_hash"] / "train.jsonl").is_file()

    again = called("data", "add", rows, "--name", "sums", *MAP)
    assert "Already there: sums@1  train 52, validation 6, test 6" in again.stdout

    listed = called("data", "list", "--json")
    assert [one["content_hash"] for one in last(listed)["datasets"]] == [fields["content_hash"]]

    shown = called("data", "show", "sums@1", "--rows", 1)
    assert fields["content_hash"] in shown.stdout
    assert "prompt = question, ground_truth = gold" in shown.stdout
    details = last(called("data", "show", "sums", "--rows", 2, "--json"))
    assert [len(found) for found in details["preview"].values()] == [2, 2, 2]
    assert details["splits"]["train"]["rows"] == 52

    checked = called("data", "check", "sums", "--verifier", "math", "--require-boxed", "false")
    assert (checked.returncode, checked.stdout) == (0, "sums@1 is fit with the verifier math.\n")


def test_a_check_that_finds_something_exits_with_two(called, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": "none"}\n{"prompt": "b", "answer": "2"}\n')
    called("data", "add", tmp_path / "rows.jsonl", "--name", "odd")
    checked = called("data", "check", "odd", "--verifier", "final_number", "--json")
    assert checked.returncode == 2
    assert len(last(checked)["problems"]) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["add", "missing.jsonl", "--name", "x"], 2, "There is no file or folder missing.jsonl"),
        (["add", "ROWS", "--name", "a b"], 2, "up to 100 letters"),
        (["add", "ROWS", "--name", "x", "--map", "prompt"], 2, "--map is 'prompt'; write it as KEY=VALUE"),
        (["add", "ROWS", "--name", "x", "--split", "dev=y"], 2, "our splits are train, validation, test"),
        (["add", "ROWS", "--name", "x"], 2, "Its columns are question, gold."),
        (["show", "nothing"], 3, "There is no dataset nothing"),
        (["show", "x@y"], 2, "names no version"),
        (["check", "nothing", "--verifier", "math"], 3, "There is no dataset nothing"),
        (["check", "nothing", "--verifier", "nonsense"], 2, 'verifier.kind is "nonsense"'),
    ],
)
def test_what_is_wrong_ends_in_one_sentence_and_the_owners_code(called, rows, arguments, code, message):
    done = called("data", *[str(rows) if one == "ROWS" else one for one in arguments], "--json")
    assert done.returncode == code
    assert message in last(done)["error"]["message"]
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr


def test_a_bar_is_shown_on_a_terminal_and_nothing_of_it_in_a_pipe(called, rows):
    assert called("data", "add", rows, "--name", "piped", *MAP).stdout.count("\n") == 1
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    command = [sys.executable, "-m", "ratchet", "data", "add", str(rows), "--name", "seen", *MAP]
    process = subprocess.Popen(command, env=environment, stdout=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    assert process.wait(60) == 0
    os.close(ours)
    assert b"reading train rows" in shown
    assert b"100%" in shown


def test_a_full_disk_leaves_nothing_behind(start_cli, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n} {'x' * 500}", "answer": "1"}) + "\n" for n in range(4_000)))
    arguments = ("data", "add", rows, "--name", "large")
    cut = start_cli(*arguments, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000)))
    _, err = cut.communicate(timeout=100)
    assert cut.returncode == 4
    assert "datasets is full. Free some space, or set RATCHET_HOME to a folder on another disk" in err
    assert list((ratchet_home() / "datasets").iterdir()) == []
    whole = start_cli(*arguments)
    assert "Added large@1" in whole.communicate(timeout=100)[0]


def test_an_import_that_is_killed_leaves_no_version_and_the_next_one_cleans_up(start_cli, called, tmp_path):
    pipe = tmp_path / "rows.jsonl"
    os.mkfifo(pipe)
    process = start_cli("data", "add", pipe, "--name", "cut")
    with suppress(BrokenPipeError), pipe.open("w") as writing:
        for number in range(20_000):
            writing.write(json.dumps({"prompt": f"{number} {'x' * 200}", "answer": "1"}) + "\n")
        (left,) = (ratchet_home() / "datasets").glob(".import-*")
        process.kill()
        process.wait()
    assert left.is_dir()
    assert last(called("data", "list", "--json")) == {"datasets": []}
    good = tmp_path / "good.jsonl"
    good.write_text('{"prompt": "a", "answer": "1"}\n')
    added = last(called("data", "add", good, "--name", "cut", "--json"))
    assert [one.name for one in (ratchet_home() / "datasets").iterdir()] == [added["content_hash"]]


def run(called, out, *more):
    options = [one for one in flags(rounds=1, validation_prompts=4) if one != "math_pairs"]
    drop = options.index("--source")
    del options[drop]
    for name in ("--prompts", "--heldout"):
        place = options.index(name)
        del options[place : place + 2]
    return called("train", "--data.source", "dataset", "--data.name", "sums", *options, *more, "--out", out, "--json")


@pytest.mark.slow
def test_a_run_trains_on_a_dataset_and_its_test_rows_change_nothing(called, rows, tmp_path):
    added = last(called("data", "add", rows, "--name", "sums", *MAP, "--json"))
    refused = run(called, tmp_path / "none")
    assert refused.returncode == 2
    assert "Data source dataset has no verifier of its own. Set verifier.kind" in refused.stderr
    assert not (tmp_path / "none").exists()

    first = run(called, tmp_path / "first", "--verifier.kind", "math_pairs")
    assert first.returncode == 0, first.stderr
    data = RunFolder(tmp_path / "first").read_config().data
    assert (data.name, data.version, data.content_hash) == ("sums", 1, added["content_hash"])

    test_rows = ratchet_home() / "datasets" / added["content_hash"] / "test.jsonl"
    test_rows.write_text("poison")
    second = run(called, tmp_path / "second", "--verifier.kind", "math_pairs")
    assert second.returncode == 0, second.stderr
    assert adapter_bytes(RunFolder(tmp_path / "second")) == adapter_bytes(RunFolder(tmp_path / "first"))
