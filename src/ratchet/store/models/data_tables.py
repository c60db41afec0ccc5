"""Datasets and metrics with their versions.

A version is never changed once it is there; the one thing that moves is whether a metric is archived.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from ratchet.store.models.column_types import LONGEST_NAME, Base, UtcTime


class Dataset(Base):
    """A name for the versions of a dataset."""

    __tablename__ = "dataset"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(LONGEST_NAME), unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class DatasetVersion(Base):
    """One content of a dataset; its rows are the files of the folder that ``content_hash`` names."""

    __tablename__ = "dataset_version"
    __table_args__ = (UniqueConstraint("dataset_id", "number"), UniqueConstraint("dataset_id", "content_hash"))

    id: Mapped[int] = mapped_column(primary_key=True)
    dataset_id: Mapped[int] = mapped_column(ForeignKey("dataset.id"))
    number: Mapped[int]
    content_hash: Mapped[str] = mapped_column(String(64))
    format: Mapped[str] = mapped_column(String(20))
    column_map: Mapped[dict[str, Any]] = mapped_column(JSON)
    origin: Mapped[str] = mapped_column(Text)
    train_rows: Mapped[int]
    validation_rows: Mapped[int]
    test_rows: Mapped[int]
    seed: Mapped[int | None]
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    dataset: Mapped[Dataset] = relationship()


class Metric(Base):
    """A name for the versions of a metric."""

    __tablename__ = "metric"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(LONGEST_NAME), unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcTime)


class MetricVersion(Base):
    """One source text of a metric; active until it is archived."""

    __tablename__ = "metric_version"
    __table_args__ = (UniqueConstraint("metric_id", "number"), UniqueConstraint("metric_id", "source_hash"))

    id: Mapped[int] = mapped_column(primary_key=True)
    metric_id: Mapped[int] = mapped_column(ForeignKey("metric.id"))
    number: Mapped[int]
    source: Mapped[str] = mapped_column(Text)
    source_hash: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcTime)
    archived_at: Mapped[datetime | None] = mapped_column(UtcTime)
    metric: Mapped[Metric] = relationship()
