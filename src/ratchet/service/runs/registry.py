"""Where runs are known: in the database, which is brought up to date by whoever looks.

A run folder that the database does not know is entered when it is opened by path or lies in RATCHET_HOME/runs, so that
a lost database loses no run; one that was moved is followed.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.config import RunConfig
from ratchet.errors import Conflict, NotFound, RatchetError
from ratchet.files import expanded, ratchet_home
from ratchet.run.endings import AT_WORK, ENDS, RunStatus
from ratchet.run.records import RunKind, RunRelation
from ratchet.run.run_folder import RunFolder
from ratchet.supervisor.ingest import ingest

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Origin:
    """What a new run is made from: another run and what it is to it, and the draft that is used up, if any."""

    run: str | None
    relation: RunRelation | None
    draft: str | None = None


@contextmanager
def open_store() -> "Iterator[RunStore]":
    """Open the database of runs for the block.

    Raises:
        Conflict: it cannot be used.
    """
    from ratchet.store import Database, RunStore

    with closing(Database()) as database:
        yield RunStore(database)


def new_run(
    config: RunConfig,
    out: Path | None,
    confirmation: Mapping[str, Any] | None = None,
    *,
    kind: RunKind = "full",
    is_kept: bool = False,
    origin: Origin | None = None,
    further: Mapping[str, Any] | None = None,
) -> RunFolder:
    """Make the folder of a run and its row in the database, or neither of them; a draft that it comes from is used up.

    ``further`` belongs to its record: what it evaluates, and as ``owner`` which step of a loop or experiment it is.

    Raises:
        Conflict, DiskFull: one of them cannot be made, or somebody else has launched or dropped the draft meanwhile.
    """
    source = {"run": origin.run, "relation": origin.relation} if origin and origin.run else None
    # Who works on it is in its record from the first moment on: whoever finds it there enters it as it was meant.
    record = {**(further or {}), **({"kept": True} if is_kept else {})}
    folder = RunFolder.create(config, out, confirmation, kind, source, record)
    try:
        with open_store() as store:
            register(store, folder, is_kept=is_kept, draft=origin.draft if origin else None)
    except BaseException:
        folder.undo_create()
        raise
    return folder


def register(store: "RunStore", folder: RunFolder, *, is_kept: bool, draft: str | None = None) -> "StoredRun":
    """Enter a run that was just made: queued, or run by this process.

    Raises:
        Conflict, DiskFull: it cannot be entered; its folder is as it was made.
    """
    record = folder.read_run()
    mark_kept(folder, is_kept)
    _make_way(store, folder.path)
    fields = _own_fields(store, folder, record, is_kept=is_kept)
    try:
        return _added(store, folder, record, fields, draft)
    except Conflict:
        # Whoever listed runs in the instant since the folder was made has entered it already.
        with suppress(NotFound):
            if draft is None and store.get(record["id"]).folder == folder.path:
                store.move(record["id"], ["starting", "queued"], _first_status(is_kept), **fields)
                return store.get(record["id"])
        raise


def mark_kept(folder: RunFolder, is_kept: bool) -> None:
    """Write into the folder whether the scheduler runs it, in case the database is lost."""
    record = folder.read_run()
    if record.get("kept", False) != is_kept:
        folder.write_run({**record, "kept": is_kept})


def find_run(run_or_folder: str) -> RunFolder:
    """Find the run of that id or in that folder.

    Raises:
        NotFound: neither is there.
        Conflict: an id was given and the database cannot be used.
    """
    with suppress(NotFound):
        folder = RunFolder.at(run_or_folder)
        # A convenience: where database or run cannot be read, opening by path works all the same.
        with _named_in_log(), open_store() as store:
            _known(store, folder)
        return folder
    if not _may_be_id(run_or_folder):
        raise NotFound(f"There is no run {run_or_folder}: no such folder.")
    with open_store() as store:
        return _folder_of_id(store, run_or_folder)


def find_stored(store: "RunStore", run_or_folder: str) -> "tuple[RunFolder, StoredRun]":
    """Find a run by id or folder, with its row brought up to date.

    Raises:
        NotFound: there is no such run.
        Conflict: it cannot be read, or the folder is a copy of a run that is elsewhere.
    """
    folder, run = find_with_row(store, run_or_folder)
    if run is None:
        raise Conflict(f"{folder.path} is a copy of run {folder.run_id}, which is in another folder.")
    return folder, run


def find_with_row(store: "RunStore", run_or_folder: str) -> "tuple[RunFolder, StoredRun | None]":
    """Find a run as ``find_stored`` does; with None for a copy, which has no row."""
    try:
        folder = RunFolder.at(run_or_folder)
    except NotFound:
        if not _may_be_id(run_or_folder):
            raise
        folder = _folder_of_id(store, run_or_folder)
    run = _known(store, folder)
    return folder, None if run is None else ingest(store, run, folder)


def all_runs(store: "RunStore", project: str | None = None) -> "list[StoredRun]":
    """All runs that are still in their folders, and drafts, oldest first, brought up to date."""
    known = store.folders()
    for place in sorted((ratchet_home() / "runs").glob("*/run.json")):
        if place.parent.resolve() not in known:
            with _named_in_log():
                _known(store, RunFolder(place.parent.resolve()))
    found = []
    for run in store.all(project=project):
        folder = None if run.folder is None else RunFolder(run.folder)
        if folder is not None and not folder.is_there():
            continue
        if folder is not None and folder.journal_bytes() > run.journal_offset:
            with _named_in_log():
                run = ingest(store, run, folder)
        found.append(run)
    return found


def is_taken_up(run_id: str, *, has_ended: bool) -> bool:
    """Whether the scheduler will start a run that is not running now: it is queued, or its worker died."""
    with suppress(RatchetError), open_store() as store:
        run = store.get(run_id)
        return run.is_kept and (run.status == "queued" or (run.status in AT_WORK and not has_ended))
    return False


def bring_up_to_date(folder: RunFolder) -> None:
    """Let the database know what a run has done meanwhile; where it cannot, whoever looks next will."""
    with _named_in_log(), open_store() as store:
        if run := _known(store, folder):
            ingest(store, run, folder)


@contextmanager
def _named_in_log() -> Iterator[None]:
    try:
        yield
    except RatchetError as error:
        log.warning("%s", error)


def _known(store: "RunStore", folder: RunFolder) -> "StoredRun | None":
    """Row of a run's folder, which is entered or followed; None for a copy of one elsewhere."""
    run_id = folder.run_id
    try:
        run = store.get(run_id)
    except NotFound:
        return _adopted(store, folder)
    if run.folder == folder.path:
        return run
    if run.folder is not None and RunFolder(run.folder).is_there():
        return None
    _make_way(store, folder.path)
    store.change(run_id, folder=folder.path)
    return store.get(run_id)


