"""Bundles: what benchmark.yaml may hold, and that nothing in a bundle reaches outside of it."""

import json
import os
import stat
import zipfile

import pytest
import yaml

from ratchet.config import CustomVerifier, MathVerifier, WorkedExample
from ratchet.datasets import bundle as bundles
from ratchet.datasets.bundle import is_bundle, open_bundle
from ratchet.errors import IncompatibleData, InvalidSetting

POISON = "zyzzyva"
USUAL = {"name": "sums", "data": "q.jsonl", "verifier": {"kind": "final_number"}}
ROWS = [{"prompt": f"{POISON} {n}?", "answer": str(n)} for n in range(1, 4)]


@pytest.fixture
def made(tmp_path):
    """Return a function that writes a bundle's folder: benchmark.yaml with changes, and further files."""

    def write(changes=None, files=None, name="b", without=()):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        content = {key: value for key, value in {**USUAL, **(changes or {})}.items() if key not in without}
        (folder / "benchmark.yaml").write_text(yaml.safe_dump(content))
        (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        for path, text in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    return write


def opened(path):
    with open_bundle(path) as found:
        return found


def refusal(path, kind=InvalidSetting):
    with pytest.raises(kind) as refused:
        opened(path)
    assert POISON not in str(refused.value)
    return str(refused.value)


def test_everything_that_a_bundle_may_say(made):
    found = opened(
        made(
            {
                "description": "Sums.",
                "data": "deep/rows.csv",
                "columns": {"prompt": "q", "ground_truth": "a", "completion": "how"},
                "harness": {"system_prompt": "Add.", "worked_examples": [{"user": "1+1", "assistant": "2"}]},
                "verifier": {"kind": "math", "require_boxed": True, "read": "answer_tag"},
                "reward": {"format_bonus": "tags"},
                "max_answer_tokens": 64,
                "score_columns": ["accuracy"],
                "reference_solution": "It is {ground_truth}.",
            },
            {"deep/rows.csv": "q,a,how,difficulty\n1+2,3,so 3,easy\n"},
        )
    )
    assert (found.file.name, found.file.max_answer_tokens, found.file.score_columns) == ("sums", 64, ("accuracy",))
    assert found.harness.system_prompt == "Add."
    assert found.harness.worked_examples == (WorkedExample(user="1+1", assistant="2"),)
    assert found.verifier == MathVerifier(require_boxed=True, read="answer_tag")
    assert found.reward.format_bonus == "tags"
    [prompt] = found.questions.prompts
    assert (prompt.messages[0]["content"], prompt.ground_truth, prompt.demonstration) == ("1+2", "3", "so 3")
    assert found.questions.difficulty == "label"
    assert found.metric is None


def test_the_shortest_bundle_leaves_everything_else_open(made):
    folder = made()
    found = opened(folder)
    assert found.harness.system_prompt is found.harness.worked_examples is found.reward.format_bonus is None
    assert len(found.questions.prompts) == 3
    assert found.questions.origin == str(folder)
    assert opened(folder / "benchmark.yaml") == found


def test_a_metric_of_the_bundle_takes_the_place_of_a_verifier(made):
    files = {"metric.py": "def score(answer, reference):\n    return 1.0\n"}
    found = opened(made({"metric": "metric.py"}, files, without=["verifier"]))
    assert found.verifier == CustomVerifier()
    assert found.metric.read_text() == files["metric.py"]
    with_limit = {"metric": "metric.py", "verifier": {"kind": "custom", "limit_seconds": 3}}
    assert opened(made(with_limit, files)).verifier == CustomVerifier(limit_seconds=3)
    for verifier in ({"kind": "qa"}, {"kind": "custom", "metric": "other"}, {"source": "x"}):
        assert "verifier and metric do not go together" in refusal(
            made({"metric": "metric.py", "verifier": verifier}, files)
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nmae": POISON}, "nmae is no key of it; the keys are name, description, data, columns, harness,"),
        (
            {"harness": {"prompt": POISON}},
            "harness.prompt is no key of it; the keys are system_prompt, worked_examples",
        ),
        ({"max_answer_tokens": 3}, "max_answer_tokens is 3: input should be greater than or equal to 16"),
        ({"max_answer_tokens": POISON}, "max_answer_tokens: input should be a valid integer"),
        ({"harness": {"worked_examples": [{"user": POISON}]}}, "harness.worked_examples.entry 1.assistant is missing"),
        ({"score_columns": []}, "score_columns: "),
        ({"name": ""}, "name: "),
        ({"verifier": {"kind": "judge"}}, "verifier.kind"),
        ({"verifier": {"kind": "math", "limit_seconds": 0}}, "it must be above 0"),
        ({"verifier": {}}, "verifier.kind is missing"),
        ({"reward": {"format_bonus": "shiny"}}, "reward.format_bonus"),
        ({"reference_solution": POISON}, "reference_solution does not hold {ground_truth}"),
        ({"data": "q.txt"}, "data is a file of the kind .txt"),
        ({"columns": {"question": "q"}}, "Columns can be mapped to"),
    ],
)
def test_what_is_wrong_is_said_by_key(made, changes, said):
    assert said in refusal(made(changes, {"q.txt": ""}))


