"""``ratchet grade``: labelled cases, settings as flags and files, and what cannot be graded."""

import json
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"
# Words of rows that no message may quote.
POISON = ("zyzzyva", "quokka")


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def cases(kind):
    rows = json.loads((DATA / f"cases_{kind}.json").read_text())
    # Rows with settings of their own are graded by themselves in tests/verifiers.
    return [
        row
        for row in rows
        if "answer" in row and not row.get("settings") and sum(c.isdigit() for c in row["ground_truth"]) <= 40
    ]


@pytest.mark.parametrize("kind", ["math_pairs", "final_number", pytest.param("math", marks=pytest.mark.slow)])
def test_grading_a_file_agrees_with_the_labelled_cases(kind, ratchet_command, tmp_path):
    labelled = cases(kind)
    rows = [{"answer": row["answer"], "ground_truth": row["ground_truth"], "name": row["name"]} for row in labelled]
    path = write_rows(tmp_path / "answers.jsonl", rows)
    code, out, err = ratchet_command("grade", "--verifier", kind, path)
    assert code == 0, err
    graded = [json.loads(line) for line in out.splitlines()]
    assert len(graded) == len(labelled)
    for row, label in zip(graded, labelled, strict=True):
        assert row["name"] == label["name"]
        assert row["correctness"] == float(label["correct"]), label["name"]
        assert row["outcome"] in label.get("outcome_any", [label.get("outcome")]), label["name"]
        assert row["reward"] == row["correctness"]
    right = sum(label["correct"] for label in labelled)
    assert f"{len(labelled)} answers: right {right}" in err


def test_grading_adds_the_bonus_that_was_asked_for(ratchet_command, tmp_path):
    rows = [
        {"answer": "<think>a</think><answer>5</answer>", "ground_truth": 5},
        {"answer": "<think>a</think><answer>6</answer>", "ground_truth": "5"},
    ]
    path = write_rows(tmp_path / "answers.jsonl", rows)
    code, out, _ = ratchet_command("grade", "--verifier", "final_number", "--format-bonus", "tags", "--json", path)
    result = json.loads(out.splitlines()[-1])
    assert code == 0
    assert [row["reward"] for row in result["rows"]] == pytest.approx([1.0, 0.1 / 1.1])
    assert result["counts"] == {"right": 1, "graded": 2, "unparseable": 0, "cut_off": 0, "failed": 0}


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SETTINGS_OF_GRADE = {
    "numeric": (["--absolute-tolerance", "0.5"], {"answer": "7.5", "ground_truth": 7}, 1.0),
    "qa": (["--metric", "token_f1"], {"answer": "red house", "ground_truth": "the house"}, pytest.approx(2 / 3)),
    "classification": (["--labels", "[yes, no]"], {"answer": "No", "ground_truth": "yes"}, 0.0),
    "structured_json": (
        ["--schema", '{"required": ["a"]}', "--fields", "[a, b]"],
        {"answer": '{"a": 1}', "ground_truth": {"a": 1.0, "b": 2}},
        0.5,
    ),
    "tool_call": (
        [],
        {"answer": '{"name": "f", "arguments": {}}', "ground_truth": [{"name": "f", "arguments": {}}], "tools": TOOLS},
        1.0,
    ),
    "code": ([], {"answer": "def f(x):\n    return x", "tests": ["assert f(1) == 1"]}, 1.0),
    "composite": (
        [
            "--verifier.parts",
            "[{verifier: {kind: qa}}, {verifier: {kind: numeric}, weight: 3}]",
            "--correctness-from",
            "1",
        ],
        {"answer": "7.0", "ground_truth": "7"},
        1.0,
    ),
}


@pytest.mark.parametrize("kind", SETTINGS_OF_GRADE)
def test_every_kind_can_be_graded_with_its_settings_as_flags(kind, ratchet_command, tmp_path):
    flags, row, correctness = SETTINGS_OF_GRADE[kind]
    path = write_rows(tmp_path / "answers.jsonl", [row])
    code, out, err = ratchet_command("grade", "--verifier", kind, *flags, path)
    assert code == 0, err
    graded = json.loads(out)
    assert (graded["outcome"], graded["correctness"]) == ("graded", correctness)
    assert graded["reward"] == (0.75 if kind == "composite" else correctness)  # (1 * 0 + 3 * 1) / 4 is trained on


def test_a_row_may_bring_its_own_schema(ratchet_command, tmp_path):
    row = {"answer": '{"a": 1}', "ground_truth": '{"a": "x"}', "schema": {"properties": {"a": {"type": "string"}}}}
    path = write_rows(tmp_path / "answers.jsonl", [row])
    code, out, _ = ratchet_command("grade", "--verifier", "structured_json", "--metric", "schema_valid", path)
    assert code == 0
    assert (json.loads(out)["correctness"], json.loads(out)["schema"]) == (0.0, row["schema"])


