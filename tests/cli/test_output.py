"""What commands print acts on no terminal, whoever named the thing that is printed."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ratchet

TINY = Path(ratchet.__file__).parent / "assets" / "tiny"
# Colours, a window's title, a bell, a line feed backwards, text from right to left.
ACTING = "\x1b[31mred\x1b]0;title\x07\x8d\u202e[/bold][link=x]"


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def model(folder, **changed):
    shutil.copytree(TINY, folder / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    file = folder / "model" / "config.json"
    write(file, json.loads(file.read_text()) | changed)
    return folder / "model"


def adapter(folder, **changed):
    (folder / "adapter").mkdir()
    write(folder / "adapter" / "adapter_config.json", {"peft_type": "LORA", "r": 8, "lora_alpha": 8} | changed)
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    return folder / "adapter"


def metric(folder, body):
    return write(folder / "metric.py", f"def score(answer, reference):\n    {body}\n")


def rows(folder, **row):
    return write(folder / f"rows{ACTING[:4]}.jsonl", row)


RAISES = f"raise type({ACTING!r}, (Exception,), {{}})({ACTING!r})"
# What names something, and the command that prints the name.
NAMED = {
    "an option": lambda folder: ["train", f"--{ACTING}"],
    "a command": lambda folder: [ACTING],
    "a path": lambda folder: ["train", folder / f"{ACTING[:8]}.yaml"],
    "a run": lambda folder: ["runs", "show", ACTING],
    "a dataset": lambda folder: ["data", "show", ACTING],
    "a column": lambda folder: ["data", "add", rows(folder, **{ACTING: 1}), "--name", "own"],
    "a message's role": lambda folder: ["data", "add", rows(folder, messages=[{"role": ACTING}]), "--name", "own"],
    "a key of settings": lambda folder: ["train", write(folder / "a.yaml", f"{json.dumps(ACTING)}: 1\n")],
    "a value of settings": lambda folder: ["train", write(folder / "a.yaml", f"objective: {json.dumps(ACTING)}\n")],
    "a key of a bundle": lambda folder: ["bench", "add", write(folder / "a.json", {ACTING: 1}), "--name", "own"],
    "a model's type": lambda folder: ["train", "--model", model(folder, model_type=ACTING), "--check"],
    "a model's part": lambda folder: ["train", "--model", model(folder, vision_config=ACTING), "--check"],
    "an adapter's type": lambda folder: ["train", "--start-from", adapter(folder, peft_type=ACTING), "--check"],
    "an adapter's layers": lambda folder: ["train", "--start-from", adapter(folder, target_modules=[ACTING]), "--check"],
    "a metric's fault": lambda folder: ["metric", "try", metric(folder, RAISES), rows(folder, answer="1", reference="1")],
    "a metric's loading": lambda folder: ["metric", "add", write(folder / "metric.py", RAISES), "--name", "own"],
    "a metric's syntax": lambda folder: ["metric", "add", write(folder / "metric.py", f"{ACTING}("), "--name", "own"],
}  # fmt: skip


@pytest.mark.parametrize("command", NAMED.values(), ids=NAMED)
def test_no_name_acts_on_the_terminal(cli, tmp_path, command):
    done = cli(*command(tmp_path), cwd=tmp_path)
    assert done.stdout or done.stderr
    assert re.findall(r"[^\n\t -~\u00a1-\u1fff\u2030-\uffff]", done.stdout + done.stderr) == []
    assert "Traceback" not in done.stderr


def test_neither_does_what_is_listed_later(cli, tmp_path):
    added = cli("data", "add", rows(tmp_path, prompt="1 + 1", answer=f"{ACTING}2"), "--name", "own")
    assert added.returncode == 0, added.stderr
    for command in (["data", "show", "own"], ["data", "list"]):
        shown = cli(*command)
        assert shown.returncode == 0, shown.stderr
        assert "\x1b" not in shown.stdout
        assert "own" in shown.stdout


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_output_that_is_full_is_told_in_a_sentence(start_cli, flags):
    with open("/dev/full", "w") as full:
        process = start_cli("runs", "list", *flags, stdout=full)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 4
    assert err == "Error: The output cannot be written: No space left on device.\n"


def test_without_standard_streams_a_command_works(tmp_path):
    """As a service manager may start it."""
    out = tmp_path / "graded.jsonl"
    file = rows(tmp_path, answer="#### 7", ground_truth="7")
    command = [
        sys.executable,
        "-m",
        "ratchet",
        "grade",
        str(file),
        "--verifier.kind",
        "final_number",
        "--out",
        str(out),
    ]
    done = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], check=False)
    assert done.returncode == 0
    assert json.loads(out.read_text())["correctness"] == 1
