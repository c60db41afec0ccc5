"""ratchet doctor: the truth about this machine, and an exit code that says whether the sandbox works."""

import json
import os
import shutil

from ratchet.cli.faults import EXIT_TASK
from ratchet.service.doctor import MetricEnvironment, metric_environment


def test_it_shows_what_this_machine_can_do(ratchet_command, tmp_path):
    code, out, err = ratchet_command("doctor", "--json")
    assert code == 0, out + err
    found = json.loads(out)
    assert found["sandbox"] == {"ok": True, "reason": "", "remedy": ""}
    assert found["sandbox_python"].startswith("/usr/")
    assert found["torch"]["device"].startswith(("cpu", "cuda", "mps"))
    assert found["home"] == os.environ["RATCHET_HOME"]
    assert abs(found["disk_free_bytes"] - shutil.disk_usage(tmp_path).free) < 4e9
    assert 0 < found["memory_free_bytes"] < found["memory_bytes"]


def test_without_a_sandbox_it_says_why_and_what_to_do_and_ends_with_4(ratchet_command, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, _ = ratchet_command("doctor")
    assert code == EXIT_TASK
    assert "does not work: bubblewrap (bwrap) is not installed. Install it: apt install bubblewrap" in out
    assert "The exit code is 4" in out


def test_it_names_the_packages_that_metrics_may_import(tmp_path, monkeypatch):
    monkeypatch.setenv("RATCHET_METRIC_ENV", str(tmp_path))
    (tmp_path / "closeness-1.5.dist-info").mkdir()
    (tmp_path / "closeness-1.5.dist-info" / "METADATA").write_text("Name: closeness\nVersion: 1.5\n")
    assert metric_environment() == MetricEnvironment(str(tmp_path), ("closeness 1.5",))
    monkeypatch.setenv("RATCHET_METRIC_ENV", "/absent")
    assert "RATCHET_METRIC_ENV is /absent, which is no folder." in metric_environment().problem
    monkeypatch.delenv("RATCHET_METRIC_ENV")
    assert metric_environment() == MetricEnvironment(None)


def test_the_device_is_the_one_that_runs_take(ratchet_command):
    from ratchet.engine.policy import chosen_device

    assert json.loads(ratchet_command("doctor", "--json")[1])["torch"]["device"] == str(chosen_device("auto"))


def test_a_torch_that_cannot_be_loaded_is_reported_with_its_reason(ratchet_command, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    problem = json.loads(ratchet_command("doctor", "--json")[1])["torch"]["problem"]
    assert problem.startswith("torch cannot be loaded: ModuleNotFoundError: ")
