"""A version as a source of prompts: what is read, what never is, and what is refused."""

import json

import pytest

from ratchet.config import DatasetData
from ratchet.datasets import load
from ratchet.datasets.importing import ImportSettings, import_data
from ratchet.datasets.version_folders import versions_home
from ratchet.errors import Conflict, IncompatibleData, NotFound


@pytest.fixture
def data(tmp_path):
    rows = [{"prompt": f"q{n}", "answer": str(n), "difficulty": n % 3} for n in range(100)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    imported = import_data(str(tmp_path / "rows.jsonl"), ImportSettings())
    return DatasetData(name="mine", version=1, content_hash=imported.content_hash)


def loaded(data, **changes):
    return load(data.model_copy(update=changes), validation_prompts=128, format_kind="off")


def test_train_and_validation_rows_become_prompts_with_the_numbers_of_the_source(data):
    dataset = loaded(data)
    assert (len(dataset.train), len(dataset.validation)) == (80, 10)
    for prompt in (*dataset.train, *dataset.validation):
        assert prompt.messages == ({"role": "user", "content": f"q{prompt.id - 1}"},)
        assert prompt.ground_truth == str(prompt.id - 1)
        assert prompt.extras == {"difficulty": (prompt.id - 1) % 3}
    assert (dataset.instruction, dataset.examples, dataset.heldout) == ("", (), ())


@pytest.mark.parametrize(
    ("form", "mark"), [("tags", "<answer></answer>"), ("boxed", "\\boxed{}"), ("off", ""), ("pattern", "")]
)
def test_the_form_that_earns_the_bonus_is_asked_for_and_nothing_else(data, form, mark):
    dataset = load(data, validation_prompts=128, format_kind=form)
    assert mark in dataset.instruction
    assert bool(dataset.instruction) is bool(mark)


@pytest.mark.parametrize("spoil", ["poison", "delete", "lock"])
def test_test_rows_are_never_read(data, spoil):
    before = loaded(data)
    file = versions_home() / data.content_hash / "test.jsonl"
    if spoil == "poison":
        file.write_bytes(
            b'{"row": 1, "prompt": [{"role": "user", "content": "poison"}], "ground_truth": "poison"}\n' * 99
        )
    elif spoil == "delete":
        file.unlink()
    else:
        file.unlink()
        file.mkdir()
    assert loaded(data) == before


@pytest.mark.parametrize("split", ["train", "validation"])
def test_rows_that_were_changed_are_refused(data, split):
    file = versions_home() / data.content_hash / f"{split}.jsonl"
    file.write_bytes(file.read_bytes() + file.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(Conflict, match=rf"{split}\.jsonl is not as it was when the data was added"):
        loaded(data)


def test_a_version_that_is_not_here_is_said_to_be_elsewhere(data):
    with pytest.raises(NotFound, match="set RATCHET_HOME to where it was added"):
        loaded(data, content_hash="0" * 64)


def test_rows_used_and_the_sample_are_those_of_the_other_sources(data):
    assert loaded(data, rows=5).train == loaded(data).train[:5]
    sample = loaded(data, rows=5, pick="sample").train
    assert len(sample) == 5
    assert sample != loaded(data, rows=5).train
    assert loaded(data, rows=500).notes[0] == "Rows used is 500, but only 80 are there to train on: all are used."


def test_a_version_without_validation_rows_cannot_be_trained_on(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"prompt": split, "answer": "1"}))
    imported = import_data(str(tmp_path), ImportSettings())
    with pytest.raises(IncompatibleData, match="It has no validation rows, so it cannot be trained on"):
        loaded(DatasetData(name="mine", content_hash=imported.content_hash))
