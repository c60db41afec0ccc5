"""Data of the user's becomes a version: read row by row, checked, split, written to a folder of its own.

Memory holds a few numbers for each row, never the rows: they go to disk as they are read, and those that become a
validation or test split are moved in a second pass. The database is not known here.
"""

import hashlib
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median_low
from typing import Any, BinaryIO

from ratchet.datasets.canonical import RowLayout, canonical, layout_of, line_of
from ratchet.datasets.content_folders import staging
from ratchet.datasets.readers import Table
from ratchet.datasets.rows import converted
from ratchet.datasets.splits import Repeats, set_aside
from ratchet.datasets.tables import SPLITS, Tables, Wanted, hub_commit, is_hub_id, open_tables
from ratchet.datasets.version_folders import Lengths, Manifest, SplitRecord, keep, split_file, usability, versions_home
from ratchet.errors import IncompatibleData

# (what is done, how much of it, of how much): bytes or rows.
OnProgress = Callable[[str, int, int], None]

_ROWS_A_REPORT = 500
_ALL_ROWS = ".rows.jsonl"


@dataclass(frozen=True)
class ImportSettings:
    """What to take of a source, and how.

    ``columns`` maps our columns to the source's, ``wanted`` says what to take of a hub dataset or folder, ``aside``
    names the splits to draw from train where the source has others but not these.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    wanted: Wanted = field(default_factory=Wanted)
    aside: Sequence[str] = ()
    seed: int = 0


@dataclass(frozen=True)
class Imported:
    """A version on disk. ``seed`` is None where nothing was drawn by it; ``notes`` are sentences for the user."""

    content_hash: str
    layout: RowLayout
    origin: str
    rows: Mapping[str, int]
    seed: int | None
    notes: tuple[str, ...]


def import_data(
    source: str, settings: ImportSettings, on_progress: OnProgress = lambda what, done, total: None
) -> Imported:
    """Read a file, a folder or a hub dataset into the folder of a version. The same content gives the same version.

    A source that has one split, train, is de-duplicated and dealt 80 / 10 / 10 by the seed, validation and test at most
    1,000 rows each. Splits that are given are kept as they are.

    Raises:
        IncompatibleData: there is no such data, or it has rows that cannot be used, named by number.
        InvalidSetting: what was asked for does not go with the source.
        DiskFull: there is no room; nothing is left behind then.
    """
    settings, origin = _pinned(source, settings)
    tables = open_tables(source, settings.wanted)
    aside = _to_set_aside(tables, settings.aside)
    notes: list[str] = []
    with staging(versions_home()) as folder:
        reader = _Reader(settings.columns, on_progress)
        written: dict[str, _Split] = {}
        for split, table in zip(SPLITS, tables, strict=True):
            if table is not None:
                is_dealt = split == "train" and bool(aside)
                file = folder / _ALL_ROWS if is_dealt else split_file(folder, split)
                repeats = Repeats() if is_dealt else None
                rows = reader.read(split, table, file, repeats)
                written |= _dealt(folder, rows, settings.seed, aside) if is_dealt else {split: rows}
                notes += repeats.notes() if repeats else []
        if reader.layout is None:
            raise ValueError("no table was read")
        manifest = Manifest(
            format=reader.layout.format,
            splits={split: written[split].record() for split in SPLITS if split in written},
        )
        content_hash = keep(folder, manifest)
    counts = {split: manifest.splits[split].rows if split in manifest.splits else 0 for split in SPLITS}
    seed = settings.seed if aside else None
    return Imported(content_hash, reader.layout, origin, counts, seed, (*notes, *usability(counts)))


def _pinned(source: str, settings: ImportSettings) -> tuple[ImportSettings, str]:
    """The settings with the commit that a hub dataset is read at, and a text that says what was read."""
    wanted = settings.wanted
    if not is_hub_id(source):
        return settings, os.path.abspath(os.path.expanduser(source))
    commit = hub_commit(source, wanted.revision) or wanted.revision
    parts = [source, *([wanted.config] if wanted.config else []), *([f"at {commit}"] if commit else [])]
    pinned = wanted._replace(revision=commit)
    return ImportSettings(settings.columns, pinned, settings.aside, settings.seed), " ".join(parts)


def _to_set_aside(tables: Tables, asked: Sequence[str]) -> list[str]:
    """The splits that are drawn from train."""
    given = [split for split, table in zip(SPLITS, tables, strict=True) if table is not None]
    for split in asked:
        if split in given:
            raise IncompatibleData(f"The data has {split} rows of its own, so none can be set aside from train for it.")
    if asked and "train" not in given:
        raise IncompatibleData("The data has no train rows that others could be set aside from.")
    return ["validation", "test"] if given == ["train"] else [split for split in SPLITS if split in asked]


@dataclass
class _Split:
    """A split's file as it was written, and how long its texts are."""

    file: Path
    sha256: str = ""
    prompt_lengths: "array[int]" = field(default_factory=lambda: array("I"))
    truth_lengths: "array[int]" = field(default_factory=lambda: array("I"))

    def record(self) -> SplitRecord:
        return SplitRecord(
            rows=len(self.prompt_lengths),
            sha256=self.sha256,
            prompt=_lengths(self.prompt_lengths),
            ground_truth=_lengths(self.truth_lengths),
        )


