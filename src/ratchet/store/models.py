"""The tables. A version is never changed once it is there; the one thing that moves is whether a metric is archived.

Written for SQLite and PostgreSQL alike: plain types, and every constraint has a name, which migrations need.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, DateTime, Dialect, ForeignKey, MetaData, String, Text, TypeDecorator, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

_NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
LONGEST_NAME = 100  # characters, of a dataset or a metric


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
        """Return the moment with its zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=_NAMES)


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
