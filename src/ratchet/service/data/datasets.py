"""Datasets: add a version, list, show, and find the version that a run means by NAME or NAME@VERSION."""

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from ratchet.config import DatasetData, RunConfig
from ratchet.datasets.importing import ImportSettings, OnProgress, import_data
from ratchet.datasets.splits import PathData
from ratchet.datasets.tables import hub_commit, is_hub_id
from ratchet.datasets.version_folders import SplitRecord, read_manifest, read_rows, usability
from ratchet.errors import InvalidSetting

if TYPE_CHECKING:
    from ratchet.store import StoredDataset

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class DatasetSummary:
    """What is known of a version without reading its rows. ``notes`` are sentences worth telling the user."""

    name: str
    version: int
    content_hash: str
    format: str
    column_map: Mapping[str, str]
    origin: str
    rows: Mapping[str, int]
    seed: int | None
    created_at: datetime
    notes: tuple[str, ...]
    is_new: bool


@dataclass(frozen=True)
class DatasetDetails:
    """A version with how long its texts are, and the first rows of each split as they are stored."""

    summary: DatasetSummary
    splits: Mapping[str, SplitRecord]
    preview: Mapping[str, tuple[Mapping[str, Any], ...]]


def add(
    source: str,
    name: str,
    settings: ImportSettings | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> DatasetSummary:
    """Read a file, a folder or a hub dataset and keep it as the next version of a dataset.

    Afterwards the rows are in a folder under RATCHET_HOME and the version is in the database; after a fault neither is.
    The same content again is the version that has it already.

    Raises:
        InvalidSetting, IncompatibleData: the name, the settings or the rows are invalid.
        Conflict, DiskFull: it cannot be kept.
    """
    from ratchet.store import Database, DatasetContent, DatasetStore

    checked_name(name)
    with closing(Database()) as database:  # first: a database that cannot be used is known before all rows are read
        imported = import_data(source, settings or ImportSettings(), on_progress)
        content = DatasetContent(
            content_hash=imported.content_hash,
            format=imported.layout.format,
            column_map=dict(imported.layout.columns),
            origin=imported.origin,
            rows=imported.rows,
            seed=imported.seed,
        )
        stored = DatasetStore(database).add(name, content)
    again = () if stored.is_new else (f"Version {stored.version} has the same content already.",)
    return _summary(stored, (*again, *imported.notes))


def list_datasets() -> list[DatasetSummary]:
    """All versions of all datasets, by name and version."""
    from ratchet.store import Database, DatasetStore

    with closing(Database()) as database:
        return [_summary(stored) for stored in DatasetStore(database).all()]


def show(reference: str, rows: int = 3) -> DatasetDetails:
    """Record of NAME or NAME@VERSION, with the first ``rows`` rows of each split.

    Raises:
        NotFound: there is no such version, or its rows are not here.
        Conflict: its rows were changed.
    """
    found = found_version(reference)
    manifest = read_manifest(found.content_hash)
    preview = {
        split: tuple(islice(read_rows(found.content_hash, split), rows)) if rows else () for split in manifest.splits
    }
    return DatasetDetails(found, manifest.splits, preview)


def with_version(config: RunConfig) -> RunConfig:
    """A run's settings with the version of its data filled in: number and hash, or the hub's commit.

    Raises:
        NotFound: there is no such dataset or version.
        InvalidSetting: the settings name a version and the hash of another one.
    """
    data = config.data
    if isinstance(data, DatasetData):
        found = found_version(data.name, data.version)
        if data.content_hash not in ("", found.content_hash):
            raise InvalidSetting(
                f"Version {found.version} of dataset {data.name} has a content hash that begins with "
                f"{found.content_hash[:12]}, not {data.content_hash[:12]}. Leave data.content_hash out, or name the "
                "version that is meant.",
                "data.content_hash",
            )
        update: dict[str, Any] = {"name": found.name, "version": found.version, "content_hash": found.content_hash}
    elif isinstance(data, PathData) and is_hub_id(data.path):
        update = {"revision": hub_commit(data.path, data.revision) or data.revision}
    else:
        return config
    return config.model_copy(update={"data": data.model_copy(update=update)})


def found_version(reference: str, version: int | None = None) -> DatasetSummary:
    """The record of NAME or NAME@VERSION, the newest version for None.

    Raises:
        NotFound: there is no such version.
    """
    from ratchet.store import Database, DatasetStore

    with closing(Database()) as database:
        return _summary(DatasetStore(database).get(*named_version("Dataset", reference, version)))


def _summary(stored: "StoredDataset", notes: tuple[str, ...] = ()) -> DatasetSummary:
    content = stored.content
    return DatasetSummary(
        name=stored.name,
        version=stored.version,
        content_hash=content.content_hash,
        format=content.format,
        column_map=content.column_map,
        origin=content.origin,
        rows=content.rows,
        seed=content.seed,
        created_at=stored.created_at,
        notes=notes or tuple(usability(content.rows)),
        is_new=stored.is_new,
    )


def checked_name(name: str) -> str:
    """Check and return the name of a dataset or metric.

    Raises:
        InvalidSetting: it may not.
    """
    if _NAME.fullmatch(name) is None:
        shown = name if len(name) <= 100 else f"{name[:97]}..."
        raise InvalidSetting(
            f"Name is {shown!r}; it must be up to 100 letters, digits, dots, hyphens and underscores, and begin with a "
            "letter or a digit.",
            "name",
        )
    return name


def named_version(what: str, reference: str, version: int | None) -> tuple[str, int | None]:
    """The name and the version of NAME or NAME@VERSION where the version may also be given by itself.

    Raises:
        InvalidSetting: what follows the @ is no version number, or another one than the one given; ``what`` says of
            what kind of thing.
    """
    name, number = parsed_reference(reference)
    if number is not None and version not in (None, number):
        raise InvalidSetting(f"{what} {reference} and version {version} are two versions. Leave one of them out.")
    return name, number if version is None else version


def parsed_reference(reference: str) -> tuple[str, int | None]:
    """The name and the version of NAME or NAME@VERSION.

    Raises:
        InvalidSetting: what follows the @ is no version number.
    """
    name, at, version = reference.partition("@")
    if not at:
        return name, None
    if re.fullmatch(r"v?[1-9][0-9]{0,8}", version) is None:
        raise InvalidSetting(f"{reference} names no version: write a number after the @, such as {name}@2.")
    return name, int(version.removeprefix("v"))
