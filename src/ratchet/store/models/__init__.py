"""The tables, by subject: data and metrics, runs, and what training leads to.

Written for SQLite and PostgreSQL alike: plain types, and every constraint has a name, which migrations need.
"""

from ratchet.store.models.column_types import LONGEST_NAME, Base
from ratchet.store.models.data_tables import Dataset, DatasetVersion, Metric, MetricVersion
from ratchet.store.models.result_tables import Adapter, Benchmark, Evaluation, Experiment, Loop
from ratchet.store.models.run_tables import Run, RunRound

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
