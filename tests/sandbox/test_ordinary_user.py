"""The same tests as an ordinary user, from a checkout and an environment that root's home does not hide.

As root the sandbox runs as another user and takes another way to its limits, so both have to be seen. Left out are the
whole runs (test_custom_runs.py), which need torch and add nothing to the sandbox, and what no user changes: the verdicts
on programs (test_code_cases.py, test_code_run.py).
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ratchet.sandbox.tools import system_python

ROOT = Path(__file__).parents[2]
ORDINARY = "65534"  # nobody
NEEDED = (
    "click", "hypothesis", "pydantic", "pydantic-monty", "platformdirs", "pyseccomp", "pytest", "pytest-timeout", "pyyaml", "regex", "rich",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(os.geteuid() != 0, reason="all of these tests run as an ordinary user already")
def test_everything_holds_for_an_ordinary_user_too(metric_environment):
    with tempfile.TemporaryDirectory(prefix="ratchet-user-") as name:
        home = Path(name)
        checkout = home / "checkout"
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, checkout / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / file, checkout)
        python = Path(system_python())
        # Built once already; a second time would only take longer.
        kept = checkout / ".pytest_cache" / "d" / "metric-environment" / python.name
        shutil.copytree(metric_environment, kept)
        subprocess.run([python, "-m", "venv", home / "environment"], check=True)
        pip = [home / "environment" / "bin" / "pip", "install", "--quiet", "--constraint", checkout / "constraints.txt"]
        subprocess.run([*pip, *NEEDED], check=True)
        subprocess.run(["chown", "-R", f"{ORDINARY}:{ORDINARY}", home], check=True)
        done = subprocess.run(
            [
                *("setpriv", "--reuid", ORDINARY, "--regid", ORDINARY, "--clear-groups", "--"),
                *(home / "environment" / "bin" / "python", "-m", "pytest", "-q", "-rs", "tests/sandbox"),
                *("--ignore", "tests/sandbox/test_custom_runs.py", "--ignore", "tests/sandbox/test_code_cases.py"),
                *("--ignore", "tests/sandbox/test_code_run.py"),
                *("-m", "not slow"),
            ],
            cwd=checkout,
            env={"PATH": os.environ["PATH"], "HOME": name, "LOGNAME": "nobody", "PYTHONPATH": str(checkout / "src")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert "skipped" not in done.stdout
        assert " passed" in done.stdout
