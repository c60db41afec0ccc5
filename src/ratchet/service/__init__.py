"""Use cases: the one door for every surface. Command line and Python call these; later surfaces will too."""

from ratchet.service.health import run_health
from ratchet.service.queueing import Queued, Stopping, queue_again, stop
from ratchet.service.readiness import check_run
from ratchet.service.registry import find_run
from ratchet.service.reports import Ask, Consent, Report, confirm, described, find_report, inspect, write_page
from ratchet.service.runs import (
    Launch,
    ListedRun,
    RunSummary,
    changed_samples,
    create_and_queue,
    create_and_train,
    list_runs,
    resume,
    samples,
    summary,
)

__all__ = [
    "Ask",
    "Consent",
    "Launch",
    "ListedRun",
    "Queued",
    "Report",
    "RunSummary",
    "Stopping",
    "changed_samples",
    "check_run",
    "confirm",
    "create_and_queue",
    "create_and_train",
    "described",
    "find_report",
    "find_run",
    "inspect",
    "list_runs",
    "queue_again",
    "resume",
    "run_health",
    "samples",
    "stop",
    "summary",
    "write_page",
]
