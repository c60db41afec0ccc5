"""What training leads to: adapters, benchmarks, evaluations, experiments and loops.

Only adapters have a store so far; the other tables wait for the parts that will fill them.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.store.models.columns import LONGEST_ID, LONGEST_NAME, Base, UtcTime, one_of

BENCHMARK_SOURCES = ("dataset", "built_in", "bundle")
EVALUATION_SUBJECTS = ("base", "adapter", "merged", "endpoint")
EVALUATION_STATUSES = ("queued", "starting", "scoring", "completed", "failed", "cancelled")
EXPERIMENT_STATUSES = ("measuring", "training", "scoring", "done", "failed", "stopped")
EXPERIMENT_SIDES = ("base", "sft", "before", "after")
LOOP_STATUSES = (
    "queued",
    "training",
    "benchmarking",
    "target_reached",
    "rounds_spent",
    "plateaued",
    "failed",
    "stopped",
)


class Adapter(Base):
    """LoRA weights: those that a run kept, or imported ones, which have no run. ``sha256`` is of the weights file."""

    __tablename__ = "adapter"
    __table_args__ = (CheckConstraint("folder IS NOT NULL OR url <> ''", name="place"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str | None] = mapped_column(ForeignKey("run.id"), unique=True)
    base_model: Mapped[str] = mapped_column(Text)
    revision: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(String(64))
    folder: Mapped[str | None] = mapped_column(Text)
    url: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class Benchmark(Base):
    """Test prompts with how they are asked, how answers are checked, and which score columns that gives."""

    __tablename__ = "benchmark"
    __table_args__ = (
        one_of("source", BENCHMARK_SOURCES),
        CheckConstraint("(source = 'dataset') = (dataset_version_id IS NOT NULL)", name="dataset"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(LONGEST_NAME), unique=True)
    source: Mapped[str] = mapped_column(String(20))
    dataset_version_id: Mapped[int | None] = mapped_column(ForeignKey("dataset_version.id"))
    metric_version_id: Mapped[int | None] = mapped_column(ForeignKey("metric_version.id"))
    content_hash: Mapped[str] = mapped_column(String(64))
    harness: Mapped[dict[str, Any]] = mapped_column(JSON)
    verifier: Mapped[dict[str, Any]] = mapped_column(JSON)
    score_columns: Mapped[list[str]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class Evaluation(Base):
    """One model on one benchmark. ``scores`` is None until every question is graded."""

    __tablename__ = "evaluation"
    __table_args__ = (
        one_of("subject", EVALUATION_SUBJECTS),
        one_of("status", EVALUATION_STATUSES),
        CheckConstraint("subject <> 'adapter' OR adapter_id IS NOT NULL", name="adapter"),
        CheckConstraint("status <> 'completed' OR scores IS NOT NULL", name="scores"),
        Index("ix_evaluation_status", "status"),
        Index("ix_evaluation_project", "project"),
    )

    id: Mapped[str] = mapped_column(String(LONGEST_ID), primary_key=True)
    project: Mapped[str] = mapped_column(String(LONGEST_NAME))
    benchmark_id: Mapped[int] = mapped_column(ForeignKey("benchmark.id"))
    subject: Mapped[str] = mapped_column(String(20))
    model: Mapped[str] = mapped_column(Text)
    revision: Mapped[str] = mapped_column(Text)
    adapter_id: Mapped[int | None] = mapped_column(ForeignKey("adapter.id"))
    status: Mapped[str] = mapped_column(String(20))
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    scores: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    message: Mapped[str] = mapped_column(Text)
    folder: Mapped[str | None] = mapped_column(Text, unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)


class Experiment(Base):
    """Baseline, training, evaluation and paired comparison as one thing. ``verdicts`` is None until it is done."""

    __tablename__ = "experiment"
    __table_args__ = (
        one_of("status", EXPERIMENT_STATUSES),
        CheckConstraint("status <> 'done' OR verdicts IS NOT NULL", name="verdicts"),
    )

    id: Mapped[str] = mapped_column(String(LONGEST_ID), primary_key=True)
    name: Mapped[str] = mapped_column(String(LONGEST_NAME))
    status: Mapped[str] = mapped_column(String(20))
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    sft_run_id: Mapped[str | None] = mapped_column(ForeignKey("run.id"))
    run_id: Mapped[str | None] = mapped_column(ForeignKey("run.id"))
    verdicts: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    message: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)


class ExperimentEvaluation(Base):
    """Which evaluation stands on which side of an experiment's comparisons; one may serve several experiments."""

    __tablename__ = "experiment_evaluation"
    __table_args__ = (one_of("side", EXPERIMENT_SIDES),)

    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiment.id", ondelete="CASCADE"), primary_key=True)
    evaluation_id: Mapped[str] = mapped_column(ForeignKey("evaluation.id"), primary_key=True)
    side: Mapped[str] = mapped_column(String(20), primary_key=True)


class Loop(Base):
    """Repeated training and benchmarking. ``target`` is in percent of the score column, None without one."""

    __tablename__ = "loop"
    __table_args__ = (
        one_of("status", LOOP_STATUSES),
        CheckConstraint("target >= 0 AND target <= 100", name="target"),
        CheckConstraint("max_rounds >= 1", name="max_rounds"),
        CheckConstraint("rounds_without_gain >= 1", name="rounds_without_gain"),
        Index("ix_loop_status", "status"),
        Index("ix_loop_project", "project"),
    )

    id: Mapped[str] = mapped_column(String(LONGEST_ID), primary_key=True)
    project: Mapped[str] = mapped_column(String(LONGEST_NAME))
    name: Mapped[str] = mapped_column(String(LONGEST_NAME))
    source_run: Mapped[str] = mapped_column(ForeignKey("run.id"))
    benchmark_id: Mapped[int] = mapped_column(ForeignKey("benchmark.id"))
    score_column: Mapped[str] = mapped_column(String(LONGEST_NAME))
    target: Mapped[float | None]
    max_rounds: Mapped[int]
    rounds_without_gain: Mapped[int]
    reclaims_storage: Mapped[bool]
    status: Mapped[str] = mapped_column(String(20))
    message: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)
    stop_requested_at: Mapped[datetime | None] = mapped_column(UtcTime)


class LoopRound(Base):
    """One round of a loop: a whole run and its benchmark. Round 0 benchmarks the start and has no run."""

    __tablename__ = "loop_round"
    __table_args__ = (
        CheckConstraint("(number = 0) = (run_id IS NULL)", name="start"),
        UniqueConstraint("run_id"),
        UniqueConstraint("evaluation_id"),
    )

    loop_id: Mapped[str] = mapped_column(ForeignKey("loop.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run_id: Mapped[str | None] = mapped_column(ForeignKey("run.id"))
    evaluation_id: Mapped[str | None] = mapped_column(ForeignKey("evaluation.id"))
    score: Mapped[float | None]
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)
