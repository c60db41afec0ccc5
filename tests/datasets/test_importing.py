"""Data becomes a version: formats, columns, splits, and a hash that depends on the content alone."""

import csv
import fcntl
import hashlib
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.datasets.canonical import prompt_of
from ratchet.datasets.importing import ImportSettings, import_data
from ratchet.datasets.tables import SPLITS
from ratchet.datasets.version_folders import read_manifest, read_rows, versions_home
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting

from ..repeated import matrix

SECRET = "xyzzy"


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines(rows))
    return path


def numbered(count, start=1):
    return [{"prompt": f"q{number}", "ground_truth": str(number)} for number in range(start, start + count)]


def add(path, *, columns=None, **chosen):
    return import_data(str(path), ImportSettings(columns=columns or {}, **chosen))


def stored(imported, split="train"):
    return list(read_rows(imported.content_hash, split))


def kept():
    return sorted(entry.name for entry in versions_home().iterdir()) if versions_home().exists() else []


def refusal(path, **chosen):
    before = kept()
    with pytest.raises(IncompatibleData) as refused:
        add(path, **chosen)
    assert SECRET not in str(refused.value)
    assert kept() == before
    return str(refused.value)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


LAYOUTS = {
    "messages": (
        {"messages": [{"role": "system", "content": "s"}, user("q"), assistant(" 7\n")]},
        "messages",
        {"prompt": [{"role": "system", "content": "s"}, user("q")], "ground_truth": "7"},
    ),
    "prompt": ({"prompt": "q", "ground_truth": 7}, "prompt", {"prompt": [user("q")], "ground_truth": "7"}),
    "answer": ({"prompt": [user("q")], "answer": "7"}, "prompt", {"prompt": [user("q")], "ground_truth": "7"}),
    "solution": ({"prompt": "q", "solution": "7"}, "prompt", {"prompt": [user("q")], "ground_truth": "7"}),
    "tests": ({"prompt": "q", "tests": ["t"]}, "prompt", {"prompt": [user("q")], "ground_truth": "", "tests": ["t"]}),
    "object": (
        {"prompt": "q", "ground_truth": {"a": 1}},
        "prompt",
        {"prompt": [user("q")], "ground_truth": '{"a": 1}'},
    ),
    "preference": (
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        "preference",
        {"prompt": [user("q")], "ground_truth": "a", "rejected": "b"},
    ),
    "preference talks": (
        {"prompt": "q", "chosen": [user("q"), assistant("a")], "rejected": [assistant("b")]},
        "preference",
        {"prompt": [user("q")], "ground_truth": "a", "rejected": "b"},
    ),
    "optional": (
        {
            "prompt": "q",
            "answer": "7",
            "id": "x",
            "difficulty": 2,
            "tools": '[{"name": "f"}]',
            "schema": "{}",
            "other": 1,
        },
        "prompt",
        {
            "prompt": [user("q")],
            "ground_truth": "7",
            "id": "x",
            "difficulty": 2,
            "tools": [{"name": "f"}],
            "schema": {},
        },
    ),
}


