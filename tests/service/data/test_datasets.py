"""Datasets as a surface has them: versions by name, checks, and the version that a run is saved with."""

import json

import pytest

from ratchet.config.config_text import build
from ratchet.datasets.importing import ImportSettings
from ratchet.datasets.version_folders import versions_home
from ratchet.errors import IncompatibleData, InvalidSetting, NotFound
from ratchet.service.data import datasets
from ratchet.service.verification.grade_rows import check_dataset


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def numbered(count, start=1):
    return [{"prompt": f"q{number}", "answer": str(number)} for number in range(start, start + count)]


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "rows.jsonl", numbered(40))


def checked(reference, kind="final_number"):
    return check_dataset(reference, build({"verifier": {"kind": kind}}).resolved())


def test_versions_count_up_and_the_same_content_is_the_same_version(file):
    first = datasets.add(str(file), "mine")
    assert (first.version, first.is_new) == (1, True)
    second = datasets.add(str(file), "mine", ImportSettings(seed=1))
    assert second.version == 2
    again = datasets.add(str(file), "mine")
    assert (again.version, again.is_new, again.content_hash) == (1, False, first.content_hash)
    assert again.notes[0] == "Version 1 has the same content already."
    assert [(one.name, one.version) for one in datasets.list_datasets()] == [("mine", 1), ("mine", 2)]
    assert datasets.show("mine").summary.version == 2
    assert datasets.show("mine@1").summary.content_hash == first.content_hash


def test_two_names_may_share_one_content(file):
    hashes = {datasets.add(str(file), name).content_hash for name in ("a", "b")}
    assert len(hashes) == 1
    assert len(list(versions_home().iterdir())) == 1


@pytest.mark.parametrize("name", ["", "a@1", "a b", "../a", "-a", "x" * 101, "é"])
def test_names_that_cannot_be_used_are_refused_before_anything_is_read(name):
    with pytest.raises(InvalidSetting, match="up to 100 letters, digits"):
        datasets.add("missing.jsonl", name)


@pytest.mark.parametrize("reference", ["mine@", "mine@0", "mine@x", "mine@1@2", "mine@-1"])
def test_a_version_that_is_no_number_is_refused(reference):
    with pytest.raises(InvalidSetting, match="names no version"):
        datasets.show(reference)


def test_bad_rows_leave_neither_a_version_nor_a_folder(tmp_path):
    with pytest.raises(IncompatibleData, match="row 1"):
        datasets.add(str(write(tmp_path / "rows.jsonl", [{"prompt": "q", "answer": []}])), "mine")
    assert datasets.list_datasets() == []
    assert list(versions_home().iterdir()) == []


def test_the_preview_is_what_is_stored(file):
    datasets.add(str(file), "mine")
    details = datasets.show("mine", rows=2)
    assert {split: len(rows) for split, rows in details.preview.items()} == {"train": 2, "validation": 2, "test": 2}
    row = details.preview["train"][0]
    assert row["prompt"] == [{"role": "user", "content": f"q{row['row']}"}]
    assert datasets.show("mine", rows=0).preview["train"] == ()


def test_a_check_names_what_the_verifier_cannot_grade_and_what_is_in_two_splits(tmp_path):
    write(tmp_path / "d/train.jsonl", [*numbered(3), {"prompt": "x", "answer": "xyzzy"}, *numbered(1)])
    write(tmp_path / "d/validation.jsonl", [{"prompt": " Q2", "answer": "2"}, {"prompt": "v", "answer": "5"}])
    write(tmp_path / "d/test.jsonl", [{"prompt": "V", "answer": "5"}, {"prompt": "t", "answer": "none"}])
    datasets.add(str(tmp_path / "d"), "mine")
    found = checked("mine")
    assert found.problems[0].startswith("1 of 5 train rows have a reference that the verifier cannot check: row 4: ")
    assert found.problems[1].startswith("1 of 2 test rows have a reference that the verifier cannot check: row 2: ")
    assert len(found.problems) == 3
    assert found.problems[2].startswith("2 rows appear in two splits that must not overlap")
    assert "train row 2 and validation row 1; validation row 2 and test row 1" in found.problems[2]
    assert found.warnings == ("1 train row repeats an earlier one.",)
    assert "xyzzy" not in str(found)


def test_a_dataset_that_is_fit_has_no_problems(file):
    datasets.add(str(file), "mine")
    found = checked("mine@1")
    assert (found.problems, found.warnings, found.verifier) == ((), (), "final_number")


def config(**data):
    return build({"data": {"source": "dataset", **data}, "verifier": {"kind": "final_number"}})


def test_a_run_is_saved_with_version_and_hash(file):
    added = datasets.add(str(file), "mine")
    datasets.add(str(file), "mine", ImportSettings(seed=1))
    newest = datasets.with_version(config(name="mine")).data
    assert newest.version == 2
    first = datasets.with_version(config(name="mine", version=1)).data
    assert (first.version, first.content_hash) == (1, added.content_hash)
    assert datasets.with_version(config(name="mine@1")).data == first
    assert datasets.with_version(config(name="mine", version=1, content_hash=added.content_hash)).data == first


def test_a_hash_of_another_version_or_two_versions_are_refused(file):
    added = datasets.add(str(file), "mine")
    datasets.add(str(file), "mine", ImportSettings(seed=1))
    with pytest.raises(InvalidSetting, match=f"not {added.content_hash[:12]}"):
        datasets.with_version(config(name="mine", content_hash=added.content_hash))
    with pytest.raises(InvalidSetting, match="are two versions"):
        datasets.with_version(config(name="mine@1", version=2))
    with pytest.raises(NotFound, match="no dataset other"):
        datasets.with_version(config(name="other"))


def test_the_revision_of_a_hub_dataset_is_pinned_where_the_hub_can_tell(monkeypatch, file):
    asked = []

    def hub_commit(path, revision):
        asked.append((path, revision))
        return "abc123" if path == "known/data" else None

    monkeypatch.setattr(datasets, "hub_commit", hub_commit)

    def revision(path, given=None):
        source = {"source": "boxed", "path": path, **({"revision": given} if given else {})}
        return datasets.with_version(build({"data": source})).data.revision

    assert revision("known/data") == "abc123"
    assert revision("known/data", "v1") == "abc123"
    assert revision("unknown/data") is None
    assert revision("unknown/data", "v1") == "v1"
    assert revision(str(file)) is None
    assert asked == [("known/data", None), ("known/data", "v1"), ("unknown/data", None), ("unknown/data", "v1")]


def test_other_sources_are_left_as_they_are():
    given = build({"data": {"source": "math_pairs"}})
    assert datasets.with_version(given) is given
