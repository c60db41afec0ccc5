"""Reading rows: layouts, line endings, and every kind of bad row named by number and never quoted."""

import json
import sys
from types import SimpleNamespace

import pytest

from ratchet.config import BoxedData, DeepMathData, Gsm8kData
from ratchet.datasets import load
from ratchet.errors import IncompatibleData

SECRET = "xyzzy"


def row(number, **columns):
    return {"prompt": f"What is {number}?", "ground_truth": str(number), **columns}


def write(path, rows):
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def boxed(path, **settings):
    return load(BoxedData(path=str(path), **settings), validation_prompts=128, format_kind="boxed")


def everything(dataset):
    return {prompt.id: prompt for prompt in (*dataset.train, *dataset.validation)}


def refusal(data):
    with pytest.raises(IncompatibleData) as refused:
        load(data, validation_prompts=8, format_kind="off")
    assert SECRET not in str(refused.value)
    return str(refused.value)


def test_bom_crlf_blank_lines_and_a_missing_last_newline_are_harmless(tmp_path):
    lines = [json.dumps(row(number)).encode() for number in (1, 2, 3)]
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + lines[0] + b"\r\n\r\n  \n" + lines[1] + b"\r\n" + lines[2])
    assert {number: prompt.ground_truth for number, prompt in everything(boxed(file)).items()} == {
        1: "1",
        2: "2",
        3: "3",
    }


def test_only_a_line_feed_ends_a_row(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a\u2028b\x85c", "ground_truth": "1"}\n{"prompt": "d", "ground_truth": "2"}\n')
    assert everything(boxed(file))[1].messages[0]["content"] == "a\u2028b\x85c"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": "xyzzy", ', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'["xyzzy"]', "not a JSON object"),
        (b'"xyzzy"', "not a JSON object"),
        (b'{"prompt": "xyzzy\xff", "ground_truth": "1"}', "not valid UTF-8"),
        (b'{"ground_truth": "xyzzy"}', "the column prompt is missing"),
        (b'{"prompt": null, "ground_truth": "xyzzy"}', "the column prompt is missing"),
        (b'{"prompt": " \\n", "ground_truth": "xyzzy"}', "the column prompt is empty"),
        (b'{"prompt": 7, "ground_truth": "xyzzy"}', "the column prompt is neither text nor a list of messages"),
        (b'{"prompt": "xyzzy"}', "the column ground_truth is missing"),
        (b'{"prompt": "xyzzy", "ground_truth": ""}', "the column ground_truth is empty"),
        (
            b'{"prompt": "xyzzy", "ground_truth": ["xyzzy"]}',
            "the column ground_truth is neither text, a number nor an object",
        ),
        (b'{"prompt": "xyzzy", "ground_truth": {}}', "the column ground_truth is neither text, a number nor an object"),
        (
            b'{"prompt": "xyzzy", "ground_truth": true}',
            "the column ground_truth is neither text, a number nor an object",
        ),
        (b'{"prompt": "xyzzy", "ground_truth": NaN}', "the column ground_truth is not a finite number"),
        (b'{"prompt": "xyzzy", "ground_truth": "%s"}' % (b"1" * 32_001), "longer than 32,000 characters"),
        (b'{"prompt": "xyzzy\\ud800", "ground_truth": "1"}', "the column prompt holds half a Unicode character"),
        (b'{"prompt": "xyzzy", "ground_truth": "1", "image": "xyzzy.png"}', "it holds an image"),
    ],
)
def test_a_bad_row_is_named_by_file_number_and_reason(tmp_path, line, reason):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(json.dumps(row(1)).encode() + b"\n\n" + line + b"\n" + json.dumps(row(3)).encode())
    message = refusal(BoxedData(path=str(file)))
    assert message.startswith(f"{file} has 1 row that cannot be used: row 2: ")
    assert reason in message


