"""Imports point one way, and starting up loads nothing heavy."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import ratchet
from ratchet.files import own_python

ROOT = Path(ratchet.__file__).parent
# A layer may import itself and any layer listed before it.
LAYERS = [
    ["errors"],
    ["files", "sandbox", "stats"],  # plain data, numbers and processes: no torch, no sockets
    ["verifiers"],  # each kind with its settings
    ["config"],  # the settings of a whole run
    ["models"],  # base models and adapters as files
    ["run"],  # what a run is
    ["evaluation"],  # what is scored, compared and decided
    ["datasets", "endpoint", "tracking"],
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


@cache
def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports, at any depth, lazily or not."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    return ".".join(["ratchet", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES if "migrations" not in path.parts}


def imports_at_start(path: Path) -> set[str]:
    """Modules of ours that a file imports anywhere but for type checking; a package's own parts do not count for it."""
    found, left = set(), [ast.parse(path.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            left += node.orelse
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        left += ast.iter_child_nodes(node)
    own = module_of(path)
    parts = {name for name in found if path.name == "__init__.py" and name.startswith(f"{own}.")}
    return (found & MODULES.keys()) - parts - {own}


def test_no_modules_import_each_other_in_a_circle():
    left = {name: imports_at_start(path) for name, path in MODULES.items()}
    while ready := [name for name, below in left.items() if not below & left.keys()]:
        for name in ready:
            del left[name]
    assert left == {}


def test_the_hallway_is_short():
    assert len(list(ROOT.glob("*.py"))) <= 6
    assert len([folder for folder in ROOT.iterdir() if any(folder.rglob("*.py"))]) <= 20


def test_no_name_of_a_module_or_class_is_given_twice():
    modules, classes = Counter(), Counter()
    for path in MODULES.values():
        modules[path.stem] += path.stem not in ("__init__", "__main__", "base")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes.update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in (modules + classes).items() if count > 1 and not name.startswith("_")] == []


def test_only_the_run_reads_its_journal():
    """Everybody else asks ``RunState``: no event is indexed by hand."""
    reading = re.compile(r"""event\[["']|\[["']event["']\]|get\(["']event["']""")
    assert [name for name, path in MODULES.items() if ".run." not in name and reading.search(path.read_text())] == []


def test_the_picture_of_the_house_is_current():
    script = ROOT.parents[1] / "scripts" / "draw_house.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_imports_point_downwards():
    wrong = []
    for path in FILES:
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        others = {name.split(".")[1] for name in imported_modules(path) if name.startswith("ratchet.")} - {own}
        wrong += [f"{path}: {own} must not import {other}" for other in others if LEVEL[other] >= LEVEL[own]]
    assert not wrong, "\n".join(wrong)


def test_files_that_docstrings_name_are_there():
    ours = {str(path.relative_to(ROOT.parent)) for path in FILES}
    named = {(path.name, name) for path in FILES for name in re.findall(r"``([\w/]+\.py)``", path.read_text())}
    assert [one for one in sorted(named) if not any(f"/{file}".endswith(f"/{one[1]}") for file in ours)] == []


def test_torch_stays_in_the_engine():
    heavy = {"torch", "transformers", "peft", "safetensors", "accelerate", "vllm"}
    elsewhere = [path for path in FILES if path.relative_to(ROOT).parts[0] not in ("engine", "worker")]
    wrong = [path for path in elsewhere if {name.split(".")[0] for name in imported_modules(path)} & heavy]
    assert not wrong


def test_there_is_one_way_to_load_a_model_and_it_runs_no_code_of_the_models_own():
    by_hand = {
        path.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("from_pretrained", "get_class_from_dynamic_module")
    }
    assert by_hand == {"third_party.py"}
    trusting = re.compile(r"""trust_remote_code["']?\s*[=:](?!\s*False)""")
    assert [path for path in FILES if trusting.search(path.read_text(encoding="utf-8"))] == []


def test_one_function_starts_every_python_process_of_ours(tmp_path):
    assert {path.name for path in FILES if "sys.executable" in path.read_text()} == {"files.py", "doctor.py"}
    assert (ROOT / "service" / "doctor.py").read_text().count("sys.executable") == 1  # shown, not started
    mark = tmp_path / "it-was-run"
    for name in ("json.py", "ratchet.py", "torch.py"):  # in the folder where somebody works
        (tmp_path / name).write_text(f"open({str(mark)!r}, 'w')")
    command = own_python("-m", "ratchet.tracking", "no-such-tracker", str(tmp_path))
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert not mark.exists()


START_UPS = [
    "import ratchet",
    "import ratchet; ratchet.RunConfig",
    "from ratchet.cli import ratchet; ratchet.main(['--help'], standalone_mode=False)",
    "from ratchet import service; service.list_runs",
    "import ratchet.verifiers, ratchet.datasets",
    "import ratchet.service.data.datasets, ratchet.service.verification.user_metrics",
    "import ratchet.readiness, ratchet.datasets.tokens",
    "import ratchet.supervisor.scheduler, ratchet.server",
    "import ratchet.service.runs.run_plan, ratchet.service.runs.follow, ratchet.service.runs.round_history, ratchet.service.runs.derived_runs",
    "import ratchet.cli.plan_commands, ratchet.cli.follow_commands, ratchet.cli.run_commands, ratchet.cli.run_output, ratchet.cli.live",
    "import ratchet.store, ratchet.store.artifact_store, ratchet.service.runs.run_files",
]
HEAVY_AT_START = [
    *("torch", "transformers", "peft", "datasets", "fastapi", "starlette", "matplotlib", "sympy", "sqlalchemy"),
    *("alembic", "pyarrow", "reasoning_gym", "psycopg", "fsspec", "scipy", "tensorboard", "trackio", "wandb", "mlflow"),
]


def first_that_loads(codes, heavy):
    """Run pieces of code one after the other in a new process; return the first that has loaded any of these modules."""
    script = (
        f"import sys\nfor code in {list(codes)!r}:\n"
        "    try:\n        exec(code)\n    except ImportError:\n        raise\n    except Exception as error:\n        print(error)\n"
        f"    if found := [name for name in {heavy!r} if name in sys.modules]:\n        break\n"
        "else:\n    code = None\n"
        "print()\nprint(repr((code, found)) if code else None)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_starting_up_loads_neither_torch_nor_a_web_framework():
    assert first_that_loads(START_UPS, HEAVY_AT_START) == "None"


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


COMMANDS = [
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
]


def test_commands_that_train_nothing_do_not_load_torch():
    start = "from ratchet.cli import ratchet\n"
    codes = [f"{start}ratchet.main({command.split()!r}, standalone_mode=False)" for command in COMMANDS]
    assert first_that_loads(codes, ["torch", "transformers", "datasets"]) == "None"
