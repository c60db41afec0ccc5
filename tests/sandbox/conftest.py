"""What the sandbox tests share. Where the sandbox does not work they fail: nothing here is skipped."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ratchet.sandbox.metric_pool import MetricPool
from ratchet.sandbox.metric_process import MetricLimits
from ratchet.sandbox.probe import probe
from ratchet.sandbox.tools import system_python

DATA = Path(__file__).parents[1] / "data"
PACKAGES = ("numpy", "sympy")


def cases(name, part=None):
    """Return labelled cases as pytest parameters, named as in the file."""
    content = json.loads((DATA / f"metrics_{name}.json").read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["name"]) for case in (content if part is None else content[part])]


@pytest.fixture(scope="session", autouse=True)
def _the_sandbox_works():
    found = probe()
    assert found.ok, f"the sandbox must work where it is tested: {found.reason} {found.remedy}"


@pytest.fixture
def pool_of():
    """Return a function that makes a pool from a metric's source; all of them are closed with the test."""
    made = []

    def make(source, *, workers=1, name="tested", version=3, **limits):
        pool = MetricPool(source, name=name, version=version, limits=MetricLimits(**limits), workers=workers)
        made.append(pool)
        return pool

    yield make
    for pool in made:
        pool.close()


@pytest.fixture
def bwraps():
    """Return a function that lists the ids of the processes of sandboxes that this process started, at any depth."""

    def list_them():
        parents, found = {}, {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    _, _, rest = (folder / "stat").read_text().rpartition(")")
                    parents[int(folder.name)] = int(rest.split()[1])
                    found[int(folder.name)] = rest.split()[0]
                except OSError:
                    continue

        def is_ours(pid):
            while pid in parents:
                if parents[pid] == os.getpid():
                    return True
                pid = parents[pid]
            return False

        return {pid: state for pid, state in found.items() if is_ours(pid)}

    return list_them


@pytest.fixture(scope="session")
def metric_environment(request):
    """Return a folder with numpy and sympy for the system's Python, built once and kept in pytest's cache.

    As root the sandbox is another user, who may not be able to look into the checkout: then a copy is used.
    """
    python = system_python()
    kept = Path(request.config.cache.mkdir("metric-environment")) / Path(python).name
    if not (kept / "complete").exists():
        shutil.rmtree(kept, ignore_errors=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--no-warn-script-location", "--target", kept, *PACKAGES],
            check=True,
            env=environment,
        )
        (kept / "complete").touch()
    if os.geteuid() != 0:
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="ratchet-metrics-") as folder:
        os.chmod(folder, 0o755)
        yield Path(shutil.copytree(kept, Path(folder) / "packages"))