@pytest.mark.parametrize("truth", [{"name": "é", "arguments": {}}, [{"a": 1}, {"b": [2]}]])
def test_an_object_or_objects_are_a_ground_truth_as_json(tmp_path, truth):
    file = write(tmp_path / "rows.jsonl", [row(1), {"prompt": "q", "ground_truth": truth}, row(3)])
    written = everything(boxed(file))[2].ground_truth
    assert json.loads(written) == truth
    assert "\\u" not in written


def user(content=SECRET):
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "does not end with a user message"),
        ([user(), {"role": "assistant", "content": SECRET}], "does not end with a user message"),
        ([SECRET], "a message is not an object with role and content"),
        ([{"role": "tool", "content": SECRET}, user()], "a role other than system, user and assistant"),
        ([{"role": ["user"], "content": SECRET}], "a role other than system, user and assistant"),
        ([{"content": SECRET}], "a role other than"),
        ([user(None)], "content that is not text"),
        ([user([{"type": "text", "text": SECRET}])], "content that is not text"),
        ([user([{"type": "image_url", "image_url": SECRET}])], "a message holds an image"),
        ([user("  ")], "a message is empty"),
        ([user(), {"role": "system", "content": SECRET}, user()], "a system message is not the first message"),
    ],
)
def test_messages_that_are_no_text_conversation_are_refused(tmp_path, messages, reason):
    file = write(tmp_path / "rows.jsonl", [{"prompt": messages, "solution": "1"}])
    message = refusal(DeepMathData(path=str(file)))
    assert "row 1: " in message
    assert reason in message


def test_messages_keep_role_and_content_and_lose_an_empty_system_message(tmp_path):
    turns = [user("a"), {"role": "assistant", "content": "b"}, {**user("c"), "name": "x"}]
    file = write(
        tmp_path / "rows.jsonl",
        [
            {"prompt": [{"role": "system", "content": ""}, *turns], "solution": "$1$"},
            {"prompt": [{"role": "system", "content": "s"}, user("d")], "solution": 2},
        ],
    )
    prompts = everything(load(DeepMathData(path=str(file)), validation_prompts=1, format_kind="off"))
    assert prompts[1].messages == (user("a"), {"role": "assistant", "content": "b"}, user("c"))
    assert prompts[2].messages == ({"role": "system", "content": "s"}, user("d"))
    assert (prompts[1].ground_truth, prompts[2].ground_truth) == ("$1$", "2")


def test_numbers_are_ground_truths_and_known_extra_columns_are_kept(tmp_path):
    rows = [
        row(1, ground_truth=7, id="a", difficulty=3, other=1, tests=None),
        row(2, ground_truth=0.5),
        row(3, ground_truth=" 9 "),
    ]
    prompts = everything(boxed(write(tmp_path / "rows.jsonl", rows)))
    assert [prompts[number].ground_truth for number in (1, 2, 3)] == ["7", "0.5", "9"]
    assert prompts[1].extras == {"id": "a", "difficulty": 3}


def test_twenty_bad_rows_are_named_and_the_others_counted(tmp_path):
    rows = [{"prompt": SECRET}] * 15 + [{"ground_truth": SECRET}] * 15
    message = refusal(BoxedData(path=str(write(tmp_path / "rows.jsonl", rows))))
    first, second = ", ".join(map(str, range(1, 16))), "16, 17, 18, 19, 20"
    assert "has 30 rows that cannot be used" in message
    assert f"rows {first}: the column ground_truth is missing; rows {second}: the column prompt is missing" in message
    assert "; and 10 more. Correct or remove them." in message