@pytest.mark.parametrize(("row", "kind", "expected"), LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_becomes_the_one_form(tmp_path, row, kind, expected):
    imported = add(write(tmp_path / "rows.jsonl", [row]))
    assert imported.layout.format == kind
    assert stored(imported) == [{"row": 1, **expected}]
    prompt = prompt_of(stored(imported)[0])
    assert (prompt.id, prompt.messages, prompt.ground_truth) == (1, tuple(expected["prompt"]), expected["ground_truth"])


BAD = [
    ({"messages": [user(SECRET)]}, "the column messages does not end with an assistant message"),
    ({"messages": [assistant("a"), assistant(SECRET)]}, "does not end with a user message before its last message"),
    ({"messages": SECRET}, "the column messages is text that is not valid JSON"),
    ({"messages": 7}, "the column messages is not a list of messages"),
    ({"messages": [user("q"), assistant(" ")]}, "a message is empty"),
    ({"messages": [user("q"), assistant(SECRET)], "image": SECRET}, "it holds an image"),
    ({"messages": [user("q"), assistant("x" * 32_001)]}, "longer than 32,000 characters"),
    ({"messages": [user("q"), assistant("a")], "tools": SECRET}, "the column tools is text that is not valid JSON"),
    ({"prompt": SECRET, "ground_truth": "1"}, "the column messages is missing"),
]


@pytest.mark.parametrize(("row", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_bad_row_is_named_and_nothing_is_left_behind(tmp_path, row, reason):
    good = {"messages": [user("q"), assistant("a")]}
    message = refusal(write(tmp_path / "rows.jsonl", [good, row]))
    assert "row 2: " in message
    assert reason in message


PREFERENCES = [
    ({"chosen": [user("other"), assistant(SECRET)]}, "the column chosen does not begin with the prompt"),
    ({"chosen": [user(SECRET)]}, "the column chosen does not end with an assistant message"),
    ({"rejected": 7}, "the column rejected is neither text nor a list of messages"),
    ({"rejected": None}, "the column rejected is missing"),
]


@pytest.mark.parametrize(("change", "reason"), PREFERENCES, ids=[reason for _, reason in PREFERENCES])
def test_a_bad_preference_pair_is_named(tmp_path, change, reason):
    good = {"prompt": "q", "chosen": "a", "rejected": "b"}
    assert reason in refusal(write(tmp_path / "rows.jsonl", [good, {**good, **change}]))


def test_columns_are_mapped_also_into_objects_and_messages_name_them_as_the_source_does(tmp_path):
    rows = [{"question": f"q{n}", "reward_model": {"ground_truth": n}, "level": n} for n in range(3)]
    columns = {"prompt": "question", "ground_truth": "reward_model.ground_truth", "difficulty": "level"}
    imported = add(write(tmp_path / "rows.jsonl", rows), columns=columns)
    assert dict(imported.layout.columns) == columns
    assert prompt_of(stored(imported)[0]).extras["difficulty"] in (0, 1, 2)
    rows[1]["question"] = 7
    message = refusal(write(tmp_path / "bad.jsonl", rows), columns=columns)
    assert "row 2: the column question is neither text nor a list of messages" in message


def test_what_cannot_be_mapped_is_said_with_the_columns_that_are_there(tmp_path):
    file = write(tmp_path / "rows.jsonl", [{"question": SECRET, "gold": SECRET}])
    assert "Its columns are question, gold. Say which is which, such as --map prompt=question" in refusal(file)
    assert "has no column query, which prompt was mapped to" in refusal(file, columns={"prompt": "query"})
    with pytest.raises(InvalidSetting, match="not to answer"):
        add(file, columns={"answer": "gold"})


def test_a_csv_file_whose_first_row_is_a_question_is_not_quoted(tmp_path):
    (tmp_path / "rows.csv").write_text(f"What is {SECRET}?,7\nWhat is 2?,8\n")
    message = refusal(tmp_path / "rows.csv")
    assert "Its first row has 2 columns; in a CSV file that row must name them" in message


def test_jsonl_csv_and_parquet_of_the_same_rows_are_the_same_version(tmp_path):
    rows = [{"prompt": f'a "{n}",\n{n}', "ground_truth": f"0{n}", "id": f"i{n}"} for n in range(40)]
    write(tmp_path / "rows.jsonl", rows)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    hashes = {add(tmp_path / f"rows.{kind}").content_hash for kind in ("jsonl", "csv", "parquet")}
    assert len(hashes) == 1
    assert len(list(versions_home().iterdir())) == 1


def test_the_hash_is_that_of_the_files_and_of_nothing_else(tmp_path):
    imported = add(write(tmp_path / "rows.jsonl", numbered(30)), seed=3)
    folder = versions_home() / imported.content_hash
    parts = {split: hashlib.sha256((folder / f"{split}.jsonl").read_bytes()).hexdigest() for split in SPLITS}
    text = json.dumps({"format": "prompt", "splits": parts}, sort_keys=True)
    assert imported.content_hash == hashlib.sha256(text.encode()).hexdigest()
    assert add(write(tmp_path / "other.jsonl", numbered(30)), seed=3).content_hash == imported.content_hash
    assert add(tmp_path / "rows.jsonl", seed=4).content_hash != imported.content_hash
    changed = [*numbered(29), {"prompt": "q30", "ground_truth": "31"}]
    assert add(write(tmp_path / "changed.jsonl", changed), seed=3).content_hash != imported.content_hash


@settings(max_examples=25, deadline=None)
@given(letters=st.lists(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), min_size=1, max_size=40), seed=st.integers(0, 3))
def test_every_different_prompt_is_in_exactly_one_split(tmp_path_factory, letters, seed):
    rows = [{"prompt": letter, "ground_truth": letter} for letter in letters]
    file = write(tmp_path_factory.mktemp("rows") / "rows.jsonl", rows)
    imported = add(file, seed=seed)
    found = [row for split in SPLITS if imported.rows[split] for row in stored(imported, split)]
    assert sorted(row["prompt"][0]["content"] for row in found) == sorted(set(letters))
    assert all(letters.index(row["ground_truth"]) == row["row"] - 1 for row in found)
    different = len(set(letters))
    share = max(1, different // 10)
    validation = share if different > share else 0
    test = share if different - validation > share else 0
    assert [imported.rows[split] for split in SPLITS] == [different - validation - test, validation, test]


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1, (1, 0, 0)), (2, (1, 1, 0)), (3, (1, 1, 1)), (40, (32, 4, 4)), (20_000, (18_000, 1_000, 1_000))],
)
def test_rows_go_eighty_ten_ten_and_at_most_a_thousand(tmp_path, count, sizes):
    imported = add(write(tmp_path / "rows.jsonl", numbered(count)))
    assert tuple(imported.rows[split] for split in SPLITS) == sizes
    assert imported.seed == 0
    assert ("It has no test rows, so no model can be scored on it." in imported.notes) == (count < 3)
    assert ("It has no validation rows, so it cannot be trained on." in imported.notes) == (count == 1)
    for split in SPLITS:
        numbers = [row["row"] for row in stored(imported, split)] if imported.rows[split] else []
        assert numbers == sorted(numbers)


