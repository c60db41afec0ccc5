"""The run folder: where everything about a run is on disk, and how it is written so that a kill loses nothing.

    FOLDER/
      config.json            the resolved settings, written once
      run.json               id, creation time, and what was fixed at the start (budgets, versions, model identity)
      events.jsonl           what happened, one JSON object a line, append only
      run.log                numbers only, one line a round
      rollouts/round-001.jsonl   every prompt, answer and reward of a round; readable by the owner alone
      rollouts/heldout.jsonl     the kept adapter's answers to the held-out problems; heldout-before.jsonl the start's
      checkpoint.safetensors     all that a resumed run needs, with the round's record
      adapter/               the best adapter so far, in PEFT layout
      heartbeat.json         what the process that works on the run is doing, and that it lives
      trackers/              what TensorBoard, trackio, W&B or MLflow write, where the settings name them
      stop.json              somebody asked the run to stop: when and who
      worker.log             what a worker started by the scheduler printed
      rows.keys              what the rows that a full run reads are known by, hashes without their texts
      start/                 a copy of the adapter that the run started from, where that was not a new one
      trial.json             of a trial, in place of checkpoint and adapter: what it measured and predicts
      scores.json            of an evaluation, likewise; its answers are in rollouts/ (``evaluation_files.py``)

Files are written to a temporary name, synced and renamed; the events file is appended to (``journal.py``). Knows
nothing of tensors: it is handed the bytes of checkpoint and adapter.
"""

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, get_args

from ratchet.config import KeepSettings, RunConfig
from ratchet.errors import Conflict, NotFound
from ratchet.files import (
    OUT_ADVICE,
    damage_as_error,
    disk_full_as_error,
    expanded,
    make_folder,
    own_opener,
    ratchet_home,
    resolved,
    sync_folder,
    unusable_as_error,
    write_atomically,
)
from ratchet.run import run_lock
from ratchet.run.ancestry import ADAPTER_FOLDER, START_FOLDER, start_of
from ratchet.run.events import Event, JournalEvent, RunEnded, UnknownEvent
from ratchet.run.journal import append, read_from, read_state
from ratchet.run.log_files import rotate
from ratchet.run.processes import Process
from ratchet.run.records import RunKind
from ratchet.run.state import RunState
from ratchet.run.trial_report import TrialReport

_HOME_ADVICE = "It is where Ratchet keeps runs: set RATCHET_HOME to a folder that can be written to."
# Room for the closing event and what a file system takes to write it.
_RESERVE_BYTES = 64 << 10
_Event = TypeVar("_Event", bound=JournalEvent)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def new_run_id(created: datetime, letter: str = "r") -> str:
    """An id for a run made at this moment. No other run has it, as good as surely."""
    return f"{letter}{created:%y%m%d-%H%M%S}-{secrets.token_hex(2)}"


