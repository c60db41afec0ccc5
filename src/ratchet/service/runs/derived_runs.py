"""New runs made from old ones: retry, duplicate and continue; drafts, which are saved settings and nothing more.

A draft has a row in the database and no folder. Saving one starts no work, and nothing here restarts a run by itself:
each of these is asked for. What a run was made from is written into its own record, so that it outlives the database.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ratchet.config import RunConfig
from ratchet.config.changes import with_changes
from ratchet.errors import Conflict, NotFound
from ratchet.service.runs.registry import Origin, open_store
from ratchet.service.runs.runs import Action, RunSummary, refuse, summary
from ratchet.service.runs.start_checks import check_run

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun


@dataclass(frozen=True)
class DerivedSettings:
    """Settings for a new run, and the run or draft that they come from."""

    config: RunConfig
    origin: Origin


def retry(run_or_folder: str) -> DerivedSettings:
    """The settings of a failed or cancelled run, to start again from round 1.

    Raises:
        NotFound: there is no such run.
        Conflict: its state does not allow it.
    """
    source = _allowed("retry", run_or_folder)
    return DerivedSettings(source.config, Origin(source.run, "retry"))


def continued(run_or_folder: str, changes: Mapping[str, str]) -> DerivedSettings:
    """The settings of a new run that continues from a run's adapter, with ``changes`` laid over what was given.

    Raises:
        NotFound: there is no such run.
        Conflict: its state does not allow it, or it has no adapter.
        InvalidSetting: a change cannot be made.
    """
    source = _allowed("continue", run_or_folder)
    if not (source.folder / "adapter").is_dir():
        raise Conflict(
            f"The adapter of run {source.run} is no longer in {source.folder}, so no run can continue from it."
        )
    config = with_changes(source.config, {**changes, "start_from.adapter": source.run})
    return DerivedSettings(config, Origin(source.run, "continue"))


def duplicate(run_or_folder: str, changes: Mapping[str, str]) -> "StoredRun":
    """Save the settings of a run, or of a draft, as a new draft, with ``changes`` laid over what was given.

    Raises:
        NotFound: there is no such run.
        RatchetError: what the checks of a run found: a draft that could not start is not saved.
    """
    if draft := find_draft(run_or_folder):
        config, source_run = draft.config, draft.source_run
    else:
        source = _allowed("duplicate", run_or_folder)
        config, source_run = source.config, source.run
    return save_draft(with_changes(config, changes), Origin(source_run, "duplicate" if source_run else None))


def save_draft(config: RunConfig, origin: Origin) -> "StoredRun":
    """Check settings and save them as a draft. Starts nothing.

    Raises:
        RatchetError: what the checks of a run found.
    """
    report = check_run(config)
    report.close()
    report.raise_faults()
    with open_store() as store:
        source = origin.run if origin.run is not None and _knows(store, origin.run) else None
        relation = origin.relation if source else None
        return store.add(config, source_run=source, source_relation=relation)


def launching(draft: str) -> DerivedSettings:
    """The settings of a draft that is about to be launched; it is used up once the run is made.

    Raises:
        NotFound: there is no such draft.
        Conflict: it is no draft.
    """
    saved = find_draft(draft)
    if saved is None:
        found = summary(draft)
        _refuse("launch", found)
        raise AssertionError("only a draft can be launched")
    return DerivedSettings(saved.config, Origin(saved.source_run, saved.source_relation, draft=saved.id))


def drop(draft: str) -> None:
    """Remove a draft.

    Raises:
        NotFound: there is no such draft.
        Conflict: it is no draft, or was launched meanwhile.
    """
    if find_draft(draft) is None:
        _refuse("drop", summary(draft))
    with open_store() as store:
        if not store.remove_draft(draft):
            raise Conflict(f"Draft {draft} was launched or dropped meanwhile.")


def _allowed(action: Action, run_or_folder: str) -> RunSummary:
    found = summary(run_or_folder)
    _refuse(action, found)
    return found


def _refuse(action: Action, found: RunSummary) -> None:
    refuse(action, found.run, found.status, found.ended.ending if found.ended else None, found.kind)


def find_draft(name: str) -> "StoredRun | None":
    """The draft of this id, None where there is none."""
    with suppress(NotFound), open_store() as store:
        found = store.get(name)
        return found if found.status == "draft" else None
    return None


def _knows(store: "RunStore", run: str) -> bool:
    with suppress(NotFound):
        store.get(run)
        return True
    return False
