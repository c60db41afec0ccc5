"""Evaluations as jobs of the keeper, and who started a run; experiments and loops that are told by what they started.

The tables that are dropped have never held a row: nothing filled them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_NEVER_FILLED = ("loop_round", "loop", "experiment_evaluation", "experiment", "evaluation")
_EXPERIMENT = "'measuring', 'training', 'scoring', 'done', 'failed', 'stopped'"
_LOOP = "'queued', 'training', 'benchmarking', 'target_reached', 'rounds_spent', 'plateaued', 'failed', 'stopped'"


def upgrade() -> None:
    """Let runs be evaluations and have an owner, and make the tables anew that follow from it."""
    for table in _NEVER_FILLED:
        op.drop_table(table)
    with op.batch_alter_table("run") as run:
        run.drop_constraint(op.f("ck_run_kind"), type_="check")
        run.create_check_constraint(op.f("ck_run_kind"), "kind IN ('full', 'trial', 'evaluation')")
        run.add_column(sa.Column("owner", sa.String(100), nullable=True))
        run.create_unique_constraint(op.f("uq_run_owner"), ["owner"])
    op.create_table(
        "evaluation",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("benchmark", sa.String(100), nullable=False),
        sa.Column("benchmark_hash", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(20), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("scores", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name="pk_evaluation"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_evaluation_run_id_run", ondelete="CASCADE"),
        sa.CheckConstraint("subject IN ('base', 'adapter', 'merged', 'endpoint')", name="subject"),
    )
    op.create_index("ix_evaluation_benchmark_hash", "evaluation", ["benchmark_hash"])
    _plan("experiment", _EXPERIMENT, sa.CheckConstraint("status <> 'done' OR report IS NOT NULL", name="report"))
    _plan("loop", _LOOP)


def _plan(table: str, statuses: str, *constraints: sa.CheckConstraint) -> None:
    """Make a table of what is carried out in steps."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        table,
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("project", sa.String(100), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("ended_at", moment, nullable=True),
        sa.Column("stop_requested_at", moment, nullable=True),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
        sa.CheckConstraint(f"status IN ({statuses})", name="status"),
        *constraints,
    )
    op.create_index(f"ix_{table}_status", table, ["status"])
    op.create_index(f"ix_{table}_project", table, ["project"])