def test_repeats_are_left_out_and_told(tmp_path):
    rows = [*numbered(20), {"prompt": " Q1 ", "ground_truth": "1"}, {"prompt": "q2", "ground_truth": "other"}]
    imported = add(write(tmp_path / "rows.jsonl", rows))
    assert sum(imported.rows.values()) == 20
    assert imported.notes == (
        "2 rows left out because an earlier row has the same prompt, 1 of them with another ground truth.",
    )


def test_given_splits_are_kept_as_they_are(tmp_path):
    write(tmp_path / "d/train.jsonl", [*numbered(3), *numbered(1)])
    write(tmp_path / "d/dev.jsonl", numbered(2, 10))
    write(tmp_path / "d/test.jsonl", numbered(1, 20))
    imported = add(tmp_path / "d")
    assert dict(imported.rows) == {"train": 4, "validation": 2, "test": 1}
    assert [row["row"] for row in stored(imported)] == [1, 2, 3, 4]
    assert (imported.seed, imported.notes) == (None, ())


def test_a_split_that_is_not_given_is_missing_unless_it_is_asked_for(tmp_path):
    write(tmp_path / "d/train.jsonl", numbered(20))
    write(tmp_path / "d/test.jsonl", numbered(2, 100))
    assert add(tmp_path / "d").notes == ("It has no validation rows, so it cannot be trained on.",)
    imported = add(tmp_path / "d", aside=["validation"])
    assert dict(imported.rows) == {"train": 18, "validation": 2, "test": 2}
    assert imported.seed == 0
    assert "has test rows of its own" in _asked_twice(tmp_path / "d")


def _asked_twice(path):
    with pytest.raises(IncompatibleData) as refused:
        add(path, aside=["test"])
    return str(refused.value)


def test_test_rows_alone_can_be_scored_and_not_trained_on(tmp_path):
    write(tmp_path / "d/test.jsonl", numbered(2))
    imported = add(tmp_path / "d")
    assert imported.notes == ("It has no train and no validation rows, so it cannot be trained on.",)
    with pytest.raises(IncompatibleData, match="no train rows that others could be set aside from"):
        add(tmp_path / "d", aside=["validation"])


def test_all_splits_have_the_layout_of_the_first(tmp_path):
    write(tmp_path / "d/train.jsonl", [{"prompt": "a", "answer": "1"}])
    write(tmp_path / "d/validation.jsonl", [{"prompt": "b", "solution": "2"}])
    message = refusal(tmp_path / "d")
    assert message.startswith(f"{tmp_path / 'd' / 'validation.jsonl'} has 1 row")
    assert "the column answer is missing" in message


def test_lengths_are_counted_in_characters(tmp_path):
    rows = [{"prompt": "é" * length, "ground_truth": "x" * length} for length in (1, 2, 3, 10)]
    write(tmp_path / "d/train.jsonl", rows)
    write(tmp_path / "d/test.jsonl", numbered(1))
    found = read_manifest(add(tmp_path / "d").content_hash).splits["train"].prompt
    assert (found.shortest, found.median, found.mean, found.longest) == (1, 2, 4.0, 10)


