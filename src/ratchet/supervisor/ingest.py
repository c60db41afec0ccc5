"""What a run's journal says, into the database: from the stored offset on, every event exactly once.

The piece of the journal, what follows from it and the new offset are written in one transaction that compares the old
offset. Whoever looks at a run may do this; of two at once, one does.
"""

from typing import TYPE_CHECKING, Any

from ratchet.files import damage_as_error
from ratchet.run.endings import ENDS
from ratchet.run.journal import read_from
from ratchet.run.run_folder import RunFolder
from ratchet.run.state import RunState

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun
    from ratchet.store.adapter_rows import NewAdapter

# What a run's row and its state have in common, by the same names.
_SHARED = (
    "rounds",
    "rounds_done",
    "best_round",
    "start_accuracy",
    "best_accuracy",
    "start_loss",
    "best_loss",
    "seconds",
    "started_at",
    "artifacts_url",
)


def ingest(store: "RunStore", run: "StoredRun", folder: RunFolder) -> "StoredRun":
    """Bring what the database knows of a run up to its journal; return the run as it is then.

    Raises:
        Conflict: the journal is damaged.
        DiskFull: the database has no room.
    """
    while True:
        piece = list(read_from(folder.events_path, run.journal_offset))
        if not piece:
            return run
        before = RunState(**{name: getattr(run, name) for name in _SHARED})
        with damage_as_error(folder.events_path):
            state = RunState.fold((event for event, _ in piece), before)
        # Whether or not somebody else was first, there may be more by now.
        adapter = _adapter(run, state, folder) if state.status in ENDS else None
        changes = _changes(before, state)
        store.ingest(
            run.id, run.journal_offset, piece[-1][1], state.records, state.status, adapter, state.scores, **changes
        )
        run = store.get(run.id)


def _changes(before: RunState, state: RunState) -> dict[str, Any]:
    """What changed in a run's row, its status aside."""
    changes = {name: getattr(state, name) for name in _SHARED if getattr(state, name) != getattr(before, name)}
    if state.rounds_done is not None and (before.rounds_done is None or state.rounds_done > before.rounds_done):
        changes["attempts"] = 0  # its worker got somewhere, so deaths are counted anew
    if state.ended is not None:
        changes |= {
            "ended_at": state.ended.time,
            "ending": state.ended.ending,
            "message": state.ended.message,
            "adapter_sha256": state.ended.adapter_sha256,
            "stop_requested_at": None,
        }
    elif state.session_started is not None:
        changes |= {"ended_at": None, "ending": None, "message": ""}
    return changes


def _adapter(run: "StoredRun", state: RunState, folder: RunFolder) -> "NewAdapter | None":
    """The adapter that a full run has just ended with; None where it has none."""
    if run.kind != "full" or state.ended is None or not state.ended.adapter_sha256:
        return None
    from ratchet.store.adapter_rows import NewAdapter

    return NewAdapter(
        base_model=run.config.model,
        revision=str(folder.read_run().get("fixed", {}).get("model_identity", "")),
        sha256=state.ended.adapter_sha256,
        folder=folder.adapter_path,
        url=state.artifacts_url,
    )
