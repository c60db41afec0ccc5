"""ratchet doctor: the truth about this machine, and an exit code that says whether the sandbox works."""

import json
import os
import shutil

from ratchet.cli import EXIT_TASK
from ratchet.service.doctor import MetricEnvironment, metric_environment


def test_it_tells_what_this_machine_can_do(cli, tmp_path):
    done = cli("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["sandbox"] == {"ok": True, "reason": "", "remedy": ""}
    assert found["sandbox_python"].startswith("/usr/")
    assert found["torch"]["device"].startswith(("cpu", "cuda", "mps"))
    assert found["home"] == os.environ["RATCHET_HOME"]
    assert abs(found["disk_free_bytes"] - shutil.disk_usage(tmp_path).free) < 4e9
    assert 0 < found["memory_free_bytes"] < found["memory_bytes"]


def test_without_a_sandbox_it_says_why_and_what_to_do_and_ends_with_4(cli, tmp_path):
    done = cli("doctor", env={**os.environ, "PATH": str(tmp_path)})
    assert done.returncode == EXIT_TASK
    assert "does not work: bubblewrap (bwrap) is not installed. Install it: apt install bubblewrap" in done.stdout
    assert "Exit code 4 says so" in done.stdout


def test_it_names_the_packages_that_metrics_may_import(tmp_path, monkeypatch):
    monkeypatch.setenv("RATCHET_METRIC_ENV", str(tmp_path))
    (tmp_path / "closeness-1.5.dist-info").mkdir()
    (tmp_path / "closeness-1.5.dist-info" / "METADATA").write_text("Name: closeness\nVersion: 1.5\n")
    assert metric_environment() == MetricEnvironment(str(tmp_path), ("closeness 1.5",))
    monkeypatch.setenv("RATCHET_METRIC_ENV", "/absent")
    assert "RATCHET_METRIC_ENV is /absent, which is no folder." in metric_environment().problem
    monkeypatch.delenv("RATCHET_METRIC_ENV")
    assert metric_environment() == MetricEnvironment(None)