def test_a_changed_or_missing_file_is_refused_and_the_same_data_brings_it_back(tmp_path):
    file = write(tmp_path / "rows.jsonl", numbered(20))
    imported = add(file)
    target = versions_home() / imported.content_hash / "train.jsonl"
    whole = target.read_bytes()
    target.write_bytes(whole.replace(b'"q', b'"r', 1))
    with pytest.raises(Conflict, match=r"train\.jsonl is not as it was when the data was added"):
        stored(imported)
    assert add(file).content_hash == imported.content_hash
    assert target.read_bytes() == whole
    target.unlink()
    with pytest.raises(Conflict, match="Add the same data again"):
        stored(imported)
    add(file)
    assert target.read_bytes() == whole
    assert kept() == [imported.content_hash]


def test_a_record_that_was_edited_is_refused(tmp_path):
    imported = add(write(tmp_path / "rows.jsonl", numbered(20)))
    record = versions_home() / imported.content_hash / "version.json"
    record.write_text(record.read_text().replace('"format": "prompt"', '"format": "messages"'))
    with pytest.raises(Conflict, match=r"version\.json is not as it was"):
        stored(imported)


def test_what_a_killed_import_left_is_removed_and_one_under_way_is_not(tmp_path):
    versions_home().mkdir(parents=True)
    left, going = versions_home() / ".import-1", versions_home() / ".import-2"
    left.mkdir()
    (left / "train.jsonl").write_text("x")
    going.mkdir()
    lock = os.open(going, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        add(write(tmp_path / "rows.jsonl", numbered(3)))
        assert not left.exists()
        assert going.exists()
    finally:
        os.close(lock)


def test_rows_are_readable_by_their_owner_alone(tmp_path):
    imported = add(write(tmp_path / "rows.jsonl", numbered(20)))
    assert versions_home().stat().st_mode & 0o077 == 0
    assert (versions_home() / imported.content_hash / "train.jsonl").stat().st_mode & 0o077 == 0


def test_progress_goes_from_nothing_to_all(tmp_path):
    file = write(tmp_path / "rows.jsonl", numbered(1_200))
    seen = []
    import_data(str(file), ImportSettings(), lambda *report: seen.append(report))
    assert {what for what, _, _ in seen} == {"reading train rows"}
    done = [amount for _, amount, _ in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1][2] == file.stat().st_size
    assert len(done) >= 3


class Split(list):
    features = "{'prompt': Value('string')}"


def test_a_hub_dataset_is_read_at_the_commit_that_its_revision_is(monkeypatch):
    asked = []

    def load_dataset(path, config, revision):
        asked.append((path, config, revision))
        return {"train_sft": Split(numbered(3)), "test_sft": Split(numbered(2, 10))}

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("ratchet.datasets.importing.hub_commit", lambda path, revision: f"commit-of-{revision}")
    from ratchet.datasets.tables import Wanted

    wanted = Wanted("main", "v1", {"train": "train_sft", "test": "test_sft"})
    imported = add("some/dataset", wanted=wanted, aside=["validation"])
    assert asked == [("some/dataset", "main", "commit-of-v1")]
    assert imported.origin == "some/dataset main at commit-of-v1"
    assert dict(imported.rows) == {"train": 2, "validation": 1, "test": 2}


def test_a_hub_dataset_with_splits_of_other_names_says_how_to_name_them(monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: {"train_sft": Split()})
    monkeypatch.setattr("ratchet.datasets.importing.hub_commit", lambda *_: None)
    with pytest.raises(IncompatibleData, match=r"but train_sft\. Say which is which, such as --split train=NAME"):
        add("some/dataset")


def test_a_hub_dataset_of_several_configurations_says_how_to_choose(monkeypatch):
    def load_dataset(*_, **__):
        raise ValueError("Config name is missing.\nPlease pick one among the available configs: ['a', 'b']")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("ratchet.datasets.importing.hub_commit", lambda *_: None)
    with pytest.raises(IncompatibleData, match=r"has several configurations\. Add one with ratchet data add"):
        add("some/dataset")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "shape"),
    matrix(
        ["jsonl", "csv", "parquet"],
        ["500,000 rows", "50 MB"],
        ci=lambda suffix, shape: suffix == "jsonl" or shape == "50 MB",
    ),
)
def test_large_files_are_imported_within_a_gigabyte(tmp_path, monkeypatch, suffix, shape):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import import_cost

    file = tmp_path / f"rows.{suffix}"
    import_cost.write(file, *import_cost.SHAPES[shape])
    _, megabytes = import_cost.measured(file, tmp_path / "home")
    assert megabytes < 1_000
