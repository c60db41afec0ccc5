"""CSV, TSV and Parquet read row by row: quoting, encodings, wrong shapes, each named by row and never quoted."""

import json
import os
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.datasets import readers
from ratchet.datasets.readers import BadRow
from ratchet.datasets.rows import converted
from ratchet.datasets.tables import Wanted, open_tables
from ratchet.errors import IncompatibleData, InvalidSetting


def rows(path, **wanted):
    return list(converted(open_tables(str(path), Wanted(**wanted)).train, lambda number, row: (number, dict(row))))


def written(tmp_path, content, name="rows.csv"):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def refusal(path, **wanted):
    with pytest.raises(IncompatibleData) as refused:
        rows(path, **wanted)
    assert "xyzzy" not in str(refused.value)
    return str(refused.value)


def test_quoted_line_ends_commas_and_quotes_are_text(tmp_path):
    file = written(tmp_path, 'prompt,answer\r\n"a\r\nb, ""c""",1\r\n\r\n  ,\r\nd,"2\n"\r\n')
    assert rows(file) == [
        (1, {"prompt": 'a\r\nb, "c"', "answer": "1"}),
        (2, {"prompt": "d", "answer": "2\n"}),
    ]


def test_a_byte_order_mark_and_columns_without_name_are_left_out(tmp_path):
    file = written(tmp_path, "\ufeff,prompt , answer\n0,a,007\n")
    assert rows(file) == [(1, {"prompt": "a", "answer": "007"})]


def test_an_empty_field_is_a_missing_one(tmp_path):
    assert rows(written(tmp_path, 'prompt,answer,id\na,1,\nb,"",z\n')) == [
        (1, {"prompt": "a", "answer": "1"}),
        (2, {"prompt": "b", "id": "z"}),
    ]


def test_messages_in_a_field_are_read_and_other_lists_are_text(tmp_path):
    talk = [{"role": "user", "content": 'say "hi"'}]
    field = json.dumps(talk).replace('"', '""')
    file = written(tmp_path, f'prompt,answer\n"{field}",1\n"[1, 2] has which ""role""?",2\n')
    assert [row["prompt"] for _, row in rows(file)] == [talk, '[1, 2] has which "role"?']


def test_tabs_separate_the_columns_of_a_tsv_file(tmp_path):
    assert rows(written(tmp_path, "prompt\tanswer\na, b\t1\n", "rows.tsv")) == [(1, {"prompt": "a, b", "answer": "1"})]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"xyzzy\n", "row 2: has 1 fields where the first row names 2 columns"),
        (b"xyzzy,1,2\n", "row 2: has 3 fields where the first row names 2 columns"),
        (b"xyzzy\xff,1\n", "row 2: not valid UTF-8"),
        (b'"xyzzy"z,1\n', "row 2: not valid CSV"),
        (b'"xyzzy,1\n', "row 2: a quoted text is never closed"),
    ],
)
def test_a_bad_row_of_a_csv_file_is_named(tmp_path, line, reason):
    message = refusal(written(tmp_path, b"prompt,answer\na,1\n" + line))
    assert reason in message
    assert message.startswith(f"{tmp_path / 'rows.csv'} has 1 row that cannot be used")


def test_rows_after_a_bad_one_keep_their_numbers(tmp_path):
    assert "row 2: not valid CSV" in refusal(written(tmp_path, 'prompt,answer\na,1\n"b"c,2\nd,3\ne\n'))
    assert "row 4: has 1 fields" in refusal(written(tmp_path, 'prompt,answer\na,1\n"b"c,2\nd,3\ne\n'))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no rows"),
        (b"\r\n\r\n", "holds no rows"),
        (b"prompt,answer\n", "holds no rows"),
        (b"prompt,prompt\nxyzzy,1\n", "names a column twice"),
        (b"xyzzy\xff,answer\na,1\n", "not valid UTF-8"),
    ],
)
def test_a_csv_file_without_rows_or_with_a_wrong_first_row_is_refused(tmp_path, content, reason):
    assert reason in refusal(written(tmp_path, content))


def test_a_json_list_is_refused_with_what_to_do(tmp_path):
    file = written(tmp_path, '[\n  {"prompt": "xyzzy"}\n]\n', "rows.json")
    assert "holds one JSON list. Write one JSON object a line" in refusal(file)


