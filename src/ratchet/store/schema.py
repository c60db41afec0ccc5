"""The tables: what lists, the scheduler and pages ask for. What a run or a version consists of is in its folder.

Written for SQLite and PostgreSQL alike: plain types, and every constraint has a name, which migrations need. Words out
of a fixed list (statuses, endings) are checked in code, so that a new one needs no migration.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    ForeignKey,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

_CONSTRAINT_NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
_NAME, _ID, _WORD, _SHA256 = String(100), String(40), String(40), String(64)


class UtcTime(TypeDecorator[datetime]):
    """A moment in UTC. SQLite keeps no time zone, so it is put back on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a time without zone: nobody could say which moment it is."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without time zone cannot be stored")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Put the zone back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=_CONSTRAINT_NAMES)


class VersionRow(Base):
    """One version of a dataset, metric or benchmark (``kind``), found by its name and number or by its content.

    ``content`` is what the kind's store makes of it. It never changes; a version can be archived.
    """

    __tablename__ = "version"
    __table_args__ = (UniqueConstraint("kind", "name", "number"), UniqueConstraint("kind", "name", "content_hash"))

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(_WORD)
    name: Mapped[str] = mapped_column(_NAME)
    number: Mapped[int]
    content_hash: Mapped[str] = mapped_column(_SHA256)
    content: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    archived_at: Mapped[datetime | None] = mapped_column(UtcTime)


class RunRow(Base):
    """One job. Only the scheduler and whoever works on the run inline write what its journal says."""

    __tablename__ = "run"
    __table_args__ = (
        CheckConstraint("(source_run IS NULL) = (source_relation IS NULL)", name="source"),
        CheckConstraint("status = 'draft' OR folder IS NOT NULL", name="folder"),
    )

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    project: Mapped[str] = mapped_column(_NAME, index=True)
    kind: Mapped[str] = mapped_column(_WORD)
    status: Mapped[str] = mapped_column(_WORD, index=True)
    config: Mapped[dict[str, Any]] = mapped_column(JSON)
    folder: Mapped[str | None] = mapped_column(Text, unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    queued_at: Mapped[datetime | None] = mapped_column(UtcTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)
    ending: Mapped[str | None] = mapped_column(_WORD)
    message: Mapped[str] = mapped_column(Text)
    rounds: Mapped[int | None]
    rounds_done: Mapped[int | None]
    best_round: Mapped[int | None]
    start_accuracy: Mapped[float | None]
    best_accuracy: Mapped[float | None]
    start_loss: Mapped[float | None]
    best_loss: Mapped[float | None]
    seconds: Mapped[float]
    adapter_sha256: Mapped[str | None] = mapped_column(_SHA256)
    source_run: Mapped[str | None] = mapped_column(ForeignKey("run.id"))
    source_relation: Mapped[str | None] = mapped_column(_WORD)
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
    owner: Mapped[str | None] = mapped_column(_NAME, unique=True)


class RoundRow(Base):
    """What one finished round reported: a ``RoundRecord`` as JSON, numbers only. Round 0 is the starting adapter."""

    __tablename__ = "run_round"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    record: Mapped[dict[str, Any]] = mapped_column(JSON)


class AdapterRow(Base):
    """LoRA weights: those that a run kept, or imported ones, which have no run. ``sha256`` is of the weights file."""

    __tablename__ = "adapter"
    __table_args__ = (CheckConstraint("folder IS NOT NULL OR url <> ''", name="place"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str | None] = mapped_column(ForeignKey("run.id"), unique=True)
    base_model: Mapped[str] = mapped_column(Text)
    revision: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(_SHA256)
    folder: Mapped[str | None] = mapped_column(Text)
    url: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class EvaluationRow(Base):
    """What one evaluation is of, and its scores: None until every question is graded. Its job is a row of ``run``."""

    __tablename__ = "evaluation"

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    benchmark: Mapped[str] = mapped_column(_NAME)
    benchmark_hash: Mapped[str] = mapped_column(_SHA256, index=True)
    subject: Mapped[str] = mapped_column(_WORD)
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    scores: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class _JobColumns:
    """Columns of a loop and of an experiment. Their runs name them in ``run.owner``: nothing is counted twice."""

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    project: Mapped[str] = mapped_column(_NAME, index=True)
    name: Mapped[str] = mapped_column(_NAME)
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(_WORD, index=True)
    message: Mapped[str] = mapped_column(Text)
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)
    stop_requested_at: Mapped[datetime | None] = mapped_column(UtcTime)


class ExperimentRow(_JobColumns, Base):
    """Baseline, training, evaluation and paired comparison as one thing. ``report`` is None until it is done."""

    __tablename__ = "experiment"
    __table_args__ = (CheckConstraint("status <> 'done' OR report IS NOT NULL", name="report"),)


class LoopRow(_JobColumns, Base):
    """Repeated training and benchmarking. ``report`` is None until it ends."""

    __tablename__ = "loop"
