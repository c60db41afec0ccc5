"""The benchmarks' own arithmetic, by hand-worked values, and that the script for a GPU runs at toy size on a CPU."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch):
    """Make the folder's modules importable, as they are to its programs."""
    monkeypatch.syspath_prepend(str(FOLDER))


def gpu(*arguments, home, **environment):
    return subprocess.run(
        [str(FOLDER / "gpu.sh"), *arguments],
        env={**os.environ, "PYTHON": sys.executable, "RATCHET_HOME": str(home), **environment},
        capture_output=True,
        text=True,
    )


# --- the least work --------------------------------------------------------------------------------------------------


def small_shape():
    from work import Shape

    # Linear parts: 4x4, 4x2, 4x2, 4x4, 4x8, 4x8, 8x4 = 144 multiply-adds a layer; output 4 x 10.
    return Shape(layers=2, hidden=4, intermediate=8, heads=2, key_value_heads=1, head_width=2, vocabulary=10)


def test_multiply_adds_of_a_token_are_counted_by_layer(benchmarks):
    shape = small_shape()
    assert (shape.trunk, shape.output) == (288, 40)
    assert shape.attention(1) == 16  # 2 layers, scores and values, 4 wide


def test_sampling_computes_a_prompt_once_and_what_is_common_once(benchmarks):
    from work import sampling

    # Prompts of 5 and 7 tokens, 3 of them common: 3 + 2 + 4 tokens. Answers of 2, 1 and 3, 1 tokens: live 4, 2, 1.
    work = sampling(small_shape(), [5, 7], 3, [2, 1, 3, 1])
    assert work.live == (4, 2, 1)
    seen_in_prompts = 9 / 2 + (25 - 9) / 2 + (49 - 9) / 2
    seen = (10 + 2) + (5 + 0.5) + (21 + 4.5) + (7 + 0.5)
    assert work.trunk == 9 * 288 + 16 * (seen_in_prompts + seen)
    assert work.total == work.trunk + (2 + 1) * 288 + (4 + 2 + 1) * 40


def test_the_update_counts_forward_and_backward_but_no_gradient_of_frozen_weights(benchmarks):
    from work import update

    shape = small_shape()
    work = update(shape, [5], 2, 3)
    fed, seen = 5 + 2 * 2, 25 / 2 + 2 * (15 + 9 / 2)
    assert work.trunk == fed * (2 * 288 + 3 * shape.adapter) + 3 * 16 * seen
    assert work.total == work.trunk + 2 * 2 * 3 * 40


def test_the_bound_follows_the_measured_passes(benchmarks):
    from work import PASS_TOKENS, sampling

    # A pass takes 1 s up to 8 tokens; from then on as long as there are tokens.
    shape = replace(small_shape(), vocabulary=72)  # an output as large as the layers: 288
    passes = {
        str(n): {"trunk_rate": 288 * n / max(1, n / 8), "output_rate": 288 * n / max(1, n / 8)} for n in PASS_TOKENS
    }
    work = replace(sampling(shape, [1], 0, [2] * 20), trunk=0.0)
    # 20 tokens are 2.5 times 8. The second step is a pass of the layers and one of the output, the first of the output.
    assert work.seconds(passes) == pytest.approx(3 * 2.5)


def test_the_exponent_is_the_slope_through_the_logarithms(benchmarks):
    from report import fitted_exponent

    assert fitted_exponent([1, 2, 4, 8], [3 * n**1.5 for n in (1, 2, 4, 8)]) == pytest.approx(1.5)
    assert fitted_exponent([1, 2, 4], [5, 5, 5]) == pytest.approx(0)


# --- what the tools are given ----------------------------------------------------------------------------------------


def test_uneven_lengths_are_skewed_reach_the_longest_and_never_change(benchmarks):
    from workload import answer_lengths

    lengths = answer_lengths(128, 128, uneven=True)
    assert sum(lengths) / 128 == pytest.approx(31, abs=1)
    assert max(lengths) == 128
    assert sorted(lengths)[64] < 25
    assert lengths == answer_lengths(128, 128, uneven=True) != sorted(lengths)
    assert answer_lengths(3, 48, uneven=False) == [48, 48, 48]


def test_every_row_asks_for_settings_that_ratchet_takes(benchmarks):
    from rows import ROWS, GrowthRow, PairRow

    from ratchet.config import RunConfig

    for row in (*ROWS.values(), *(row.shrunk() for row in ROWS.values())):
        if isinstance(row, PairRow):
            RunConfig.model_validate(row.first_order()["settings"]).resolved()
        if isinstance(row, GrowthRow):
            for point in row.points:
                RunConfig.model_validate(row.order(point, "tiny")["settings"]).resolved()


# --- the script for a GPU --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_script_for_a_gpu_does_all_its_parts_on_a_cpu(tmp_path):
    out = tmp_path / "gpu.json"
    done = gpu("--device", "cpu", "--tiny", "--out", str(out), home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads(out.read_text())["parts"]
    assert parts["parity"]["sampler_against_plain_forward"]["most"] < 1e-4
    assert parts["parity"]["packed"]["gradient_norm"] == pytest.approx(parts["parity"]["plain"]["gradient_norm"], 1e-4)
    assert parts["demo"]["ending"] == "all_rounds"
    for name in ("rounds", "update_alone", "sampler_alone"):
        assert parts[name]["times_as_fast"] > 0
    assert "skipped" in parts["cuda_graphs"]


def test_parts_that_come_one_by_one_are_joined_once_all_are_there(tmp_path):
    content = os.urandom(3000)
    pieces = {f"smollm2.gguf.part0{n + 1}": content[1000 * n : 1000 * (n + 1)] for n in range(3)}
    sums = "".join(f"{hashlib.sha256(piece).hexdigest()}  {name}\n" for name, piece in pieces.items())
    trips = [{"smollm2.gguf.sha256": sums.encode(), **dict(list(pieces.items())[:1])}, dict(list(pieces.items())[1:])]
    home = tmp_path / "home"
    for number, files in enumerate(trips):
        trip = tmp_path / f"trip{number}"
        trip.mkdir()
        for name, piece in files.items():
            (trip / name).write_bytes(piece)
        done = gpu("--collect", str(trip), home=home)
        assert done.returncode == 0, done.stderr
        assert ("whole" in done.stdout) == (number == 1)
        assert (home / "models" / "smollm2.gguf").exists() == (number == 1)
    assert (home / "models" / "smollm2.gguf").read_bytes() == content