def _adopted(store: "RunStore", folder: RunFolder) -> "StoredRun":
    record = folder.read_run()
    is_kept = bool(record.get("kept", False))
    _make_way(store, folder.path)
    # What the scheduler ran and has no end is queued for it, also while its worker lives, which the scheduler will see.
    run = _added(store, folder, record, _own_fields(store, folder, record, is_kept=is_kept))
    run = ingest(store, run, folder)
    if is_kept and run.status not in ENDS:
        store.move(run.id, AT_WORK, "queued")
        run = store.get(run.id)
    return run


def _added(
    store: "RunStore", folder: RunFolder, record: dict[str, Any], fields: dict[str, Any], draft: str | None = None
) -> "StoredRun":
    """Add the row of a run that the database does not know."""
    return store.add(
        folder.read_config(),
        id=record["id"],
        status=_first_status(fields["is_kept"]),
        created_at=datetime.fromisoformat(record["created_at"]),
        draft=draft,
        evaluation=record.get("evaluation"),
        **fields,
    )


def _first_status(is_kept: bool) -> RunStatus:
    return "queued" if is_kept else "starting"


def _own_fields(store: "RunStore", folder: RunFolder, record: dict[str, Any], *, is_kept: bool) -> dict[str, Any]:
    """Fields of a run's row by its own record, and its place in the queue."""
    return {
        "folder": folder.path,
        "queued_at": datetime.now(UTC) if is_kept else None,
        "kind": record.get("kind", "full"),
        "confirmation": record.get("report"),
        "is_kept": is_kept,
        "owner": record.get("owner"),
        **_source(store, record),
    }


def _source(store: "RunStore", record: dict[str, Any]) -> dict[str, Any]:
    """Which run this one was made from, by its own record, where the database knows that one."""
    source = record.get("source") or {}
    with suppress(NotFound):
        if source.get("run") and source.get("relation"):
            store.get(source["run"])
            return {"source_run": source["run"], "source_relation": source["relation"]}
    return {}


def _make_way(store: "RunStore", place: Path) -> None:
    """Let go of a run that the database has in this place and that is not there any more."""
    gone = store.of_folder(place)
    if gone is not None and not _is_in(gone.id, place):
        store.change(gone.id, folder=place.with_name(f"{place.name} (gone: {gone.id})"))


def _is_in(run_id: str, place: Path) -> bool:
    with suppress(RatchetError):
        return RunFolder(place).run_id == run_id
    return False


def _may_be_id(text: str) -> bool:
    return bool(text) and len(text) <= 100 and text.replace("-", "").replace("_", "").replace(".", "").isalnum()


def _folder_of_id(store: "RunStore", run_id: str) -> RunFolder:
    try:
        run = store.get(run_id)
    except NotFound:
        place = ratchet_home() / "runs" / run_id
        if not RunFolder(expanded(place)).is_there():
            raise NotFound(
                f"There is no run {run_id}: no such folder, and no run of that id in the database."
            ) from None
        folder = RunFolder(place.resolve())
        _known(store, folder)
        return folder
    if run.folder is None:
        raise Conflict(f"Run {run_id} is a draft: it has no folder yet.")
    if not RunFolder(run.folder).is_there():
        raise NotFound(f"Run {run_id} was in {run.folder}, which holds no run any more.")
    return RunFolder(run.folder)
