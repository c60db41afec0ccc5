"""The database: runs, adapters, versions of datasets and metrics. Rows of a dataset and weights are files, not here.

Importing this package loads SQLAlchemy; services import it when they need it.
"""

from ratchet.store.adapters import AdapterStore, StoredAdapter
from ratchet.store.database import Database, database_url
from ratchet.store.datasets import DatasetContent, DatasetStore, StoredDataset
from ratchet.store.metrics import MetricStore, StoredMetric
from ratchet.store.runs import RunStore, StoredRun

__all__ = [
    "AdapterStore",
    "Database",
    "DatasetContent",
    "DatasetStore",
    "MetricStore",
    "RunStore",
    "StoredAdapter",
    "StoredDataset",
    "StoredMetric",
    "StoredRun",
    "database_url",
]
