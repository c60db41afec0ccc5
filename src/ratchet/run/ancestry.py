"""Where the adapter that a run starts from comes from: its run, that run's own start, and so on back to the base model.

Also the copy of it that a new run takes into its own folder, so that it never depends on the source being there later.
Reads run folders by path; what may be started from at all is decided in ``readiness/start_adapter.py``.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.config import RunConfig, StartSettings
from ratchet.errors import Conflict
from ratchet.files import damage_as_error
from ratchet.models.adapter_files import ADAPTER_FILES, ADAPTER_WEIGHTS
from ratchet.run.journal import read_state
from ratchet.run.records import Record

ADAPTER_FOLDER = "adapter"
START_FOLDER = "start"
_DIGITS_SHOWN = 12


class Ancestor(Record):
    """An adapter that something started from.

    ``run`` is "" for an imported one, of which ``objective``, ``round`` and ``accuracy`` (of that round, on its run's
    validation sample) are not known either. ``model`` fingerprints the base model; ``start`` is what it started from.
    """

    sha256: str
    folder: str
    run: str = ""
    objective: str = ""
    round: int | None = None
    accuracy: float | None = None
    model: str = ""
    start: "Ancestor | None" = None

    def line(self) -> Iterator["Ancestor"]:
        """Yield this one, what it started from, and so on."""
        yield self
        if self.start is not None:
            yield from self.start.line()

    @property
    def words(self) -> str:
        """What it is called in a sentence."""
        if not self.run:
            return f"the imported adapter {self.folder}, sha256 {self.sha256[:_DIGITS_SHOWN]}"
        score = "" if self.accuracy is None else f", {self.accuracy:.1%} on its validation sample"
        number = "its starting adapter" if self.round == 0 else f"round {self.round}"
        return f"run {self.run} ({self.objective}), {number}, sha256 {self.sha256[:_DIGITS_SHOWN]}{score}"


@dataclass(frozen=True)
class Start:
    """An adapter as it is copied into the folder of a new run, and where it comes from."""

    files: Mapping[str, bytes]
    origin: Ancestor


def start_of(settings: StartSettings) -> Start | None:
    """Read the adapter that a run starts from, None where that is a new one.

    Raises:
        Conflict: it is not, or no longer, the adapter that the settings name by its checksum.
    """
    if settings.adapter is None:
        return None
    path = Path(settings.adapter)
    with damage_as_error(path):
        files = {name: (path / name).read_bytes() for name in ADAPTER_FILES}
    refuse_changed(path, hashlib.sha256(files[ADAPTER_WEIGHTS]).hexdigest(), settings.sha256)
    return Start(files, origin_of(path, settings))


def refuse_changed(path: Path, sha256: str, expected: str) -> None:
    """Refuse an adapter whose weights are not those that were meant.

    Raises:
        Conflict: the checksums differ.
    """
    if not expected:
        raise ValueError("the settings' start is not resolved")
    if sha256 != expected:
        raise Conflict(
            f"The adapter in {path} is not the one that was meant: its checksum is {sha256[:_DIGITS_SHOWN]}... and "
            f"should be {expected[:_DIGITS_SHOWN]}.... It was changed or damaged since. Take a whole copy, "
            "or start from another adapter."
        )


def origin_of(path: Path, settings: StartSettings) -> Ancestor:
    """Origin of an adapter: the run named in the settings, whose folder it lies in, or an import.

    The copy that a run took of its own start comes from where that run's record says.

    Raises:
        Conflict: one of the run's files is damaged.
    """
    if path.name == START_FOLDER and (path.parent / "run.json").is_file():
        with damage_as_error(path.parent):
            return Ancestor.model_validate(json.loads((path.parent / "run.json").read_bytes())["start"])
    found = Ancestor(sha256=settings.sha256, folder=str(path))
    return found if not settings.run else found.model_copy(update=of_run(path.parent))


def of_run(folder: Path) -> dict[str, Any]:
    """Fields of an ``Ancestor`` for the adapter in a run's folder.

    Raises:
        Conflict: one of the run's files is damaged.
    """
    with damage_as_error(folder):
        record = json.loads((folder / "run.json").read_bytes())
        config = RunConfig.model_validate_json((folder / "config.json").read_bytes())
        start = Ancestor.model_validate(record["start"]) if "start" in record else None
    end = read_state(folder / "events.jsonl").ended
    return {
        "run": record["id"],
        "objective": config.objective,
        "round": end.best_round if end else None,
        "accuracy": end.best_accuracy if end else None,
        "model": record.get("fixed", {}).get("model_identity", ""),
        "start": start,
    }
