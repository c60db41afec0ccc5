"""The demo shows a model learn: from three of three seeds, and the same seed gives the same bytes."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def demo(out, *flags):
    # With as many threads as users have: the tests' own setting is one, which hides what several could do.
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-m", "ratchet", "demo", "--json", "--out", str(out), *flags],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    adapter = (out / "adapter" / "adapter_model.safetensors").read_bytes()
    return result, hashlib.sha256(adapter).hexdigest()


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return demo(tmp_path_factory.mktemp("demo") / "run", "--seed", "0")


def test_it_reaches_ninety_percent_from_seed_zero(first):
    result, _ = first
    assert 0.30 <= result["start_accuracy"] <= 0.45
    assert result["best_accuracy"] >= 0.90
    assert result["heldout_before"] <= 0.45
    assert result["heldout_after"] >= 0.90
    assert result["ending"] == "all_rounds"


@pytest.mark.long
@pytest.mark.parametrize("seed", ["1", "2"])
def test_it_reaches_ninety_percent_from_other_seeds(seed, tmp_path):
    result, _ = demo(tmp_path / "run", "--seed", seed)
    assert 0.30 <= result["start_accuracy"] <= 0.45
    assert result["best_accuracy"] >= 0.90
    assert result["heldout_after"] >= 0.90


def test_the_same_seed_gives_the_same_bytes(first, tmp_path):
    result, checksum = demo(tmp_path / "run", "--seed", "0")
    assert checksum == first[1]
    assert {**result, "run": "", "folder": "", "adapter": "", "seconds": 0} == {
        **first[0],
        "run": "",
        "folder": "",
        "adapter": "",
        "seconds": 0,
    }
