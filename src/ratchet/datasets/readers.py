"""How JSONL, CSV, TSV and Parquet files are read: one row at a time, with what is wrong in a row told in its place.

Memory holds a row, or a few hundred of a Parquet file, never the file. Nothing here knows which columns there are.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ratchet.errors import IncompatibleData

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
# No text to train on is this long; a file without line ends must not be read into memory whole.
MOST_ROW_BYTES = 64 << 20

_BOM = b"\xef\xbb\xbf"
_PARQUET_ROWS = 256  # read at a time


class BadRow(Exception):
    """A row cannot be used. The text completes "row 3: ..." and never quotes the row."""


# A line of JSON, the columns of a row, or what is wrong with it.
Raw = bytes | Mapping[str, Any] | BadRow


class Table:
    """The rows of one split, to be gone through once.

    ``name`` is what messages call it. ``position`` of ``total`` says how much has been read, in bytes or in rows.
    """

    def __init__(self, name: str, read: "Callable[[Table], Iterator[Raw]]", total: int) -> None:
        self.name = name
        self.total = total
        self.position = 0
        self._read = read

    def __iter__(self) -> Iterator[Raw]:
        return self._read(self)


def table(files: list[Path]) -> Table:
    """The rows of a file, or of the files that a split is cut into; the suffix says how they are read."""
    suffix = files[0].suffix.lower()
    name = str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"

    def read(table: Table) -> Iterator[Raw]:
        for file in files:
            try:
                yield from _READERS.get(suffix, _lines)(file, table)
            except OSError as error:
                raise IncompatibleData(f"{file} cannot be read ({type(error).__name__}).") from error

    if suffix == ".parquet":
        return Table(name, read, total=sum(_parquet_rows(file) for file in files))
    return Table(name, read, total=sum(file.stat().st_size for file in files))


def _lines(file: Path, table: Table) -> Iterator[Raw]:
    """Yield the lines that are not blank. Only a line feed ends a line: JSON text may hold other separators."""
    with file.open("rb") as lines:
        is_first = True
        while line := lines.readline(MOST_ROW_BYTES + 1):
            table.position += len(line)
            stripped = (line.removeprefix(_BOM) if is_first else line).strip()
            if is_first and stripped == b"[":
                raise IncompatibleData(
                    f"{file} holds one JSON list. Write one JSON object a line, for example with jq -c '.[]'."
                )
            is_first = False
            if len(line) > MOST_ROW_BYTES:
                while line and not line.endswith(b"\n"):
                    line = lines.readline(MOST_ROW_BYTES)
                    table.position += len(line)
                yield BadRow(f"longer than {MOST_ROW_BYTES >> 20} MB")
            elif stripped:
                yield stripped


def _separated(file: Path, table: Table, separator: str) -> Iterator[Raw]:
    """Yield the rows of a CSV or TSV file, whose first row names the columns; an empty field is a missing one."""
    csv.field_size_limit(MOST_ROW_BYTES)
    start = table.position
    with file.open("rb") as raw:
        # Wrong bytes are kept as half surrogates, which no UTF-8 decodes to, so that the row they are in can be named.
        text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")
        rows = csv.reader(text, delimiter=separator, strict=True)
        names: list[str] | None = None
        while True:
            try:
                fields = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                if names is None:
                    raise IncompatibleData(f"{file} has a first row that cannot be read ({error}).") from error
                yield BadRow(_csv_fault(error))
                continue
            finally:
                table.position = start + raw.tell()
            if not any(field.strip() for field in fields):
                continue
            if names is None:
                names = _column_names(file, fields)
            else:
                yield _csv_row(names, fields)


def _column_names(file: Path, fields: list[str]) -> list[str]:
    names = [field.strip() for field in fields]
    if any(_is_undecodable(name) for name in names):
        raise IncompatibleData(f"{file} has a first row that is not valid UTF-8. Save the file as UTF-8.")
    if len({name for name in names if name}) < sum(1 for name in names if name):
        raise IncompatibleData(f"{file} names a column twice in its first row. Rename or remove one of them.")
    return names


def _csv_row(names: list[str], fields: list[str]) -> Raw:
    if len(fields) != len(names):
        return BadRow(f"has {len(fields)} fields where the first row names {len(names)} columns")
    if any(_is_undecodable(field) for field in fields):
        return BadRow("not valid UTF-8")
    return {name: _with_messages(field) for name, field in zip(names, fields, strict=True) if name and field != ""}


def _with_messages(field: str) -> Any:
    """A field's text, or the messages that it holds as JSON."""
    if not field.lstrip().startswith("[") or '"role"' not in field:
        return field
    try:
        value = json.loads(field)
    except (ValueError, RecursionError):
        return field
    return value if isinstance(value, list) and all(isinstance(one, dict) and "role" in one for one in value) else field


def _is_undecodable(text: str) -> bool:
    return not text.isascii() and any("\udc80" <= character <= "\udcff" for character in text)


def _csv_fault(error: csv.Error) -> str:
    if "unexpected end" in str(error):
        return "a quoted text is never closed"
    if "field limit" in str(error):
        return f"a field is longer than {MOST_ROW_BYTES >> 20} MB; perhaps a quoted text is never closed"
    return "not valid CSV (a quotation mark inside a quoted text must be doubled)"


def _parquet(file: Path, table: Table) -> Iterator[Raw]:
    import pyarrow

    try:
        with _parquet_file(file) as parquet:
            for batch in parquet.iter_batches(batch_size=_PARQUET_ROWS, use_threads=False):
                for row in _parquet_batch(batch):
                    table.position += 1
                    yield row
    except pyarrow.ArrowException as error:
        raise _unreadable_parquet(file, error) from error


def _parquet_batch(batch: Any) -> list[Raw]:
    try:
        rows: list[Raw] = batch.to_pylist()
    except UnicodeDecodeError:
        rows = []
        for place in range(batch.num_rows):
            try:
                rows += batch.slice(place, 1).to_pylist()
            except UnicodeDecodeError:
                rows.append(BadRow("not valid UTF-8"))
    return rows


def _parquet_rows(file: Path) -> int:
    import pyarrow

    try:
        with _parquet_file(file) as parquet:
            metadata = parquet.schema_arrow.metadata or {}
            if any(f'"_type": "{kind}"'.encode() in metadata.get(b"huggingface", b"") for kind in _NO_TEXT):
                raise IncompatibleData(f"{file} holds images, sound or video, and only text can be trained on.")
            return int(parquet.metadata.num_rows)
    except pyarrow.ArrowException as error:
        raise _unreadable_parquet(file, error) from error
    except OSError as error:
        raise IncompatibleData(f"{file} cannot be read ({type(error).__name__}).") from error


_NO_TEXT = ("Image", "Audio", "Video")


def _parquet_file(file: Path) -> Any:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(file)


def _unreadable_parquet(file: Path, error: Exception) -> IncompatibleData:
    return IncompatibleData(f"{file} is not a Parquet file that can be read ({type(error).__name__}): it is damaged.")


_READERS: dict[str, Callable[[Path, Table], Iterator[Raw]]] = {
    ".csv": lambda file, table: _separated(file, table, ","),
    ".tsv": lambda file, table: _separated(file, table, "\t"),
    ".parquet": _parquet,
}
