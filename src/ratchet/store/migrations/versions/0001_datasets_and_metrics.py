"""Datasets and metrics with their versions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the first four tables."""
    for name in ("dataset", "metric"):
        op.create_table(
            name,
            sa.Column("id", sa.Integer(), nullable=False),
            sa.Column("name", sa.String(100), nullable=False),
            sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
            sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
            sa.UniqueConstraint("name", name=f"uq_{name}_name"),
        )
    op.create_table(
        "dataset_version",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("dataset_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("content_hash", sa.String(64), nullable=False),
        sa.Column("format", sa.String(20), nullable=False),
        sa.Column("column_map", sa.JSON(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("train_rows", sa.Integer(), nullable=False),
        sa.Column("validation_rows", sa.Integer(), nullable=False),
        sa.Column("test_rows", sa.Integer(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_dataset_version"),
        sa.ForeignKeyConstraint(["dataset_id"], ["dataset.id"], name="fk_dataset_version_dataset_id_dataset"),
        sa.UniqueConstraint("dataset_id", "number", name="uq_dataset_version_dataset_id_number"),
        sa.UniqueConstraint("dataset_id", "content_hash", name="uq_dataset_version_dataset_id_content_hash"),
    )
    op.create_table(
        "metric_version",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("metric_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("source_hash", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_metric_version"),
        sa.ForeignKeyConstraint(["metric_id"], ["metric.id"], name="fk_metric_version_metric_id_metric"),
        sa.UniqueConstraint("metric_id", "number", name="uq_metric_version_metric_id_number"),
        sa.UniqueConstraint("metric_id", "source_hash", name="uq_metric_version_metric_id_source_hash"),
    )