def test_the_verifier_and_reward_of_a_runs_file_are_taken_and_flags_take_precedence(ratchet_command, tmp_path):
    (tmp_path / "run.yaml").write_text("verifier:\n  kind: final_number\nreward:\n  format_weight: 0.05\n")
    path = write_rows(tmp_path / "answers.jsonl", [{"answer": "5", "ground_truth": "5"}])
    config = ["--config", tmp_path / "run.yaml"]
    code, out, _ = ratchet_command("grade", *config, path)  # final_number has the tags bonus, which 5 does not earn
    assert (code, json.loads(out)["reward"]) == (0, pytest.approx(1 / 1.05))
    code, out, _ = ratchet_command("grade", *config, "--format-bonus", "off", path)
    assert (code, json.loads(out)["reward"]) == (0, 1.0)


def test_a_think_tag_opened_by_the_prompt_is_taken_as_given(ratchet_command, tmp_path):
    path = write_rows(tmp_path / "answers.jsonl", [{"answer": "a</think><answer>5</answer>", "ground_truth": "5"}])
    flags = ["--verifier", "qa", "--format-bonus", "tags"]
    for further, reward in (([], 1 / 1.1), (["--prefilled-think"], 1.0)):
        code, out, _ = ratchet_command("grade", *flags, *further, path)
        assert (code, json.loads(out)["reward"]) == (0, pytest.approx(reward))


def test_grading_without_a_verifier_says_how_to_give_one(ratchet_command, tmp_path):
    path = write_rows(tmp_path / "answers.jsonl", [{"answer": "5", "ground_truth": "5"}])
    code, _, err = ratchet_command("grade", path)
    assert code == 2
    assert "Give --verifier with a kind" in err


def test_graded_rows_can_be_written_to_a_file(ratchet_command, tmp_path):
    path = write_rows(tmp_path / "answers.jsonl", [{"answer": "half \ud83d 5", "ground_truth": "5"}])
    code, out, _ = ratchet_command("grade", "--verifier", "final_number", path, "--out", tmp_path / "graded.jsonl")
    assert (code, out) == (0, "")
    assert json.loads((tmp_path / "graded.jsonl").read_text())["correctness"] == 1.0


BAD_GRADES = {
    "no such file": ("none.jsonl", "final_number", 2, "none.jsonl cannot be read"),
    "empty": ([], "final_number", 2, "has no rows"),
    "no answer": ([{"ground_truth": "5"}], "final_number", 2, "row 1"),
    "a truth value": ([{"answer": "5", "ground_truth": True}], "final_number", 2, "row 1"),
    "no JSON": ("{zyzzyva", "final_number", 2, "row 1"),
    "ungradable": ([{"answer": "5", "ground_truth": "quokka"}], "final_number", 2, "row 1: contains no number"),
    "no such verifier": (
        [{"answer": "5", "ground_truth": "5"}],
        "guess",
        2,
        'verifier.kind is "guess"; it must be one',
    ),
    "a judge": ([{"answer": "5", "ground_truth": "5"}], "judge", 2, "never a reward: it needs a model that judges"),
    "a function": ([{"answer": "5", "ground_truth": "5"}], "python", 2, "which ratchet grade cannot call"),
    "tools in no form": (
        [{"answer": "5", "ground_truth": "5", "tools": "[zyzzyva"}],
        "tool_call",
        2,
        "1 of 1 rows cannot be graded: row 1: the column tools is text that is not valid JSON",
    ),
    "no tools": (
        [{"answer": "5", "ground_truth": {"name": "f", "arguments": {}}}],
        "tool_call",
        2,
        "row 1: has no tools",
    ),
}


@pytest.mark.parametrize("what", BAD_GRADES)
def test_what_cannot_be_graded_is_refused(what, ratchet_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows, verifier, status, said = BAD_GRADES[what]
    if isinstance(rows, list):
        write_rows(tmp_path / "rows.jsonl", rows)
    elif not rows.endswith(".jsonl"):
        (tmp_path / "rows.jsonl").write_text(rows)
    name = rows if isinstance(rows, str) and rows.endswith(".jsonl") else "rows.jsonl"
    code, _, err = ratchet_command("grade", "--verifier", verifier, name)
    assert code == status, err
    assert said in err
    assert not [word for word in POISON if word in err.lower()]


def test_a_setting_that_does_not_go_with_the_verifier_is_refused(ratchet_command, tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", [{"answer": "5", "ground_truth": "5"}])
    code, _, err = ratchet_command("grade", "--verifier", "math_pairs", "--require-boxed", "true", path)
    assert code == 2
    assert "Require a box (verifier.require_boxed) does not go with verifier.kind math_pairs" in err


def test_a_place_that_cannot_be_written_to_is_refused(ratchet_command, tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", [{"answer": "5", "ground_truth": "5"}])
    code, _, err = ratchet_command("grade", "--verifier", "math_pairs", path, "--out", tmp_path)
    assert code == 2
    assert "cannot be written" in err