@pytest.mark.parametrize("key", ["name", "data"])
def test_what_is_missing_is_said(made, key):
    assert f"{key} is missing" in refusal(made(without=[key]))


def test_a_bundle_must_say_how_answers_are_checked(made):
    assert "it says nothing of how answers are checked" in refusal(made(without=["verifier"]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not valid YAML"),
        ("- a", "it must be a mapping"),
        ("name: a\nname: b\n", "name is given twice"),
        ("a: &x [1]\nb: *x\n", "it has YAML references"),
        ("x" * ((1 << 20) + 1), "it is longer than 1 MB"),
        ("name: 1\n", "name is 1: input should be a valid string"),
    ],
)
def test_what_is_no_benchmark_file_is_refused(made, text, said):
    folder = made()
    (folder / "benchmark.yaml").write_text(text)
    assert said in refusal(folder)


def test_references_that_stand_for_more_than_memory_holds_are_never_written_out(made):
    folder = made()
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    (folder / "benchmark.yaml").write_text("\n".join(lines))
    assert "it has YAML references" in refusal(folder)


def test_bad_rows_are_named_by_number(made):
    said = refusal(made(files={"q.jsonl": json.dumps(ROWS[0]) + "\n{}\n"}), IncompatibleData)
    assert "row 2: the column prompt is missing" in said


@pytest.mark.parametrize("path", ["../q.jsonl", "/etc/passwd", "a/../../q.jsonl", "..\\q.jsonl"])
@pytest.mark.parametrize("key", ["data", "metric"])
def test_paths_may_not_leave_the_bundle(made, tmp_path, key, path):
    (tmp_path / "q.jsonl").write_text("")
    assert f"{key} is a path out of the bundle" in refusal(
        made({key: path}, without=["verifier"] if key == "metric" else [])
    )


def test_nor_may_links(made, tmp_path):
    (tmp_path / "outside.jsonl").write_text('{"prompt": "q", "answer": "1"}\n')
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/q.jsonl").write_text('{"prompt": "q", "answer": "1"}\n')
    for data, target in (("link.jsonl", tmp_path / "outside.jsonl"), ("folder/q.jsonl", tmp_path / "outside")):
        folder = made({"data": data})
        os.symlink(target, folder / data.split("/")[0])
        assert "data is a link that leads out of the bundle" in refusal(folder)
    folder = made({"data": "inner.jsonl"})
    os.symlink("q.jsonl", folder / "inner.jsonl")
    assert len(opened(folder).questions.prompts) == 3
    os.symlink("loop.jsonl", folder / "loop.jsonl")
    assert refusal(made({"data": "loop.jsonl"}), (InvalidSetting, IncompatibleData))


def test_the_file_itself_may_be_no_link_out_either(made, tmp_path):
    folder = made()
    os.rename(folder / "benchmark.yaml", tmp_path / "elsewhere.yaml")
    os.symlink(tmp_path / "elsewhere.yaml", folder / "benchmark.yaml")
    assert "benchmark.yaml is a link that leads out" in refusal(folder)


def test_files_that_are_not_there_are_named(made, tmp_path):
    assert "has no file absent.jsonl (data)" in refusal(made({"data": "absent.jsonl"}), IncompatibleData)
    assert "There is no file or folder" in refusal(tmp_path / "none", IncompatibleData)
    (tmp_path / "empty").mkdir()
    assert "has no file benchmark.yaml." in refusal(tmp_path / "empty", IncompatibleData)
    (tmp_path / "some.txt").write_text("")
    assert "is no bundle" in refusal(tmp_path / "some.txt", IncompatibleData)
    os.mkfifo(made() / "fifo.jsonl")
    assert "has no file fifo.jsonl" in refusal(made({"data": "fifo.jsonl"}), IncompatibleData)