class RunFolder:
    """One run's files. Creating the object touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.json"
        self.run_path = path / "run.json"
        self.events_path = path / "events.jsonl"
        self.log_path = path / "run.log"
        self.rollouts_path = path / "rollouts"
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.heldout_path = self.rollouts_path / "heldout.jsonl"
        self.heldout_before_path = self.rollouts_path / "heldout-before.jsonl"
        self.adapter_path = path / ADAPTER_FOLDER
        self.start_path = path / START_FOLDER
        self.trial_path = path / "trial.json"
        self.row_keys_path = path / "rows.keys"
        self._staged_adapter_path = path / ".adapter.tmp"
        self._old_adapter_path = path / ".adapter.old"
        self.heartbeat_path = path / "heartbeat.json"
        self.stop_path = path / "stop.json"
        self.worker_log_path = path / "worker.log"
        self.lock_path = path / ".lock"
        self._reserve_path = path / ".reserve"
        self._is_new_place = False

    @classmethod
    def create(
        cls,
        config: RunConfig,
        out: Path | None,
        confirmation: Mapping[str, Any] | None = None,
        kind: RunKind = "full",
        source: Mapping[str, Any] | None = None,
        further: Mapping[str, Any] | None = None,
    ) -> "RunFolder":
        """Make the folder of a new run with its settings.

        ``confirmation`` says who has read the report of its verifier; it becomes part of the run's record, as does
        where the adapter that it starts from comes from, which is copied. ``source`` says which run it was made from,
        and ``further`` what else belongs to its record: what it evaluates, which loop or experiment has started it.

        Raises:
            Conflict: the folder holds a run, or something else; or the adapter to start from is not what it was.
            DiskFull: there is no room.
        """
        created = datetime.now(UTC)
        run_id = new_run_id(created, "e" if kind == "evaluation" else "r")
        advice = OUT_ADVICE if out else _HOME_ADVICE
        path = resolved(out or ratchet_home() / "runs" / run_id, advice)
        folder = cls(path)
        cls.refuse_taken(path)
        start = start_of(config.start_from)
        is_new = not path.exists()
        try:
            with disk_full_as_error(path):
                make_folder(folder.path)
                folder.rollouts_path.mkdir(0o700)
        except OSError as error:
            raise Conflict(f"The run folder {path} cannot be made: {error.strerror}. {advice}") from error
        folder._is_new_place = is_new
        # Paths in the settings may be relative: whoever works on the run later does so from the same place.
        record: dict[str, Any] = {
            "id": run_id,
            "created_at": created.isoformat(timespec="milliseconds"),
            "kind": kind,
            "directory": os.getcwd(),
            **(further or {}),
        }
        report = {} if confirmation is None else {"report": dict(confirmation)}
        if source is not None:
            record["source"] = dict(source)
        try:
            write_atomically(folder.config_path, config.model_dump_json(indent=2).encode())
            if start is not None:
                record["start"] = start.origin.model_dump(mode="json")
                with disk_full_as_error(path):
                    folder.start_path.mkdir(0o755)
                for name, content in start.files.items():
                    write_atomically(folder.start_path / name, content)
            folder.write_run({**record, **report})
        except BaseException:
            # Half a run folder could neither be resumed nor be given again.
            folder.undo_create()
            raise
        return folder

    def undo_create(self) -> None:
        """Remove what ``create`` made, before anything else came to it."""
        shutil.rmtree(self.rollouts_path, ignore_errors=True)
        shutil.rmtree(self.start_path, ignore_errors=True)
        self.config_path.unlink(missing_ok=True)
        self.run_path.unlink(missing_ok=True)
        if self._is_new_place:
            self.path.rmdir()

    @classmethod
    def refuse_taken(cls, path: Path) -> None:
        """Refuse a place for a new run that holds something already.

        Raises:
            Conflict: it does.
        """
        with unusable_as_error(path, OUT_ADVICE):
            holds_run = cls(path).run_path.exists()
            is_taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
        if holds_run:
            raise Conflict(f"{path} already holds a run. Resume it with ratchet resume, or choose another --out.")
        if is_taken:
            raise Conflict(f"{path} already exists and is not empty. Choose another --out.")

    @classmethod
    def at(cls, path: str | Path) -> "RunFolder":
        """Run in that folder.

        Raises:
            NotFound: there is none.
        """
        place = expanded(path)
        if _is_file(place / "run.json"):
            return cls(place.resolve())
        raise NotFound(f"There is no run in {path}.")

    def is_there(self) -> bool:
        """Whether the folder still holds a run."""
        return _is_file(self.run_path)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self.read_run()["id"])

    @property
    def kind(self) -> RunKind:
        """What the run is; one from before there were trials is a full one."""
        found = self.read_run().get("kind", "full")
        return next((kind for kind in get_args(RunKind) if kind == found), "full")

    def read_trial(self) -> TrialReport | None:
        """What a trial found, None where it has found nothing, or the run is none.

        Raises:
            Conflict: the file is damaged.
        """
        if not self.trial_path.is_file():
            return None
        with damage_as_error(self.trial_path):
            return TrialReport.model_validate_json(self.trial_path.read_bytes())

    def read_config(self) -> RunConfig:
        """Stored settings.

        Raises:
            Conflict: the file is damaged, or of a version that this Ratchet does not read.
        """
        with damage_as_error(self.config_path):
            return RunConfig.model_validate_json(self.config_path.read_bytes())

    def read_run(self) -> dict[str, Any]:
        """What was fixed when the run was created and started.

        Raises:
            Conflict: the file is damaged.
        """
        with damage_as_error(self.run_path):
            record: dict[str, Any] = json.loads(self.run_path.read_bytes())
            if not isinstance(record["id"], str) or not isinstance(record["created_at"], str):
                raise ValueError("no run")
            return record

    def write_run(self, record: Mapping[str, Any]) -> None:
        """Replace what is fixed for the run."""
        write_atomically(self.run_path, json.dumps(record, indent=2).encode())

    def write_row_keys(self, keys: Iterable[bytes]) -> None:
        """Write what the rows that the run reads are known by: hashes of one length."""
        write_atomically(self.row_keys_path, b"".join(sorted(keys)), private=True)

    def read_row_keys(self, size: int) -> frozenset[bytes] | None:
        """What the rows that the run reads are known by, each of ``size`` bytes; None where nobody wrote it.

        Raises:
            Conflict: the file is damaged.
        """
        if not self.row_keys_path.is_file():
            return None
        with damage_as_error(self.row_keys_path):
            content = self.row_keys_path.read_bytes()
            if len(content) % size:
                raise ValueError("not whole")
            return frozenset(content[start : start + size] for start in range(0, len(content), size))

    def take_lock(self, inherited: int | None = None) -> int:
        """Take the run for this process or for one it starts; return the open file that holds it until it is closed.

        ``inherited`` is the open file in which a parent handed it down.

        Raises:
            Conflict: another process works on this run, or the folder cannot be written to.
            DiskFull: there is no room.
        """
        try:
            with disk_full_as_error(self.path):
                descriptor = run_lock.take(self.lock_path, inherited)
        except OSError as error:
            raise Conflict(f"The run folder {self.path} cannot be written to: {error.strerror or error}.") from error
        if descriptor is None:
            raise Conflict(f"Run {self.run_id} is already running in another process. Wait for it or stop it.")
        return descriptor

    @contextmanager
    def locked(self, inherited: int | None = None) -> Iterator[None]:
        """Hold the run for this process; the lock ends with the process, however it ends. Errors: ``take_lock``."""
        descriptor = self.take_lock(inherited)
        try:
            run_lock.write_holder(descriptor)
            yield
        finally:
            os.close(descriptor)

    def is_locked(self) -> bool:
        """Whether a process works on this run now. Writes nothing."""
        return run_lock.is_taken(self.lock_path)

    def holder(self) -> Process | None:
        """Process that works on this run, None where none does."""
        found = run_lock.holder(self.lock_path) if self.is_locked() else None
        return found if found is not None and found.is_alive() else None

    def ask_to_stop(self, by: str) -> None:
        """Ask the run to stop; whoever works on it, now or next, stops it cleanly.

        Raises:
            DiskFull: there is no room.
        """
        at = datetime.now(UTC).isoformat(timespec="seconds")
        write_atomically(self.stop_path, json.dumps({"at": at, "by": by}).encode())

    def journal_bytes(self) -> int:
        """Length of the journal, to see without reading it whether there is anything new."""
        try:
            return self.events_path.stat().st_size
        except OSError:
            return 0

    def append_event(self, event: _Event) -> _Event:
        """Append one event to the journal and sync it; return it. That of the end also on a full disk."""
        if isinstance(event, RunEnded):
            self._reserve_path.unlink(missing_ok=True)  # room was kept for it
        return append(self.events_path, event)

    def hold_reserve(self) -> None:
        """Keep a little room for the event that ends the run; without room for it the run does without."""
        with suppress(OSError):
            if not self._reserve_path.exists():
                with open(self._reserve_path, "wb", opener=own_opener) as file:
                    file.write(secrets.token_bytes(_RESERVE_BYTES))

    def events(self) -> Iterator[Event | UnknownEvent]:
        """Yield the events written so far; a torn last line is left out."""
        return (event for event, _ in read_from(self.events_path))

    def state(self) -> RunState:
        """What the journal adds up to.

        Raises:
            Conflict: it is damaged.
        """
        return read_state(self.events_path)

    def log(self, line: str) -> None:
        """Append a line, numbers only, to the run's log."""
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        rotate(self.log_path)
        with disk_full_as_error(self.path), open(self.log_path, "a", encoding="utf-8", opener=own_opener) as file:
            file.write(f"{stamp} {line}\n")

    def rollouts_file(self, number: int) -> Path:
        """Where the rollouts of a round are."""
        return self.rollouts_path / f"round-{number:03d}.jsonl"

    def tracker_state(self, tracker: str) -> Path:
        """File that says how far a tracker is; what it writes lies beside it."""
        return self.path / "trackers" / f"{tracker}.json"

    def write_rollouts(self, number: int, rows: Iterator[Mapping[str, Any]]) -> None:
        """Write a round's rollouts, one prompt a line, readable by the owner alone."""
        _write_rows(self.rollouts_file(number), rows)

    def write_heldout_before(self, rows: Iterator[Mapping[str, Any]]) -> None:
        """Write the starting adapter's answers to the held-out problems, readable by the owner alone."""
        _write_rows(self.heldout_before_path, rows)

    def write_heldout(self, rows: Iterator[Mapping[str, Any]]) -> None:
        """Write the kept adapter's answers to the held-out problems, readable by the owner alone."""
        _write_rows(self.heldout_path, rows)

    def read_rollouts(self, number: int) -> list[dict[str, Any]]:
        """A round's rollouts.

        Raises:
            NotFound: that round has none.
        """
        path = self.rollouts_file(number)
        if not path.is_file():
            kept = self._rounds_kept()
            known = f"Rounds with samples: {kept[0]} to {kept[-1]}." if kept else "No round has samples yet."
            if kept and 0 < number < kept[0]:
                known += " Older ones were removed, as the settings keep.* say."
            raise NotFound(f"There are no samples of round {number}. {known}")
        return _read_rows(path)

    def read_heldout(self) -> list[dict[str, Any]]:
        """Kept adapter's answers to the held-out problems.

        Raises:
            NotFound: they were not scored.
        """
        if not self.heldout_path.is_file():
            raise NotFound("The held-out problems of this run were not scored.")
        return _read_rows(self.heldout_path)

    def read_heldout_before(self) -> list[dict[str, Any]]:
        """Starting adapter's answers to the held-out problems, none where they were not scored."""
        return _read_rows(self.heldout_before_path) if self.heldout_before_path.is_file() else []

    def last_rollouts(self) -> int:
        """Last round that has rollouts.

        Raises:
            NotFound: none has.
        """
        kept = self._rounds_kept()
        if not kept:
            raise NotFound("No round of this run has samples yet.")
        return kept[-1]

    def _rounds_kept(self) -> list[int]:
        return sorted(self._rollout_files())

    def drop_rollouts_after(self, number: int) -> None:
        """Remove rollouts of rounds that never finished."""
        for kept, file in self._rollout_files().items():
            if kept > number:
                file.unlink()

    def rollouts_to_drop(self, keep: KeepSettings) -> list[int]:
        """Rounds whose rollouts are too many or too large together, oldest first; never the last one."""
        files = sorted(self._rollout_files().items())
        sizes = {number: file.stat().st_size for number, file in files}
        dropped: list[int] = []
        for number, _ in files[:-1]:
            is_many = keep.rollout_rounds is not None and len(sizes) > keep.rollout_rounds
            is_large = keep.rollout_megabytes is not None and sum(sizes.values()) > keep.rollout_megabytes * 1e6
            if not is_many and not is_large:
                break
            dropped.append(number)
            del sizes[number]
        return dropped

    def drop_rollouts(self, numbers: Iterable[int]) -> None:
        """Remove the rollouts of some rounds."""
        for number in numbers:
            self.rollouts_file(number).unlink(missing_ok=True)

    def oldest_rollouts(self, without: Iterable[int] = ()) -> int | None:
        """First round that has rollouts, leaving some rounds out; None where none has."""
        return min(self._rollout_files().keys() - set(without), default=None)

    def _rollout_files(self) -> dict[int, Path]:
        """Round -> its rollouts; files of other names are somebody else's."""
        found = {}
        for file in self.rollouts_path.glob("round-*.jsonl"):
            if match := re.fullmatch(r"round-([0-9]{1,9})", file.stem):
                found[int(match[1])] = file
        return found

    def stage_adapter(self, files: Mapping[str, bytes]) -> None:
        """Write the files of a new adapter beside ``adapter/``, so that putting it there needs no more room.

        Raises:
            DiskFull: there is no room; ``adapter/`` is as it was.
        """
        shutil.rmtree(self._staged_adapter_path, ignore_errors=True)
        try:
            with disk_full_as_error(self.path):
                self._staged_adapter_path.mkdir(0o755)
            for name, content in files.items():
                write_atomically(self._staged_adapter_path / name, content)
        except BaseException:
            shutil.rmtree(self._staged_adapter_path, ignore_errors=True)
            raise

    def holds_adapter(self, files: Mapping[str, bytes]) -> bool:
        """Whether ``adapter/`` is made of exactly these files."""
        try:
            return {file.name for file in self.adapter_path.iterdir()} == set(files) and all(
                (self.adapter_path / name).read_bytes() == content for name, content in files.items()
            )
        except OSError:
            return False

    def put_adapter(self) -> None:
        """Replace ``adapter/`` by the staged one.

        A kill leaves the old or the new folder, or, for an instant, neither; the checkpoint holds the same weights
        then, and a resume writes the folder again.
        """
        self._put(self._staged_adapter_path)

    def recover_adapter(self, is_best: Callable[[Path], bool]) -> None:
        """After a kill: put the first folder in place that holds the best adapter; leave all as they are if none does.

        A kill between checkpoint and ``put_adapter`` leaves it beside ``adapter/``.
        """
        for place in (self.adapter_path, self._staged_adapter_path, self._old_adapter_path):
            if is_best(place):
                if place != self.adapter_path:
                    self._put(place)
                return

    def _put(self, place: Path) -> None:
        old = self._old_adapter_path
        if place != old:
            shutil.rmtree(old, ignore_errors=True)
        with disk_full_as_error(self.path):
            if self.adapter_path.exists():
                self.adapter_path.rename(old)
            place.rename(self.adapter_path)
            sync_folder(self.path)
        shutil.rmtree(old, ignore_errors=True)


def _write_rows(path: Path, rows: Iterator[Mapping[str, Any]]) -> None:
    # A model may write half of a surrogate pair: kept as it is, since the samples show what was graded.
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with disk_full_as_error(path.parent):
        path.parent.mkdir(mode=0o700, exist_ok=True)  # someone may have made room by removing it
    write_atomically(path, "".join(lines).encode("utf-8", "surrogatepass"), private=True)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    # Not splitlines: it also splits at characters that JSON leaves unescaped.
    with damage_as_error(path):
        text = path.read_bytes().decode("utf-8", "surrogatepass")
        return [json.loads(line) for line in text.split("\n") if line]
