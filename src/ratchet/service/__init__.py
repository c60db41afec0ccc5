"""Use cases: the one door for every surface. Command line and Python call these; later surfaces will too."""

from ratchet.service.readiness import check_run
from ratchet.service.runs import (
    RunSummary,
    changed_samples,
    create_and_train,
    list_runs,
    resume,
    samples,
    summary,
)

__all__ = [
    "RunSummary",
    "changed_samples",
    "check_run",
    "create_and_train",
    "list_runs",
    "resume",
    "samples",
    "summary",
]
