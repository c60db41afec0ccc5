"""What all tables are built from: the base with the names of constraints, moments in UTC, texts out of a fixed list."""

from collections.abc import Iterable
from datetime import UTC, datetime

from sqlalchemy import CheckConstraint, DateTime, Dialect, MetaData, TypeDecorator
from sqlalchemy.orm import DeclarativeBase

_NAMES = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
LONGEST_NAME = 100  # characters, of a dataset, a metric or a project
LONGEST_ID = 40


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


def one_of(column: str, values: Iterable[str]) -> CheckConstraint:
    """Return the constraint that a text column holds one of these words. Words of ours alone: they are not escaped."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)
