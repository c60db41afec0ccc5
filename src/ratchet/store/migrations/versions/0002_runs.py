"""Runs and their rounds."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_STATUSES = "'draft', 'queued', 'starting', 'training', 'saving', 'completed', 'stopped_early', 'failed', 'cancelled'"
_ENDINGS = (
    "'all_rounds', 'target', 'nothing_left', 'time_limit', 'cost_limit', 'stopped', 'metric_failures', "
    "'out_of_memory', 'stalled', 'disk_full', 'sampler_failed', 'sandbox_unavailable', 'not_finite', "
    "'no_learning_signal', 'error'"
)


def upgrade() -> None:
    """Make both tables."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "run",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=True),
        sa.Column("created_at", moment, nullable=False),
        *(sa.Column(name, moment, nullable=True) for name in ("queued_at", "started_at", "ended_at")),
        sa.Column("ending", sa.String(40), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=True) for name in ("rounds", "rounds_done", "best_round")),
        *(
            sa.Column(name, sa.Double(), nullable=True)
            for name in ("start_accuracy", "best_accuracy", "start_loss", "best_loss")
        ),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("adapter_sha256", sa.String(64), nullable=True),
        sa.Column("source_run", sa.String(40), nullable=True),
        sa.Column("source_relation", sa.String(20), nullable=True),
        sa.Column("confirmation", sa.JSON(), nullable=True),
        sa.Column("is_kept", sa.Boolean(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("slot", sa.String(40), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("process_started", sa.Double(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("journal_offset", sa.BigInteger(), nullable=False),
        sa.Column("stop_requested_at", moment, nullable=True),
        sa.Column("artifacts_url", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.ForeignKeyConstraint(["source_run"], ["run.id"], name="fk_run_source_run_run"),
        sa.UniqueConstraint("folder", name="uq_run_folder"),
        sa.CheckConstraint("kind IN ('full', 'trial')", name="kind"),
        sa.CheckConstraint(f"status IN ({_STATUSES})", name="status"),
        sa.CheckConstraint(f"ending IN ({_ENDINGS})", name="ending"),
        sa.CheckConstraint("source_relation IN ('retry', 'duplicate', 'continue', 'trial')", name="source_relation"),
        sa.CheckConstraint("(source_run IS NULL) = (source_relation IS NULL)", name="source"),
        sa.CheckConstraint("status = 'draft' OR folder IS NOT NULL", name="folder"),
    )
    op.create_index("ix_run_status", "run", ["status"])
    op.create_index("ix_run_project", "run", ["project"])
    op.create_table(
        "run_round",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "number", name="pk_run_round"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_run_round_run_id_run", ondelete="CASCADE"),
    )
