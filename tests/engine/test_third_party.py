"""What the engine imports of other libraries: only what a job uses, and everything else once it is used."""

import importlib
import importlib.util
import json
import subprocess
import sys

import pytest

from ratchet.engine import third_party

HEAVY = ["bitsandbytes", "boto3", "scipy.optimize", "torch._dynamo", "torch._inductor", "torch.distributed.tensor"]
HEAVY += ["transformers.loss.loss_for_object_detection"]

# Train, evaluate, and then load a quantized model in the very same process. bitsandbytes asks for kernels on processors
# with AVX512-BF16 alone. (transformers, loaded before, asks too but fetches nothing.)
JOBS = """
import sys
sys.path.insert(0, sys.argv[1])
from tests import small_evaluations, small_runs
from pathlib import Path
small_runs.trained(Path(sys.argv[2]), rl={**small_runs.SMALL["rl"], "rounds": 1})
small_evaluations.few()
from ratchet import worker
worker.run(small_evaluations.made(small_evaluations.request()))
print(*sys.modules)

import torch
from ratchet.config import RunConfig
from ratchet.engine import third_party
from ratchet.engine.policy import load_chat, load_policy
sys.path.insert(0, sys.argv[3])
config = RunConfig(model="tiny", device="cpu", quantization="4bit")
print("loading bitsandbytes", file=sys.stderr)
third_party.load_bitsandbytes()
print("loaded", file=sys.stderr)
print("kernels" in sys.modules)
policy = load_policy(config, *load_chat(config))
print(sorted({type(module).__module__.split(".")[0] for module in policy.model.modules() if "4bit" in str(type(module))}))
print(torch.compile(lambda x: x + 1, backend="eager")(torch.tensor(1)).item())
print(isinstance(torch.ones(1), torch.distributed.tensor.DTensor))
"""


def test_jobs_load_nothing_heavy_that_they_do_not_use(pytestconfig, tmp_path):
    (tmp_path / "kernels.py").write_text("raise SystemExit('kernels was asked for')\n")
    command = [sys.executable, "-c", JOBS, str(pytestconfig.rootpath), str(tmp_path / "run"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules, asks_for_kernels, quantized, compiled, is_sharded = done.stdout.splitlines()
    assert set(HEAVY) & set(modules.split()) == set()
    assert asks_for_kernels == "False"
    assert "loading bitsandbytes\nloaded\n" in done.stderr  # and not a word in between
    assert quantized == "['bitsandbytes', 'peft']"  # the layer, and PEFT's around it
    assert (compiled, is_sharded) == ("2", "False")


def test_a_package_that_is_hidden_cannot_be_imported_and_comes_back():
    with third_party._hidden("json"):
        assert importlib.util.find_spec("json") is None
        with pytest.raises(ImportError):
            importlib.import_module("json")
    assert importlib.import_module("json") is json


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A user of a module that was imported while that module was put off."""
    heavy = "class Shape:\n    size = 3\nTABLE = {'a': 1}\ndef double(x): return 2 * x\n"
    (tmp_path / "heavy_one.py").write_text(heavy)
    (tmp_path / "its_user.py").write_text(
        "from heavy_one import Shape, TABLE, double\nshape = Shape()\n"
        "def area(shape: Shape | None): return shape.size**2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with third_party._put_off("heavy_one"):
        user = importlib.import_module("its_user")
    assert "heavy_one" not in sys.modules
    yield user
    for name in ("heavy_one", "its_user"):
        sys.modules.pop(name, None)


def test_nothing_is_an_instance_of_a_class_that_is_put_off(user):
    assert not isinstance(3, user.Shape)
    assert "heavy_one" not in sys.modules


def test_what_was_put_off_is_there_once_it_is_used(user):
    assert user.double(2) == 4
    assert (user.TABLE["a"], list(user.TABLE), "b" in user.TABLE) == (1, ["a"], False)
    assert user.shape.size == 3  # created while the module was put off
    assert isinstance(user.Shape(), importlib.import_module("heavy_one").Shape)
    assert isinstance(user.Shape(), user.Shape)


def test_a_class_can_inherit_from_one_that_was_put_off(user):
    class Square(user.Shape):
        pass

    assert Square.__mro__[1] is importlib.import_module("heavy_one").Shape


def test_a_module_that_is_imported_already_is_not_put_off():
    with third_party._put_off("json"):
        assert sys.modules["json"] is json
