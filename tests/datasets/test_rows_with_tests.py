"""Rows for programs: tests may stand where other rows have a ground truth."""

import json

import pytest

from ratchet.config import BoxedData
from ratchet.datasets import sources
from ratchet.errors import IncompatibleData


def written(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Write program {n}.", **row}) + "\n" for n, row in enumerate(rows)))
    return sources.load(BoxedData(path=str(path)), validation_prompts=2, format_kind="off")


@pytest.mark.parametrize("absent", [{}, {"ground_truth": None}, {"ground_truth": ""}], ids=["no key", "null", "empty"])
def test_a_row_with_tests_needs_no_ground_truth(tmp_path, absent):
    loaded = written(tmp_path, [{"tests": ["assert f() == 1"], **absent}] * 10)
    prompts = loaded.train + loaded.validation
    assert {prompt.ground_truth for prompt in prompts} == {""}
    assert {tuple(prompt.extras["tests"]) for prompt in prompts} == {("assert f() == 1",)}


def test_a_reference_solution_beside_the_tests_is_kept(tmp_path):
    loaded = written(tmp_path, [{"tests": ["assert f() == 1"], "ground_truth": "def f(): return 1"}] * 10)
    assert loaded.train[0].ground_truth == "def f(): return 1"


def test_a_row_without_tests_still_needs_one(tmp_path):
    with pytest.raises(IncompatibleData, match="row 1: the column ground_truth is missing"):
        written(tmp_path, [{}])
