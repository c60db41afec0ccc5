"""The database: runs, and which versions of datasets and metrics there are. Rows of a dataset are files, not here.

Importing this package loads SQLAlchemy; services import it when they need it.
"""

from ratchet.store.database import Database, database_url
from ratchet.store.datasets import DatasetContent, DatasetStore, StoredDataset
from ratchet.store.metrics import MetricStore, StoredMetric
from ratchet.store.runs import RunStore, StoredRun

__all__ = [
    "Database",
    "DatasetContent",
    "DatasetStore",
    "MetricStore",
    "RunStore",
    "StoredDataset",
    "StoredMetric",
    "StoredRun",
    "database_url",
]