# --- archives --------------------------------------------------------------------------------------------------------


def packed(folder, archive, prefix=""):
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for path in sorted(folder.rglob("*")):
            opened.write(path, prefix + str(path.relative_to(folder)))
    return archive


@pytest.mark.parametrize("prefix", ["", "my bundle/"])
def test_an_archive_is_the_folder_that_was_packed(made, tmp_path, prefix):
    folder = made({"data": "deep/q.jsonl"}, {"deep/q.jsonl": json.dumps(ROWS[0])})
    archive = packed(folder, tmp_path / "b.zip", prefix)
    with zipfile.ZipFile(archive, "a") as more:
        more.writestr("__MACOSX/._q", "")
    with open_bundle(archive) as found:
        inside = found.questions
    assert inside.prompts == opened(folder).questions.prompts
    assert inside.origin == str(archive)


def test_what_was_unpacked_is_removed(made, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    files = {"metric.py": "def score(a, b): return 1"}
    with open_bundle(packed(made({"metric": "metric.py"}, files, without=["verifier"]), tmp_path / "b.zip")) as found:
        assert found.metric.is_file()
        assert stat.S_IMODE(next((tmp_path / "temporary").iterdir()).stat().st_mode) == 0o700
    assert list((tmp_path / "temporary").iterdir()) == []


def entry(name, mode=0o100644):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize(
    ("info", "said"),
    [
        (entry("../out.txt"), "Entry 1 of .* has a path that leads out"),
        (entry("/abs.txt"), "Entry 1 of .* has a path that leads out"),
        (entry("a/../../out.txt"), "Entry 1 of .* has a path that leads out"),
        (entry("..\\out.txt"), "Entry 1 of .* has a path that leads out"),
        (entry("link", 0o120777), "Entry 1 of .* is a link or a device"),
        (entry("device", 0o060600), "Entry 1 of .* is a link or a device"),
    ],
)
def test_archives_that_reach_outside_are_refused(tmp_path, info, said):
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(IncompatibleData, match=said):
        opened(tmp_path / "b.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["b.zip"]


def test_an_archive_may_not_unpack_to_more_than_its_limit_whatever_it_claims(made, tmp_path, monkeypatch):
    folder = made(files={"zeros.bin": "\0" * 200_000, "more.bin": "\0" * 100_000})
    archive = packed(folder, tmp_path / "b.zip")
    assert archive.stat().st_size < 2_000
    total = sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(bundles, "MOST_UNPACKED_BYTES", total - 1)
    with pytest.raises(IncompatibleData, match="unpacks to more than 0 MB"):
        opened(archive)
    monkeypatch.setattr(bundles, "MOST_UNPACKED_BYTES", total)
    with open_bundle(archive):
        pass
    monkeypatch.setattr(bundles, "MOST_FILES", 2)
    with pytest.raises(IncompatibleData, match="holds 4 files; a bundle has 2 at most"):
        opened(archive)


def test_damaged_archives_are_told(made, tmp_path):
    archive = packed(made(), tmp_path / "b.zip")
    whole = archive.read_bytes()
    for content in (b"", whole[:50], whole[: len(whole) // 2], b"PK" + whole[40:]):
        archive.write_bytes(content)
        assert "cannot be unpacked" in refusal(archive, IncompatibleData)
    spoilt = bytearray(whole)
    spoilt[80:120] = bytes(40)
    archive.write_bytes(bytes(spoilt))
    assert "cannot be unpacked" in refusal(archive, IncompatibleData)


def test_an_archive_without_a_benchmark_file_or_with_two_files_of_one_name_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("a/b/benchmark.yaml", "")
    assert "has no benchmark.yaml at its top" in refusal(tmp_path / "b.zip", IncompatibleData)
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("a", "")
        archive.writestr("a/b", "")
    assert "holds two files of one name" in refusal(tmp_path / "c.zip", IncompatibleData)


def test_what_is_meant_as_a_bundle(made, tmp_path):
    folder = made()
    assert is_bundle(folder)
    assert is_bundle(folder / "benchmark.yaml")
    assert is_bundle(tmp_path / "absent.ZIP")
    assert not is_bundle(tmp_path)
    assert not is_bundle(tmp_path / "mine@2")
