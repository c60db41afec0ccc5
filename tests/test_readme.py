"""What the README shows works: its settings file runs, and its commands and files exist."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratchet.cli import ratchet as command
from ratchet.config.config_text import build, read_file
from ratchet.run.records import Prompt
from ratchet.verifiers import make_verifier

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)[number]


@pytest.mark.slow
def test_the_settings_file_trains(tmp_path, cli):
    (tmp_path / "run.yaml").write_text(block("yaml"))
    done = cli("inspect", tmp_path / "run.yaml", "--confirm", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["confirmation"]["how"] == "flag", done.stderr
    done = cli("train", tmp_path / "run.yaml", "--rounds", 1, "--heldout", 8, "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["ending"] == "all_rounds"


def test_the_metric_shown_grades(tmp_path):
    (tmp_path / "metric.yaml").write_text(block("yaml", 1))
    settings = build(read_file(tmp_path / "metric.yaml")).verifier
    verifier = make_verifier(settings)
    try:
        note = verifier.trial(Prompt(1, (), "7"))
        assert "grades by bubblewrap" in note
        assert [verifier.grade(text, Prompt(1, (), "7")).correctness for text in ("so it is 7 ", "8")] == [1.0, 0.0]
    finally:
        verifier.close()


def test_the_python_example_trains(tmp_path, monkeypatch):
    (tmp_path / "run.yaml").write_text(
        block("yaml").replace("rounds: 4", "rounds: 1").replace("heldout: 128", "heldout: 8")
    )
    monkeypatch.chdir(tmp_path)
    code = compile(block("python"), "<README>", "exec")
    exec(code, {"__name__": "readme"})  # the function's source is not a file: its hash is that of nothing


@pytest.mark.parametrize("line", sorted(set(re.findall(r"^ratchet .*?(?=\s{2,}#|$)", README, re.MULTILINE))))
def test_every_command_shown_exists_with_its_flags(line):
    words = line.split()[1:]
    flags = [word for word in words if word.startswith("--")]
    names = [word for word in words if re.fullmatch("[a-z]+", word)]
    depth = 2 if names[0] in ("runs", "data", "metric", "adapters", "bench", "eval", "experiment", "loop") else 1
    shown = CliRunner().invoke(command, [*names[:depth], "--help"])
    assert shown.exit_code == 0
    assert all(flag in shown.output for flag in flags)


def test_every_file_it_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
