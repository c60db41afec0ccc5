"""The tables, by subject: data and metrics, runs, and what training leads to.

Written for SQLite and PostgreSQL alike: plain types, and every constraint has a name, which migrations need.
"""

from ratchet.store.models.columns import LONGEST_NAME, Base
from ratchet.store.models.data import Dataset, DatasetVersion, Metric, MetricVersion
from ratchet.store.models.results import (
    Adapter,
    Benchmark,
    Evaluation,
    Experiment,
    Loop,
)
from ratchet.store.models.runs import Run, RunRound

__all__ = [
    "LONGEST_NAME",
    "Adapter",
    "Base",
    "Benchmark",
    "Dataset",
    "DatasetVersion",
    "Evaluation",
    "Experiment",
    "Loop",
    "Metric",
    "MetricVersion",
    "Run",
    "RunRound",
]
