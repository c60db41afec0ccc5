"""What training leads to: adapters, benchmarks, evaluations, experiments and loops.

The job that answers an evaluation's questions is a row of ``run``, which says how far it is. What a loop or an
experiment has started is told by ``run.owner``: nothing is counted twice.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from ratchet.store.models.column_types import LONGEST_ID, LONGEST_NAME, Base, UtcTime, one_of

BENCHMARK_SOURCES = ("dataset", "built_in", "bundle")
EVALUATION_SUBJECTS = ("base", "adapter", "merged", "endpoint")
EXPERIMENT_STATUSES = ("measuring", "training", "scoring", "done", "failed", "stopped")
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
    """What one evaluation is of, and what it found. ``scores`` is None until every question is graded."""

    __tablename__ = "evaluation"
    __table_args__ = (
        one_of("subject", EVALUATION_SUBJECTS),
        Index("ix_evaluation_benchmark_hash", "benchmark_hash"),
    )

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    benchmark: Mapped[str] = mapped_column(String(LONGEST_NAME))
    benchmark_hash: Mapped[str] = mapped_column(String(64))
    subject: Mapped[str] = mapped_column(String(20))
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    scores: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class Experiment(Base):
    """Baseline, training, evaluation and paired comparison as one thing. ``report`` is None until it is done."""

    __tablename__ = "experiment"
    __table_args__ = (
        one_of("status", EXPERIMENT_STATUSES),
        CheckConstraint("status <> 'done' OR report IS NOT NULL", name="report"),
        Index("ix_experiment_status", "status"),
        Index("ix_experiment_project", "project"),
    )

    id: Mapped[str] = mapped_column(String(LONGEST_ID), primary_key=True)
    project: Mapped[str] = mapped_column(String(LONGEST_NAME))
    name: Mapped[str] = mapped_column(String(LONGEST_NAME))
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(String(20))
    message: Mapped[str] = mapped_column(Text)
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)
    stop_requested_at: Mapped[datetime | None] = mapped_column(UtcTime)


class Loop(Base):
    """Repeated training and benchmarking. ``report`` is what it says at its end, None before."""

    __tablename__ = "loop"
    __table_args__ = (
        one_of("status", LOOP_STATUSES),
        Index("ix_loop_status", "status"),
        Index("ix_loop_project", "project"),
    )

    id: Mapped[str] = mapped_column(String(LONGEST_ID), primary_key=True)
    project: Mapped[str] = mapped_column(String(LONGEST_NAME))
    name: Mapped[str] = mapped_column(String(LONGEST_NAME))
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(String(20))
    message: Mapped[str] = mapped_column(Text)
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcTime)
    stop_requested_at: Mapped[datetime | None] = mapped_column(UtcTime)
