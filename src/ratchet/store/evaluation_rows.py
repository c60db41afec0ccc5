"""Evaluations in the database: what each is of, and its scores. The job of one is a run, see ``run_rows.py``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from ratchet.store.database import Database
from ratchet.store.schema import EvaluationRow, RunRow


@dataclass(frozen=True)
class StoredEvaluation:
    """One evaluation: ``run`` is the job's id, ``spec`` what it is of, ``scores`` what it found, None until then."""

    run: str
    benchmark_hash: str
    spec: dict[str, Any]
    scores: dict[str, Any] | None


def evaluation_row(run: str, spec: Mapping[str, Any]) -> EvaluationRow:
    """The row of a new evaluation; ``spec`` is an ``EvaluationSpec`` as JSON."""
    return EvaluationRow(
        run_id=run,
        benchmark=spec["benchmark"],
        benchmark_hash=spec["benchmark_hash"],
        subject=spec["subject"]["kind"],
        spec=dict(spec),
        scores=None,
    )


def enter_scores(session: Session, run: str, scores: Mapping[str, Any]) -> None:
    """Enter what an evaluation found."""
    session.execute(sa.update(EvaluationRow).where(EvaluationRow.run_id == run).values(scores=dict(scores)))


class EvaluationStore:
    """All evaluations, by their jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self, benchmark_hash: str | None = None) -> dict[str, StoredEvaluation]:
        """Job -> evaluation, oldest first, those on one benchmark if asked."""
        query = (
            sa.select(EvaluationRow)
            .join(RunRow, RunRow.id == EvaluationRow.run_id)
            .order_by(RunRow.created_at, RunRow.id)
        )
        if benchmark_hash is not None:
            query = query.where(EvaluationRow.benchmark_hash == benchmark_hash)
        return self._database.read(lambda session: {one.run_id: _stored(one) for one in session.scalars(query)})


def _stored(row: EvaluationRow) -> StoredEvaluation:
    return StoredEvaluation(
        row.run_id, row.benchmark_hash, dict(row.spec), None if row.scores is None else dict(row.scores)
    )
