"""What a machine has, found out without torch, is what torch finds."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from ratchet.engine.policy import chosen_device
from ratchet.errors import InvalidSetting
from ratchet.readiness import device_checks
from ratchet.readiness.device_checks import choose_device, device_here


@pytest.mark.parametrize(
    ("setting", "gpus", "has_mps", "device"),
    [
        ("auto", 2, True, "cuda:0"),
        ("auto", 0, True, "mps"),
        ("auto", 0, False, "cpu"),
        ("cpu", 2, True, "cpu"),
        ("cuda", 1, False, "cuda"),
        ("cuda:1", 2, False, "cuda:1"),
        ("mps", 0, True, "mps"),
    ],
)
def test_a_device_that_is_there_is_chosen(setting, gpus, has_mps, device):
    assert choose_device(setting, gpus, has_mps) == device


@pytest.mark.parametrize(("setting", "gpus"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2), ("mps", 2)])
def test_a_device_that_is_not_there_is_refused(setting, gpus):
    with pytest.raises(InvalidSetting, match=f"Device is {setting}, but this machine has") as caught:
        choose_device(setting, gpus, has_mps=False)
    assert caught.value.field == "device"


@pytest.mark.parametrize("setting", ["auto", "cpu"])
def test_torch_chooses_the_same_device_here(setting):
    assert torch.device(device_here(setting)) == chosen_device(setting)


@pytest.mark.parametrize(
    ("version", "builds"),
    [
        ("from typing import Optional\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", set()),
        ("cuda: str = '12.8'\nhip = None\n", {"cuda"}),
        ("cuda = None\nhip = '6.4'\n", {"hip"}),
        ("cuda = (\n", set()),
    ],
)
def test_what_torch_was_built_for_is_read_from_its_version_file(version, builds, tmp_path, monkeypatch):
    (tmp_path / "version.py").write_text(version)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(device_checks, "find_spec", lambda name: spec)
    assert device_checks._builds_of_torch() == builds


def test_where_only_torch_can_tell_it_is_left_to_torch(tmp_path, monkeypatch):
    (tmp_path / "version.py").write_text("cuda = None\nhip = '6.4'\n")
    monkeypatch.setattr(device_checks, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    assert device_here("cuda:3") == "cuda:3"
    assert device_here("auto") == "auto"


def driver(tmp_path, body):
    """Build a driver that is asked like CUDA's, in C: how many GPUs there are is what it says."""
    source = tmp_path / "driver.c"
    source.write_text(body)
    library = tmp_path / "libcuda.so.1"
    done = subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no C compiler")
    return library


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("int cuInit(unsigned f) { return 0; } int cuDeviceGetCount(int *n) { *n = 3; return 0; }", 3),
        ("int cuInit(unsigned f) { return 100; } int cuDeviceGetCount(int *n) { *n = 3; return 0; }", 0),
        ("#include <stdlib.h>\nint cuInit(unsigned f) { abort(); } int cuDeviceGetCount(int *n) { return 0; }", 0),
    ],
    ids=["three", "no device", "broken"],
)
def test_the_driver_is_asked_how_many_gpus_there_are(body, count, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver(tmp_path, body).parent))
    assert device_checks._cuda_gpus() == count


def test_without_a_driver_there_are_none():
    if not torch.cuda.is_available():
        assert device_checks._cuda_gpus() == 0


def test_a_driver_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(device_checks, "_COUNT_GPUS", "import time; time.sleep(60)")
    monkeypatch.setattr(device_checks, "_DRIVER_SECONDS", 0.2)
    assert device_checks._cuda_gpus() == 0


def test_asking_loads_no_torch():
    code = "import sys; from ratchet.readiness.device_checks import device_here; device_here('auto'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
