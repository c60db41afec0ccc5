"""Ending a run from outside: for a worker that cannot do it any more, because it hangs or is dead.

Does what the worker would have done with what is on disk: journal, rollouts and adapter are brought into line with the
checkpoint, and the closing event is written. Loads no torch: of the checkpoint it reads the header, and compares bytes.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.config import LimitSettings
from ratchet.errors import Conflict, DiskFull
from ratchet.files import damage_as_error
from ratchet.models.adapter_files import ADAPTER_WEIGHTS, weights_sha256
from ratchet.run.closing_words import kept
from ratchet.run.endings import REMEDIES, RESUMABLE, status_of
from ratchet.run.records import Ending, RoundRecord, RunResult, RunStatus
from ratchet.run.run_folder import RunFolder

log = logging.getLogger(__name__)

_BEST = "best."


def close_from_outside(
    folder: RunFolder, ending: Ending, cause: str, *, seconds: float | None = None
) -> dict[str, Any]:
    """Write the closing event of a run whose worker cannot; return it.

    Whoever calls this has made sure that no worker writes any more. A run that has ended since its last start stays as
    it is, and the event that ended it is returned. On a full disk the event is returned and not written.

    Args:
        folder: The run.
        ending: How it ended.
        cause: One sentence or more: what happened. What is kept and what to do is added.
        seconds: Active seconds of the run, where the caller knows them; else what the files tell.
    """
    events = list(folder.events())
    last: dict[str, Any] | None = next((e for e in reversed(events) if e["event"] in ("started", "ended")), None)
    if last is not None and last["event"] == "ended":
        return last
    header = _header(folder.checkpoint_path)
    journaled = {e["record"]["round"]: RoundRecord.model_validate(e["record"]) for e in events if e["event"] == "round"}
    records = [journaled[number] for number in sorted(journaled)]
    if header is not None:
        records = [RoundRecord.model_validate(record) for record in header.run["records"]]
        folder.drop_rollouts_after(records[-1].round)
        folder.recover_adapter(lambda place: _holds_best(place / ADAPTER_WEIGHTS, header))
    checksum = adapter_checksum(folder) if records else None
    status = status_of(ending, has_adapter=checksum is not None)
    closing = _closing_event(events, records, ending, status, checksum, folder.read_config().limits)
    told = [_kept(events, records, checksum), REMEDIES.get(ending, "")]
    if folder.kind == "evaluation":
        told = [
            _answered(events),
            f"It goes on with ratchet eval resume {folder.run_id}." if ending in RESUMABLE else "",
        ]
    closing["message"] = " ".join(filter(None, [cause, *told]))
    known = [closing["seconds"], header.run["active_seconds"] if header else 0.0]
    closing["seconds"] = round(max(known) if seconds is None else seconds, 3)
    try:
        for record in records:
            if record.round not in journaled:
                folder.append_event("round", record=record.model_dump())
        event = folder.append_closing_event(**closing)
        folder.log(f"ended ending={ending} rounds_done={closing['rounds_done']} best_round={closing['best_round']}")
    except DiskFull:
        log.error("the end of the run could not be written down: the disk is full")
        return {"event": "ended", **closing}
    return event


def ended_from_outside(folder: RunFolder, ending: Ending, cause: str, *, seconds: float | None = None) -> RunResult:
    """End a run as ``close_from_outside`` does; return the result."""
    event = close_from_outside(folder, ending, cause, seconds=seconds)
    adapter = str(folder.adapter_path) if event.get("adapter_sha256") else None
    return RunResult.model_validate({**event, "run": folder.run_id, "folder": str(folder.path), "adapter": adapter})


def adapter_checksum(folder: RunFolder) -> str | None:
    """Return the SHA-256 of the kept adapter's weights file, None where there is none."""
    path = folder.adapter_path
    return weights_sha256(path) if (path / ADAPTER_WEIGHTS).is_file() else None


def reached(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return those fields of a run's result that its records tell, of round 0 and every finished round."""
    if not records:
        return {"rounds_done": 0}
    first, last = records[0].validation, records[-1]
    return {
        "rounds_done": last.round,
        "best_round": last.best_round,
        "start_accuracy": first.accuracy,
        "best_accuracy": last.best_accuracy,
        "start_loss": first.loss,
        "best_loss": records[last.best_round].validation.loss,
    }


def _closing_event(
    events: list[dict[str, Any]],
    records: list[RoundRecord],
    ending: Ending,
    status: RunStatus,
    checksum: str | None,
    limits: LimitSettings,
) -> dict[str, Any]:
    """Return the fields of the closing event, those of a worker's own; message and seconds are filled in later."""
    planned: dict[str, Any] = _last(events, "planned")
    before = [event["accuracy"] for event in events if event["event"] == "heldout" and event["when"] == "before"]
    result = RunResult(
        run="",
        folder="",
        status=status,
        ending=ending,
        message="",
        **reached(records),
        heldout_before=before[-1] if before else None,
        highest_reward=planned.get("highest_reward"),
        seconds=max([event.get("seconds", 0.0) for event in events if event["event"] == "ended"], default=0.0),
        cost=records[-1].cost if records else None,
        currency=limits.currency if limits.price_per_hour is not None else None,
    )
    sent = str(_last(events, "ended").get("artifacts", ""))  # by an earlier session: nothing is sent from outside
    fields = result.model_dump(exclude={"run", "folder", "adapter"})
    return {**fields, "adapter_sha256": checksum, "artifacts": sent}


def _kept(events: list[dict[str, Any]], records: list[RoundRecord], checksum: str | None) -> str:
    if checksum is None:
        return "The starting adapter was not scored yet, so there is no adapter to keep."
    return kept(records, _last(events, "planned").get("rounds"))


def _answered(events: list[dict[str, Any]]) -> str:
    """Say how far an evaluation came."""
    last = _last(events, "answered")
    return f"{last['done']} of {last['of']} questions are answered and kept." if last else "No question was answered."


def _last(events: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((event for event in reversed(events) if event["event"] == kind), {})


class _Header:
    """What a safetensors file says of itself: its tensors' places, and the run's own part.

    The format (https://github.com/huggingface/safetensors): eight bytes with the length of a JSON object, the object,
    and the tensors' bytes, whose places are counted from its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError("longer than the file")
            places: dict[str, Any] = json.loads(file.read(length))
        own = places.pop("__metadata__", {})
        self.run: dict[str, Any] = json.loads(own.get("ratchet", "{}"))
        self.places = {name: tuple(place["data_offsets"]) for name, place in places.items()}
        self._start = 8 + length

    def content(self, prefix: str = "") -> dict[str, bytes]:
        """Return the bytes of each tensor under a prefix, by its name without it."""
        found = {}
        with self.path.open("rb") as file:
            for name, (start, end) in self.places.items():
                if name.startswith(prefix):
                    file.seek(self._start + start)
                    found[name.removeprefix(prefix)] = file.read(end - start)
        return found


def _header(checkpoint: Path) -> _Header | None:
    """Return the header of a run's checkpoint; None where there is none that can be read."""
    if not checkpoint.exists():
        return None
    try:
        with damage_as_error(checkpoint):
            header = _Header(checkpoint)
            if not header.run["records"]:
                raise ValueError("no records")
    except Conflict as error:
        log.warning("%s", error)
        return None
    return header


def _holds_best(weights: Path, checkpoint: _Header) -> bool:
    """Tell whether an adapter's file holds exactly the best adapter of a checkpoint."""
    try:
        with damage_as_error(weights):
            return _Header(weights).content() == checkpoint.content(_BEST)
    except Conflict:
        return False
