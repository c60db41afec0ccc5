"""What a run reports while it goes on: the events of its journal as types, phases and progress, and who listens.

An event is one line of ``events.jsonl`` (``journal.py``); what the events of a run add up to is ``state.py``. A new
event is a class here and a case in ``RunState``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ratchet.run.endings import Ending, RunStatus
from ratchet.run.records import Outcome, RoundRecord, RunResult

# What a run is doing, as messages and displays word it. The first eight come before round 0.
PHASE_WORDS: dict["RunPhase", str] = {
    "starting": "starting",
    "checking": "checking settings and data",
    "loading": "loading the model",
    "asking_endpoint": "asking the endpoint for its models",
    "scoring_heldout": "scoring the held-out problems",
    "scoring_start": "scoring the starting adapter",
    "inspecting": "sampling answers for the report",
    "probing": "trying adversarial answers on the verifier",
    "sampling": "sampling answers",
    "grading": "grading the last answers",
    "updating": "updating the adapter",
    "training": "training the adapter",
    "scoring": "scoring",
    "scored": "storing the round",
    "uploading": "uploading files",
    "saving": "saving",
    "ended": "ending",
}
RunPhase = Literal[
    "starting",
    "checking",
    "loading",
    "asking_endpoint",
    "scoring_heldout",
    "scoring_start",
    "inspecting",
    "probing",
    "sampling",
    "grading",
    "updating",
    "training",
    "scoring",
    "scored",
    "uploading",
    "saving",
    "ended",
]
# Phase, how much of it is done, and of how much; 0 of 0 where nobody can tell.
OnProgress = Callable[[RunPhase, int, int], None]


class JournalEvent(BaseModel):
    """Base of all events. ``seq`` and ``at`` are set when the event is written to the journal."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)

    event: str
    seq: int = 0
    at: str = ""

    @property
    def time(self) -> datetime:
        """When it was written. ValueError for an event that was not."""
        return datetime.fromisoformat(self.at)

    def fields(self) -> dict[str, Any]:
        """The event's own fields as the journal holds them: those that were given, in the order of the class."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        return {
            name: value.model_dump() if isinstance(value, BaseModel) else value
            for name, value in given.items()
            if name not in ("event", "seq", "at")
        }


class RunStarted(JournalEvent):
    """A process has begun to work on the run; ``resumed`` from a checkpoint."""

    event: Literal["started"] = "started"
    run: str = ""
    resumed: bool = False


class Planned(JournalEvent):
    """How many rounds there will be; of an evaluation, how many questions."""

    event: Literal["planned"] = "planned"
    rounds: int
    prompts: int | None = None
    highest_reward: float | None = None


class RoundDone(JournalEvent):
    """A round is finished and on disk."""

    event: Literal["round"] = "round"
    record: RoundRecord


class HeldOut(JournalEvent):
    """Score of the held-out problems: before training, or with the kept adapter."""

    event: Literal["heldout"] = "heldout"
    when: Literal["before", "after"]
    accuracy: float
    prompts: int = 0
    outcomes: dict[Outcome, int] = {}


class Note(JournalEvent):
    """Something the user should know. A note ``about`` something is written once in a run."""

    event: Literal["note"] = "note"
    text: str
    about: str | None = None


class Answered(JournalEvent):
    """A part of an evaluation's questions is answered and on disk."""

    event: Literal["answered"] = "answered"
    done: int
    of: int
    seconds: float


class Scored(JournalEvent):
    """Scores of an evaluation, as ``evaluation.EvaluationScores`` in JSON."""

    event: Literal["scored"] = "scored"
    scores: dict[str, Any]


class TrialDone(JournalEvent):
    """Report of a trial, as ``run.trial_report.TrialReport`` in JSON."""

    event: Literal["trial"] = "trial"
    report: dict[str, Any]


class Saving(JournalEvent):
    """The rounds are over; the kept adapter is scored and packaged."""

    event: Literal["saving"] = "saving"


class NotStarted(JournalEvent):
    """A process refused to work on the run. The run is what it was."""

    event: Literal["refused"] = "refused"
    message: str
    ending: Ending = "error"


class RunEnded(JournalEvent):
    """How the run ended. ``artifacts`` is where the artifact storage has files of it, "" for nowhere."""

    event: Literal["ended"] = "ended"
    status: RunStatus
    ending: Ending
    message: str
    rounds_done: int | None = None
    best_round: int | None = None
    start_accuracy: float | None = None
    best_accuracy: float | None = None
    start_loss: float | None = None
    best_loss: float | None = None
    heldout_before: float | None = None
    heldout_after: float | None = None
    highest_reward: float | None = None
    seconds: float = 0.0
    cost: float | None = None
    currency: str | None = None
    adapter_sha256: str | None = None
    artifacts: str = ""

    @classmethod
    def of(cls, result: RunResult, adapter_sha256: str | None, artifacts: str | None = None) -> "RunEnded":
        """Event of a result, with the checksum of the kept adapter."""
        ended = cls(**result.model_dump(exclude={"run", "folder", "adapter"}), adapter_sha256=adapter_sha256)
        return ended if artifacts is None else ended.model_copy(update={"artifacts": artifacts})

    def result(self, run: str, folder: Path, adapter: Path) -> RunResult:
        """Result of the run that ended so."""
        kept = str(adapter) if self.adapter_sha256 else None
        return RunResult(run=run, folder=str(folder), adapter=kept, **self.model_dump(exclude=_NOT_OF_A_RESULT))


_NOT_OF_A_RESULT = {"event", "seq", "at", "adapter_sha256", "artifacts"}


class UnknownEvent(JournalEvent):
    """An event of a newer version: kept, and skipped by every reader."""

    model_config = ConfigDict(extra="allow")

    event: str


Event = (
    RunStarted | Planned | RoundDone | HeldOut | Note | Answered | Scored | TrialDone | Saving | NotStarted | RunEnded
)
_EVENT: TypeAdapter[Event] = TypeAdapter(
    Annotated[Event, Field(discriminator="event")], config=ConfigDict(defer_build=True)
)
_KNOWN = {one.model_fields["event"].default for one in get_args(Event)}


def parse_event(row: Mapping[str, Any]) -> Event | UnknownEvent:
    """Event of a line of the journal.

    Raises:
        ValueError, LookupError, TypeError: the line is no event.
    """
    if row["event"] not in _KNOWN:
        return UnknownEvent.model_validate(row)
    event = _EVENT.validate_python(row)
    if not event.at:
        raise ValueError("an event without its time")
    return event


def _ignore(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Listener:
    """Whom a worker tells how its run goes. Any function may be left out.

    Attributes:
        on_event: Called with each event once it is in the journal.
        on_progress: Called with the phase and how much of it is done.
        on_hard_end: Called with the event that ended the run where the process is about to exit because the run hangs.
    """

    on_event: Callable[[Event], None] = _ignore
    on_progress: OnProgress = _ignore
    on_hard_end: Callable[[RunEnded], None] = _ignore
