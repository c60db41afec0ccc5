"""Ending a run from outside: for a worker that cannot do it any more, because it hangs or is dead.

Does what the worker would have done with what is on disk: journal, rollouts and adapter are brought into line with the
checkpoint, and the closing event is written. Loads no torch: of the checkpoint it reads the header, and compares bytes.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.errors import Conflict, DiskFull
from ratchet.files import damage_as_error
from ratchet.models.adapter_files import ADAPTER_WEIGHTS, weights_sha256
from ratchet.run.diagnosis import has_no_signal, no_signal_sentence
from ratchet.run.endings import ENDINGS, Ending, status_of
from ratchet.run.events import RoundDone, RunEnded
from ratchet.run.records import RoundRecord, RunResult
from ratchet.run.run_folder import RunFolder
from ratchet.run.state import RunState

log = logging.getLogger(__name__)

_BEST = "best."


def close_stalled_run(folder: RunFolder, ending: Ending, cause: str, *, seconds: float | None = None) -> RunEnded:
    """Write the closing event of a run whose worker cannot; return it.

    Whoever calls this has made sure that no worker writes any more. A run that has ended since its last start stays as
    it is, and the event that ended it is returned. On a full disk the event is returned and not written.

    Args:
        folder: The run.
        ending: How it ended.
        cause: One sentence or more: what happened. What is kept and what to do is added.
        seconds: Active seconds of the run, where the caller knows them; else what the files tell.
    """
    state = folder.state()
    if state.ended is not None:
        return state.ended
    header = _header(folder.checkpoint_path)
    records = list(state.records)
    if header is not None:
        records = [RoundRecord.model_validate(record) for record in header.run["records"]]
        folder.drop_rollouts_after(records[-1].round)
        folder.recover_adapter(lambda place: _holds_best(place / ADAPTER_WEIGHTS, header))
    checksum = adapter_checksum(folder) if records else None
    status = status_of(ending, has_adapter=checksum is not None)
    rule = ENDINGS[ending]
    told = [_kept(state, records, checksum), rule.remedy]
    if folder.kind == "evaluation":
        told = [
            _answered(state),
            f"Resume with: ratchet eval resume {folder.run_id}" if rule.resumable else "",
        ]
    known = max(state.ended_seconds, header.run["active_seconds"] if header else 0.0)
    limits = folder.read_config().limits
    result = RunResult(
        run="",
        folder="",
        status=status,
        ending=ending,
        message=" ".join(filter(None, [cause, *told])),
        **reached(records),
        heldout_before=state.heldout_before,
        highest_reward=state.highest_reward,
        seconds=round(known if seconds is None else seconds, 3),
        cost=records[-1].cost if records else None,
        currency=limits.currency if limits.price_per_hour is not None else None,
    )
    # Files that an earlier session sent: nothing is sent from here.
    event = RunEnded.of(result, checksum, artifacts=state.artifacts_url)
    journaled = {record.round for record in state.records}
    try:
        for record in records:
            if record.round not in journaled:
                folder.append_event(RoundDone(record=record))
        event = folder.append_event(event)
        folder.log(f"ended ending={ending} rounds_done={result.rounds_done} best_round={result.best_round}")
    except DiskFull:
        log.error("the end of the run could not be written down: the disk is full")
    return event


def ended_for_worker(folder: RunFolder, ending: Ending, cause: str, *, seconds: float | None = None) -> RunResult:
    """End a run as ``close_stalled_run`` does; return the result."""
    event = close_stalled_run(folder, ending, cause, seconds=seconds)
    return event.result(folder.run_id, folder.path, folder.adapter_path)


def adapter_checksum(folder: RunFolder) -> str | None:
    """SHA-256 of the kept adapter's weights file, None where there is none."""
    path = folder.adapter_path
    return weights_sha256(path) if (path / ADAPTER_WEIGHTS).is_file() else None


def reached(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Fields of a run's result by its records: of round 0 and every finished round."""
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


def kept(records: Sequence[RoundRecord], rounds: int | None) -> str:
    """How far a run came and which adapter is kept, as sentences.

    Args:
        records: Those of round 0 and of every finished round.
        rounds: How many the run was to have, None where that is not known.
    """
    last = records[-1]
    if last.best_round == 0:
        adapter = "No round beat the starting point on validation, so training brought no gain; the starting adapter "
        adapter += "is kept."
    else:
        adapter = f"The adapter of round {last.best_round} is kept."
    # Fewer rounds than it takes to call the task at fault; said all the same.
    if len(records) > 1 and has_no_signal(records):
        adapter += f" {no_signal_sentence(records[1:])}"
    of = "" if rounds is None else f" of {rounds}"
    return f"{last.round}{of} rounds done. {adapter}"


def _kept(state: RunState, records: list[RoundRecord], checksum: str | None) -> str:
    if checksum is None:
        return "The starting adapter was not scored yet, so there is no adapter to keep."
    return kept(records, state.rounds)


def _answered(state: RunState) -> str:
    """How far an evaluation came."""
    if state.rounds_done is None:
        return "No question was answered."
    return f"{state.rounds_done} of {state.rounds} questions are answered and kept."


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
        """Bytes of each tensor under a prefix, by its name without it."""
        found = {}
        with self.path.open("rb") as file:
            for name, (start, end) in self.places.items():
                if name.startswith(prefix):
                    file.seek(self._start + start)
                    found[name.removeprefix(prefix)] = file.read(end - start)
        return found


def _header(checkpoint: Path) -> _Header | None:
    """Header of a run's checkpoint; None where there is none that can be read."""
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
    """Whether an adapter's file holds exactly the best adapter of a checkpoint."""
    try:
        with damage_as_error(weights):
            return _Header(weights).content() == checkpoint.content(_BEST)
    except Conflict:
        return False
