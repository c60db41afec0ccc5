"""What a run's journal says, into the database: from the stored offset on, every event exactly once.

The piece of the journal, what follows from it and the new offset are written in one transaction that compares the old
offset. Whoever looks at a run may do this; of two at once, one does.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ratchet.files import damage_as_error
from ratchet.run.journal import read_from
from ratchet.run.records import ENDS, RoundRecord, RunStatus
from ratchet.run.run_folder import RunFolder

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun
    from ratchet.store.adapter_rows import NewAdapter


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
        events, end = [event for event, _ in piece], piece[-1][1]
        with damage_as_error(folder.events_path):
            records, target, changes = _told(run, events)
        # Whether or not somebody else was first, there may be more by now.
        adapter = _adapter(run, changes, folder) if target in ENDS else None
        found = [event["scores"] for event in events if event["event"] == "scored"]
        scores = found[-1] if found else None
        store.ingest(run.id, run.journal_offset, end, records, target, adapter, scores, **changes)
        run = store.get(run.id)


def _adapter(run: "StoredRun", changes: dict[str, Any], folder: RunFolder) -> "NewAdapter | None":
    """Return the adapter that a full run has just ended with; None where it has none."""
    if run.kind != "full" or not changes.get("adapter_sha256"):
        return None
    from ratchet.store.adapter_rows import NewAdapter

    return NewAdapter(
        base_model=run.config.model,
        revision=str(folder.read_run().get("fixed", {}).get("model_identity", "")),
        sha256=str(changes["adapter_sha256"]),
        folder=folder.adapter_path,
        url=str(changes.get("artifacts_url", run.artifacts_url)),
    )


def _told(
    run: "StoredRun", events: Sequence[dict[str, Any]]
) -> tuple[list[RoundRecord], RunStatus | None, dict[str, Any]]:
    """Return the rounds in a piece of the journal, the status after it, and what else changed."""
    records: dict[int, RoundRecord] = {}
    target: RunStatus | None = None
    changes: dict[str, Any] = {}
    for event in events:
        known = replace(run, **changes)
        kind = event["event"]
        if kind == "started":
            target = "starting" if known.rounds_done is None else "training"
            at = datetime.fromisoformat(event["at"])
            changes |= {"started_at": known.started_at or at, "ended_at": None, "ending": None, "message": ""}
        elif kind == "answered":
            target = "training"
            changes |= {"rounds": event["of"], "rounds_done": event["done"], "attempts": 0}
        elif kind == "planned":
            changes["rounds"] = event["rounds"]
        elif kind == "round":
            target = "training"
            record = RoundRecord.model_validate(event["record"])
            records[record.round] = record
            changes |= _after_round(known, record)
        elif kind == "saving":
            target = "saving"
        elif kind == "ended":
            target = event["status"]
            changes |= _after_end(event)
    return list(records.values()), target, changes


def _after_round(known: "StoredRun", record: RoundRecord) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "rounds_done": record.round,
        "best_round": record.best_round,
        "best_accuracy": record.best_accuracy,
    }
    if record.round == 0:
        changes |= {"start_accuracy": record.validation.accuracy, "start_loss": record.validation.loss}
    if record.best_round == record.round:
        changes["best_loss"] = record.validation.loss
    if known.rounds_done is None or record.round > known.rounds_done:
        # A new finished round: its worker got somewhere, so deaths are counted anew.
        changes |= {"attempts": 0, "seconds": known.seconds + record.seconds.total}
    return changes


def _after_end(event: dict[str, Any]) -> dict[str, Any]:
    return {
        "ended_at": datetime.fromisoformat(event["at"]),
        "ending": event["ending"],
        "message": event["message"],
        "seconds": float(event.get("seconds", 0.0)),
        "adapter_sha256": event.get("adapter_sha256"),
        "stop_requested_at": None,
        **({"artifacts_url": event["artifacts"]} if event.get("artifacts") else {}),
    }
