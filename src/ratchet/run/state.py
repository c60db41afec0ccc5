"""The state of a run: what its journal adds up to. The only reading of a journal; everybody else projects from it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ratchet.run.endings import RunStatus
from ratchet.run.events import (
    Answered,
    Event,
    HeldOut,
    Note,
    NotStarted,
    Planned,
    RoundDone,
    RunEnded,
    RunStarted,
    Saving,
    Scored,
    UnknownEvent,
)
from ratchet.run.records import RoundRecord


@dataclass(frozen=True)
class RunState:
    """What the events of a run so far add up to.

    Attributes:
        status: The status after the last event that sets one; None where none did.
        rounds: How many rounds are planned, of an evaluation how many questions; None until that is known.
        rounds_done: The last finished round, of an evaluation the questions answered; None before round 0 is scored.
        records: Of the finished rounds among these events, by number.
        start_accuracy: Of round 0, as ``start_loss``.
        best_accuracy: Of ``best_round``, as ``best_loss``.
        seconds: Active seconds: of the finished rounds, or as the last end has it.
        started_at: When the run was started first.
        ended: The event that ended the run since it was started last; None while it has not ended.
        ended_seconds: The most active seconds that an end has named, also one before a resume.
        artifacts_url: Where the artifact storage has files of the run, "" for nowhere.
        notes: In order; ``noted`` is what they are about.
        answered_seconds: Of all parts of an evaluation.
        refused: Why the last process did not work on the run; None where it did.
        session_started: When the last process started.
        session_seconds: By the clock, of the processes before the last one.
        last_at: When the last event was written.
    """

    status: RunStatus | None = None
    rounds: int | None = None
    rounds_done: int | None = None
    records: tuple[RoundRecord, ...] = ()
    best_round: int | None = None
    start_accuracy: float | None = None
    best_accuracy: float | None = None
    start_loss: float | None = None
    best_loss: float | None = None
    highest_reward: float | None = None
    heldout_before: float | None = None
    heldout_after: float | None = None
    seconds: float = 0.0
    started_at: datetime | None = None
    ended: RunEnded | None = None
    ended_seconds: float = 0.0
    artifacts_url: str = ""
    notes: tuple[str, ...] = ()
    noted: frozenset[str] = frozenset()
    answered_seconds: float = 0.0
    scores: dict[str, Any] | None = None
    refused: NotStarted | None = None
    session_started: datetime | None = None
    session_seconds: float = 0.0
    last_at: datetime | None = None

    @classmethod
    def fold(cls, events: Iterable[Event | UnknownEvent], state: "RunState | None" = None) -> "RunState":
        """State after some events.

        Args:
            events: In the order of the journal.
            state: The state before them; that of a new run by default.
        """
        folded = state or cls()
        for event in events:
            folded = folded._after(event)
        return folded

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended since it was started last."""
        return self.ended is not None

    @property
    def has_adapter(self) -> bool:
        """Whether the run ended and kept an adapter."""
        return self.ended is not None and self.ended.adapter_sha256 is not None

    def seconds_by_clock(self, until: datetime | None) -> float:
        """Seconds that processes have worked on the run; the last one until a moment, None for the last event."""
        if self.session_started is None:
            return self.session_seconds
        end = until or self.last_at or self.session_started
        return self.session_seconds + max(0.0, (end - self.session_started).total_seconds())

    def _after(self, event: Event | UnknownEvent) -> "RunState":
        at = event.time if event.at else self.last_at
        state = replace(self, last_at=at, refused=None)
        match event:
            case RunStarted():
                return replace(
                    state,
                    status="starting" if self.rounds_done is None else "training",
                    started_at=self.started_at or at,
                    ended=None,
                    session_started=at,
                    session_seconds=self.seconds_by_clock(None),
                )
            case Saving():
                return replace(state, status="saving")
            case NotStarted():
                return replace(state, refused=event)
            case RunEnded():
                return replace(
                    state,
                    status=event.status,
                    ended=event,
                    seconds=event.seconds,
                    ended_seconds=max(self.ended_seconds, event.seconds),
                    artifacts_url=event.artifacts or self.artifacts_url,
                )
        return state._with_finding(event)

    def _with_finding(self, event: Event | UnknownEvent) -> "RunState":
        """State after an event that neither starts nor ends anything."""
        match event:
            case Planned():
                return replace(self, rounds=event.rounds, highest_reward=event.highest_reward)
            case RoundDone():
                return self._with_round(event.record)
            case Answered():
                seconds = self.answered_seconds + event.seconds
                done = replace(self, rounds=event.of, rounds_done=event.done)
                return replace(done, status="training", answered_seconds=seconds)
            case HeldOut(when="before"):
                return replace(self, heldout_before=event.accuracy)
            case HeldOut():
                return replace(self, heldout_after=event.accuracy)
            case Note():
                noted = self.noted if event.about is None else self.noted | {event.about}
                return replace(self, notes=(*self.notes, event.text), noted=noted)
            case Scored():
                return replace(self, scores=event.scores)
        return self

    def _with_round(self, record: RoundRecord) -> "RunState":
        validation = record.validation
        earlier = [one for one in self.records if one.round < record.round]  # a resumed run writes its last one again
        is_new = self.rounds_done is None or record.round > self.rounds_done
        is_best, is_start = record.best_round == record.round, record.round == 0
        return replace(
            self,
            status="training",
            rounds_done=record.round,
            records=(*earlier, record),
            best_round=record.best_round,
            best_accuracy=record.best_accuracy,
            best_loss=validation.loss if is_best else self.best_loss,
            start_accuracy=validation.accuracy if is_start else self.start_accuracy,
            start_loss=validation.loss if is_start else self.start_loss,
            seconds=self.seconds + record.seconds.total * is_new,
        )
