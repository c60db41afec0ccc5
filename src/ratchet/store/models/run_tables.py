"""Runs and their rounds. What a run wrote is in its folder; this is what lists, the keeper and the pages ask for."""

from datetime import datetime
from typing import Any, get_args

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.run.endings import Ending, RunStatus
from ratchet.run.records import RunKind, RunRelation
from ratchet.store.models.column_types import LONGEST_ID, LONGEST_NAME, Base, UtcTime, one_of


class Run(Base):
    """One training job. Only the keeper and whoever works on the run inline write what its journal says."""

    __tablename__ = "run"
    __table_args__ = (
        one_of("kind", get_args(RunKind)),
        one_of("status", get_args(RunStatus)),
        one_of("ending", get_args(Ending)),
        one_of("source_relation", get_args(RunRelation)),
        CheckConstraint("(source_run IS NULL) = (source_relation IS NULL)", name="source"),
        CheckConstraint("status = 'draft' OR folder IS NOT NULL", name="folder"),
        Index("ix_run_status", "status"),
        Index("ix_run_project", "project"),
    )

    id: Mapped[str] = mapped_column(String(LONGEST_ID), primary_key=True)
    project: Mapped[str] = mapped_column(String(LONGEST_NAME))
    kind: Mapped[str] = mapped_column(String(20))
    status: Mapped[str] = mapped_column(String(20))
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    folder: Mapped[str | None] = mapped_column(Text, unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    queued_at: Mapped[datetime | None] = mapped_column(UtcTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)
    ending: Mapped[str | None] = mapped_column(String(40))
    message: Mapped[str] = mapped_column(Text)
    rounds: Mapped[int | None]
    rounds_done: Mapped[int | None]
    best_round: Mapped[int | None]
    start_accuracy: Mapped[float | None]
    best_accuracy: Mapped[float | None]
    start_loss: Mapped[float | None]
    best_loss: Mapped[float | None]
    seconds: Mapped[float]
    adapter_sha256: Mapped[str | None] = mapped_column(String(64))
    source_run: Mapped[str | None] = mapped_column(ForeignKey("run.id"))
    source_relation: Mapped[str | None] = mapped_column(String(20))
    confirmation: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    is_kept: Mapped[bool]
    host: Mapped[str] = mapped_column(Text)
    slot: Mapped[str] = mapped_column(String(40))
    pid: Mapped[int | None]
    process_started: Mapped[float | None]
    attempts: Mapped[int]
    journal_offset: Mapped[int] = mapped_column(BigInteger)
    stop_requested_at: Mapped[datetime | None] = mapped_column(UtcTime)
    artifacts_url: Mapped[str] = mapped_column(Text)
    owner: Mapped[str | None] = mapped_column(String(LONGEST_NAME), unique=True)


class RunRound(Base):
    """What one finished round reported: a ``RoundRecord`` as JSON, numbers only. Round 0 is the starting adapter."""

    __tablename__ = "run_round"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    record: Mapped[dict[str, Any]] = mapped_column(JSON)