class _Reader:
    """Turns tables into files of stored rows. All tables of a source have the layout of its first row."""

    def __init__(self, columns: Mapping[str, str], on_progress: OnProgress) -> None:
        self.layout: RowLayout | None = None
        self._columns = columns
        self._on_progress = on_progress

    def read(self, split: str, table: Table, file: Path, repeats: Repeats | None) -> _Split:
        """Write the rows of a table, without repeats if they are to be told apart."""
        written = _Split(file)
        with _Writer(file) as writer:
            for done, (stored, line) in enumerate(converted(table, lambda n, row: self._stored(table, n, row))):
                if done % _ROWS_A_REPORT == 0:
                    self._on_progress(f"reading {split} rows", table.position, table.total)
                if repeats is None or repeats.is_first(stored["prompt"], stored["ground_truth"]):
                    writer.write(line)
                    written.prompt_lengths.append(sum(len(message["content"]) for message in stored["prompt"]))
                    written.truth_lengths.append(len(stored["ground_truth"]))
        written.sha256 = writer.sha256
        self._on_progress(f"reading {split} rows", table.total, table.total)
        return written

    def _stored(self, table: Table, number: int, row: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        if self.layout is None:
            self.layout = layout_of(row, self._columns, table.name)
        stored = canonical(self.layout, number, row)
        return stored, line_of(stored)


class _Writer:
    """Writes lines to a new file and hashes them; on leaving the block they are on the disk."""

    def __init__(self, file: Path) -> None:
        self._file: BinaryIO = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", 1 << 20)
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, line: bytes) -> None:
        self._digest.update(line)
        self._file.write(line)

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()


def _dealt(folder: Path, rows: _Split, seed: int, aside: Sequence[str]) -> dict[str, _Split]:
    """Deal all rows to train and the splits that are set aside, each in the order in which the rows came."""
    drawn = set_aside(len(rows.prompt_lengths), seed, aside)
    split_of = {place: split for split, places in drawn.items() for place in places}
    dealt = {split: _Split(split_file(folder, split)) for split in ("train", *(s for s in aside if drawn[s]))}
    with ExitStack() as stack:
        writers = {split: stack.enter_context(_Writer(one.file)) for split, one in dealt.items()}
        with rows.file.open("rb") as lines:
            for place, line in enumerate(lines):
                split = split_of.get(place, "train")
                writers[split].write(line)
                dealt[split].prompt_lengths.append(rows.prompt_lengths[place])
                dealt[split].truth_lengths.append(rows.truth_lengths[place])
    for split, writer in writers.items():
        dealt[split].sha256 = writer.sha256
    rows.file.unlink()
    return dealt


def _lengths(characters: "array[int]") -> Lengths:
    return Lengths(
        shortest=min(characters), median=median_low(characters), mean=fmean(characters), longest=max(characters)
    )