@pytest.mark.parametrize("content", [b"", b"\n\r\n  \n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(tmp_path, content):
    (tmp_path / "rows.jsonl").write_bytes(content)
    assert refusal(BoxedData(path=str(tmp_path / "rows.jsonl"))).endswith("rows.jsonl holds no rows.")


@pytest.mark.parametrize("name", ["validation", "valid", "val", "dev"])
def test_a_folder_gives_its_own_validation_rows_and_its_test_rows_are_never_read(tmp_path, name):
    write(tmp_path / "train.jsonl", [row(number) for number in range(1, 6)])
    write(tmp_path / f"{name}.jsonl", [row(number) for number in (11, 12)])
    (tmp_path / "test.jsonl").write_text("not rows at all")
    dataset = boxed(tmp_path)
    assert [prompt.ground_truth for prompt in dataset.validation] == ["11", "12"]
    assert [prompt.id for prompt in dataset.train] == [1, 2, 3, 4, 5]


def test_a_bad_validation_row_names_its_own_file(tmp_path):
    write(tmp_path / "train.jsonl", [row(1), row(2)])
    file = write(tmp_path / "val.jsonl", [row(3), {"prompt": SECRET}])
    assert refusal(BoxedData(path=str(tmp_path))).startswith(f"{file} has 1 row that cannot be used: row 2")


def test_a_folder_without_train_rows_is_refused(tmp_path):
    write(tmp_path / "test.jsonl", [row(1)])
    assert "holds no train.jsonl" in refusal(BoxedData(path=str(tmp_path)))


@pytest.mark.parametrize(
    "path", ["./missing", "../missing", "~/missing-folder", "/missing", "missing.jsonl", "a/b.json"]
)
def test_a_missing_path_is_said_to_be_missing_and_no_hub_is_asked(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert refusal(BoxedData(path=path)) == f"There is no file or folder {path}. Correct the path of the dataset."


def test_a_path_that_is_no_hub_id_either_is_refused():
    assert "neither an existing file or folder nor a hub id" in refusal(BoxedData(path="a/b/c"))


def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise PermissionError(SECRET)

    file = write(tmp_path / "rows.jsonl", [row(1)])
    monkeypatch.setattr("pathlib.Path.open", fail)
    assert refusal(BoxedData(path=str(file))) == f"{file} cannot be read (PermissionError)."


class Split(list):
    features = "{'prompt': Value('string')}"


def hub(monkeypatch, **splits):
    """Put a stand-in for the Hugging Face library in place; returns what it was asked for."""
    asked = []

    def load_dataset(path, config, revision):
        asked.append((path, config))
        return {name: Split(rows) for name, rows in splits.items()}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_a_hub_dataset_gives_train_and_validation_and_never_test(monkeypatch):
    asked = hub(monkeypatch, train=[row(1), row(2)], validation=[row(3)], test=[{"prompt": SECRET}])
    dataset = boxed("some/dataset")
    assert asked == [("some/dataset", None)]
    assert [prompt.ground_truth for prompt in (*dataset.train, *dataset.validation)] == ["1", "2", "3"]


def test_gsm8k_on_the_hub_is_asked_for_its_main_configuration(monkeypatch):
    asked = hub(monkeypatch, train=[{"question": f"q{n}", "answer": f"#### {n}"} for n in range(3)])
    load(Gsm8kData(), validation_prompts=1, format_kind="tags")
    assert asked == [("openai/gsm8k", "main")]


def test_bad_hub_rows_are_named_by_split(monkeypatch):
    hub(monkeypatch, train=[row(1), {"prompt": SECRET, "ground_truth": None}])
    assert refusal(BoxedData(path="some/dataset")).startswith(
        "some/dataset (train) has 1 row that cannot be used: row 2"
    )


def test_a_hub_dataset_without_train_split_is_refused(monkeypatch):
    hub(monkeypatch, test=[row(1)])
    assert "has no split named train" in refusal(BoxedData(path="some/dataset"))


def test_a_hub_dataset_of_images_is_refused_before_a_row_is_read(monkeypatch):
    hub(monkeypatch, train=[])
    monkeypatch.setattr(Split, "features", "{'picture': List(Image(mode=None, decode=True))}")
    assert "holds images, sound or video" in refusal(BoxedData(path="some/dataset"))


def test_an_unreachable_hub_says_what_to_do(monkeypatch):
    def load_dataset(*_, **__):
        raise ConnectionError(SECRET)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    message = refusal(BoxedData(path="some/dataset"))
    assert "could not be loaded from the Hugging Face hub (ConnectionError)" in message
    assert "give a local folder that holds train.jsonl" in message