def test_a_row_that_is_too_long_is_named_and_the_next_ones_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MOST_ROW_BYTES", 1 << 20)
    lines = [json.dumps({"prompt": text}) for text in ("a", "x" * (5 << 19), "b")]
    table = readers.table([written(tmp_path, "\n".join(lines), "rows.jsonl")])
    found = list(table)
    assert [type(one) for one in found] == [bytes, BadRow, bytes]
    assert str(found[1]) == "longer than 1 MB"
    assert table.position == table.total


def test_the_position_ends_at_the_total(tmp_path):
    for file in (
        written(tmp_path, '{"a": 1}\n\n{"a": 2}', "rows.jsonl"),
        written(tmp_path, "a,b\n1,2\n", "rows.csv"),
        parquet(tmp_path, {"a": [1, 2, 3]}),
    ):
        table = readers.table([file])
        assert len(list(table)) > 0
        assert table.position == table.total > 0


def parquet(tmp_path, columns, name="rows.parquet", **options):
    file = tmp_path / name
    pq.write_table(pa.table(columns), file, **options)
    return file


def test_parquet_rows_with_messages_and_missing_values(tmp_path):
    talk = [{"role": "user", "content": "q"}]
    file = parquet(tmp_path, {"prompt": [talk, talk], "answer": ["1", None]}, row_group_size=1)
    assert rows(file) == [(1, {"prompt": talk, "answer": "1"}), (2, {"prompt": talk, "answer": None})]


def test_text_of_a_parquet_file_that_is_not_utf8_is_named(tmp_path):
    raw = pa.array([b"a", b"xyzzy\xff", b"c"], pa.binary())
    file = parquet(tmp_path, {"prompt": pa.Array.from_buffers(pa.string(), 3, raw.buffers())})
    assert "row 2: not valid UTF-8" in refusal(file)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"xyzzy" * 100])
def test_what_is_no_parquet_file_is_refused(tmp_path, content):
    assert "is not a Parquet file that can be read" in refusal(written(tmp_path, content, "rows.parquet"))


def test_a_parquet_file_of_images_is_refused_before_a_row_is_read(tmp_path):
    features = {"info": {"features": {"picture": {"_type": "Image"}}}}
    table = pa.table({"picture": [b"xyzzy"]}).replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert "holds images, sound or video" in refusal(tmp_path / "rows.parquet")


def test_a_folder_in_the_layout_of_the_hub_gives_its_parts_in_order(tmp_path):
    (tmp_path / "data").mkdir()
    for part in (1, 0):
        parquet(tmp_path / "data", {"a": [part * 2, part * 2 + 1]}, f"train-0000{part}-of-00002.parquet")
    written(tmp_path / "data", "a\n9\n", "test.csv")
    tables = open_tables(str(tmp_path))
    assert tables.validation is None
    assert [row["a"] for row in tables.train] == [0, 1, 2, 3]
    assert [row["a"] for row in tables.test] == ["9"]


def test_a_configuration_and_names_of_splits_choose_files_of_a_folder(tmp_path):
    (tmp_path / "hard").mkdir()
    written(tmp_path / "hard", '{"a": 1}', "train_sft.jsonl")
    written(tmp_path, '{"a": 2}', "train.jsonl")
    assert rows(tmp_path, config="hard", splits={"train": "train_sft"}) == [(1, {"a": 1})]
    assert rows(tmp_path) == [(1, {"a": 2})]
    assert "has no split named dev, which was asked for as test" in refusal(tmp_path, splits={"test": "dev"})


def test_two_files_for_one_split_are_refused(tmp_path):
    written(tmp_path, '{"a": 1}', "train.jsonl")
    written(tmp_path, "a\n1\n", "train.csv")
    assert "holds train.csv and train.jsonl: leave the one that is meant" in refusal(tmp_path)


def test_a_revision_or_splits_of_a_file_are_refused(tmp_path):
    file = written(tmp_path, "a\n1\n")
    with pytest.raises(InvalidSetting, match="is no hub dataset"):
        open_tables(str(file), Wanted(revision="main"))
    with pytest.raises(InvalidSetting, match="is a file"):
        open_tables(str(file), Wanted(splits={"train": "x"}))


def test_a_device_is_refused_before_it_is_read_and_a_pipe_is_read(tmp_path):
    with pytest.raises(IncompatibleData, match=r"^/dev/zero is neither a file nor a folder, but a device or a socket"):
        open_tables("/dev/zero")
    pipe = tmp_path / "rows"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=('{"a": 1}\n',))
    writer.start()
    assert rows(pipe) == [(1, {"a": 1})]
    writer.join()
