"""Adapters, benchmarks, evaluations, experiments and loops."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables, those that others point to first."""
    _adapter()
    _benchmark()
    _evaluation()
    _experiment()
    _loop()


def _key(table: str, column: str, to: str, ondelete: str | None = None) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_{column}_{to}"
    return sa.ForeignKeyConstraint([column], [f"{to}.id"], name=name, ondelete=ondelete)


def _moment(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str, length: int | None = None, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.String(length) if length else sa.Text(), nullable=nullable)


def _adapter() -> None:
    op.create_table(
        "adapter",
        sa.Column("id", sa.Integer(), nullable=False),
        _text("run_id", 40, nullable=True),
        _text("base_model"),
        _text("revision"),
        _text("sha256", 64),
        _text("folder", nullable=True),
        _text("url"),
        _moment("created_at"),
        sa.PrimaryKeyConstraint("id", name="pk_adapter"),
        _key("adapter", "run_id", "run"),
        sa.UniqueConstraint("run_id", name="uq_adapter_run_id"),
        sa.CheckConstraint("folder IS NOT NULL OR url <> ''", name="place"),
    )


def _benchmark() -> None:
    op.create_table(
        "benchmark",
        sa.Column("id", sa.Integer(), nullable=False),
        _text("name", 100),
        _text("source", 20),
        sa.Column("dataset_version_id", sa.Integer(), nullable=True),
        sa.Column("metric_version_id", sa.Integer(), nullable=True),
        _text("content_hash", 64),
        sa.Column("harness", sa.JSON(), nullable=False),
        sa.Column("verifier", sa.JSON(), nullable=False),
        sa.Column("score_columns", sa.JSON(), nullable=False),
        _moment("created_at"),
        sa.PrimaryKeyConstraint("id", name="pk_benchmark"),
        _key("benchmark", "dataset_version_id", "dataset_version"),
        _key("benchmark", "metric_version_id", "metric_version"),
        sa.UniqueConstraint("name", name="uq_benchmark_name"),
        sa.CheckConstraint("source IN ('dataset', 'built_in', 'bundle')", name="source"),
        sa.CheckConstraint("(source = 'dataset') = (dataset_version_id IS NOT NULL)", name="dataset"),
    )


def _evaluation() -> None:
    op.create_table(
        "evaluation",
        _text("id", 40),
        _text("project", 100),
        sa.Column("benchmark_id", sa.Integer(), nullable=False),
        _text("subject", 20),
        _text("model"),
        _text("revision"),
        sa.Column("adapter_id", sa.Integer(), nullable=True),
        _text("status", 20),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("scores", sa.JSON(), nullable=True),
        _text("message"),
        _text("folder", nullable=True),
        _moment("created_at"),
        _moment("started_at", nullable=True),
        _moment("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_evaluation"),
        _key("evaluation", "benchmark_id", "benchmark"),
        _key("evaluation", "adapter_id", "adapter"),
        sa.UniqueConstraint("folder", name="uq_evaluation_folder"),
        sa.CheckConstraint("subject IN ('base', 'adapter', 'merged', 'endpoint')", name="subject"),
        sa.CheckConstraint(
            "status IN ('queued', 'starting', 'scoring', 'completed', 'failed', 'cancelled')", name="status"
        ),
        sa.CheckConstraint("subject <> 'adapter' OR adapter_id IS NOT NULL", name="adapter"),
        sa.CheckConstraint("status <> 'completed' OR scores IS NOT NULL", name="scores"),
    )
    op.create_index("ix_evaluation_status", "evaluation", ["status"])
    op.create_index("ix_evaluation_project", "evaluation", ["project"])


def _experiment() -> None:
    op.create_table(
        "experiment",
        _text("id", 40),
        _text("name", 100),
        _text("status", 20),
        sa.Column("settings", sa.JSON(), nullable=False),
        _text("sft_run_id", 40, nullable=True),
        _text("run_id", 40, nullable=True),
        sa.Column("verdicts", sa.JSON(), nullable=True),
        _text("message"),
        _moment("created_at"),
        _moment("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_experiment"),
        _key("experiment", "sft_run_id", "run"),
        _key("experiment", "run_id", "run"),
        sa.CheckConstraint(
            "status IN ('measuring', 'training', 'scoring', 'done', 'failed', 'stopped')", name="status"
        ),
        sa.CheckConstraint("status <> 'done' OR verdicts IS NOT NULL", name="verdicts"),
    )
    op.create_table(
        "experiment_evaluation",
        _text("experiment_id", 40),
        _text("evaluation_id", 40),
        _text("side", 20),
        sa.PrimaryKeyConstraint("experiment_id", "evaluation_id", "side", name="pk_experiment_evaluation"),
        _key("experiment_evaluation", "experiment_id", "experiment", "CASCADE"),
        _key("experiment_evaluation", "evaluation_id", "evaluation"),
        sa.CheckConstraint("side IN ('base', 'sft', 'before', 'after')", name="side"),
    )


def _loop() -> None:
    op.create_table(
        "loop",
        _text("id", 40),
        _text("project", 100),
        _text("name", 100),
        _text("source_run", 40),
        sa.Column("benchmark_id", sa.Integer(), nullable=False),
        _text("score_column", 100),
        sa.Column("target", sa.Double(), nullable=True),
        sa.Column("max_rounds", sa.Integer(), nullable=False),
        sa.Column("rounds_without_gain", sa.Integer(), nullable=False),
        sa.Column("reclaims_storage", sa.Boolean(), nullable=False),
        _text("status", 20),
        _text("message"),
        _moment("created_at"),
        *(_moment(name, nullable=True) for name in ("started_at", "ended_at", "stop_requested_at")),
        sa.PrimaryKeyConstraint("id", name="pk_loop"),
        _key("loop", "source_run", "run"),
        _key("loop", "benchmark_id", "benchmark"),
        sa.CheckConstraint(
            "status IN ('queued', 'training', 'benchmarking', 'target_reached', 'rounds_spent', 'plateaued', "
            "'failed', 'stopped')",
            name="status",
        ),
        sa.CheckConstraint("target >= 0 AND target <= 100", name="target"),
        sa.CheckConstraint("max_rounds >= 1", name="max_rounds"),
        sa.CheckConstraint("rounds_without_gain >= 1", name="rounds_without_gain"),
    )
    op.create_index("ix_loop_status", "loop", ["status"])
    op.create_index("ix_loop_project", "loop", ["project"])
    op.create_table(
        "loop_round",
        _text("loop_id", 40),
        sa.Column("number", sa.Integer(), nullable=False),
        _text("run_id", 40, nullable=True),
        _text("evaluation_id", 40, nullable=True),
        sa.Column("score", sa.Double(), nullable=True),
        _moment("created_at"),
        _moment("ended_at", nullable=True),
        sa.PrimaryKeyConstraint("loop_id", "number", name="pk_loop_round"),
        _key("loop_round", "loop_id", "loop", "CASCADE"),
        _key("loop_round", "run_id", "run"),
        _key("loop_round", "evaluation_id", "evaluation"),
        sa.UniqueConstraint("run_id", name="uq_loop_round_run_id"),
        sa.UniqueConstraint("evaluation_id", name="uq_loop_round_evaluation_id"),
        sa.CheckConstraint("(number = 0) = (run_id IS NULL)", name="start"),
    )
