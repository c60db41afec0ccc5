"""Imports point one way, and starting up loads nothing heavy."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ratchet

ROOT = Path(ratchet.__file__).parent
# A layer may import itself and any layer listed before it.
LAYERS = [
    ["errors"],
    ["files", "config", "stats"],  # plain data and numbers: no torch, no sockets
    ["models"],  # base models and adapters as files
    ["run"],  # what a run is
    ["evaluation"],  # what is scored, compared and decided
    ["datasets", "endpoint", "sandbox", "tracking"],
    ["verifiers"],
    ["readiness"],  # what is checked before a model loads
    ["engine", "store"],  # torch, transformers and PEFT: here and nowhere else | the database, blind to the engine
    ["worker", "supervisor"],  # the process that trains | its scheduler: joined by the run folder only
    ["service"],  # use cases
    ["server"],  # composition root
    ["notebook", "cli"],  # surfaces, blind to each other
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports, at any depth, lazily or not."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for other in {name.split(".")[1] for name in imported_modules(path) if name.startswith("ratchet.")} - {own}:
        if own in ("cli", "notebook") and other == own:
            continue
        assert LEVEL[other] < LEVEL[own], f"{own} must not import {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_stays_in_the_engine(path):
    if path.relative_to(ROOT).parts[0] in ("engine", "worker"):
        return
    heavy = {"torch", "transformers", "peft", "safetensors", "accelerate", "vllm"}
    assert not {name.split(".")[0] for name in imported_modules(path)} & heavy


@pytest.mark.parametrize(
    "code",
    [
        "import ratchet",
        "import ratchet; ratchet.RunConfig",
        "from ratchet.cli import ratchet; ratchet.main(['--help'], standalone_mode=False)",
        "from ratchet import service; service.list_runs",
        "import ratchet.verifiers, ratchet.datasets",
        "import ratchet.service.data.datasets, ratchet.service.verification.user_metrics",
        "import ratchet.readiness, ratchet.datasets.tokens",
        "import ratchet.supervisor, ratchet.server",
        "import ratchet.service.runs.run_plan, ratchet.service.runs.follow, ratchet.service.runs.round_history, ratchet.service.runs.derived_runs",
        "import ratchet.cli.plan_commands, ratchet.cli.follow_commands, ratchet.cli.run_commands, ratchet.cli.run_output, ratchet.cli.live",
        "import ratchet.store, ratchet.store.artifact_store, ratchet.service.adapters.run_files",
    ],
    ids=[
        "import",
        "settings",
        "help",
        "service",
        "data and verifiers",
        "datasets and metrics",
        "readiness",
        "keeper",
        "plans and runs",
        "commands",
        "artifacts",
    ],
)
def test_starting_up_loads_neither_torch_nor_a_web_framework(code):
    heavy = (
        "('torch', 'transformers', 'peft', 'datasets', 'fastapi', 'starlette', 'matplotlib', 'sympy', 'sqlalchemy', "
        "'alembic', 'pyarrow', 'reasoning_gym', 'psycopg', 'fsspec', 'scipy', 'tensorboard', 'trackio', 'wandb', "
        "'mlflow')"
    )
    check = f"import sys\n{code}\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_public_name_of_the_package_can_be_had():
    assert {name for name in ratchet.__all__ if getattr(ratchet, name)} == set(ratchet.__all__)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["ratchet.worker", "ratchet.engine.policy"])
def test_openmp_is_told_to_wait_passively_before_torch_loads(first):
    # libgomp reads the variable when it is loaded, so a check of os.environ alone would come too late to matter.
    code = (
        "import sys, os, importlib.abc\n"
        "class Spy(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            print('policy', os.environ.get('OMP_WAIT_POLICY'))\n"
        "            sys.meta_path.remove(self)\n"
        f"sys.meta_path.insert(0, Spy())\nimport {first}"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["policy PASSIVE"]


@pytest.mark.parametrize(
    "command",
    [
        "data list",
        "metric list",
        "data show nothing",
        "adapters list",
        "plan --source math_pairs --max-answer-tokens 64",
        "runs follow nothing",
        "runs rounds nothing",
        "runs log nothing",
        "runs samples nothing",
        "runs duplicate nothing",
        "runs drop nothing",
    ],
)
def test_commands_that_train_nothing_do_not_load_torch(command):
    code = (
        "import sys\nfrom ratchet.cli import ratchet\n"
        f"try:\n    ratchet.main({command.split()!r}, standalone_mode=False)\n"
        "except Exception as error:\n    print(error)\n"
        "print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
