"""What outlives a run's folder: the database (runs, adapters, versions of datasets and metrics) and stored artifacts.

Rows of a dataset and weights are files, not in the database. Importing this package loads nothing; its names load
SQLAlchemy when they are first asked for. ``artifact_store`` is imported by itself and loads fsspec instead.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.store.adapter_rows import AdapterStore as AdapterStore
    from ratchet.store.adapter_rows import StoredAdapter as StoredAdapter
    from ratchet.store.database import Database as Database
    from ratchet.store.database import database_url as database_url
    from ratchet.store.run_rows import RunStore as RunStore
    from ratchet.store.run_rows import StoredRun as StoredRun
    from ratchet.store.version_rows import DatasetContent as DatasetContent
    from ratchet.store.version_rows import DatasetStore as DatasetStore
    from ratchet.store.version_rows import MetricStore as MetricStore
    from ratchet.store.version_rows import StoredDataset as StoredDataset
    from ratchet.store.version_rows import StoredMetric as StoredMetric

_HOMES = {
    "AdapterStore": "adapter_rows",
    "Database": "database",
    "DatasetContent": "version_rows",
    "DatasetStore": "version_rows",
    "MetricStore": "version_rows",
    "RunStore": "run_rows",
    "StoredAdapter": "adapter_rows",
    "StoredDataset": "version_rows",
    "StoredMetric": "version_rows",
    "StoredRun": "run_rows",
    "database_url": "database",
}
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


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"ratchet.store.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ratchet.store' has no attribute {name!r}")
