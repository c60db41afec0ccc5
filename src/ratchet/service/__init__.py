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
from ratchet.service.trials import Trial, changed_since, find_trial, run_trial, since_trial

__all__ = [
    "Ask",
    "Consent",
    "Launch",
    "ListedRun",
    "Queued",
    "Report",
    "RunSummary",
    "Stopping",
    "Trial",
    "changed_samples",
    "changed_since",
    "check_run",
    "confirm",
    "create_and_queue",
    "create_and_train",
    "described",
    "find_report",
    "find_run",
    "find_trial",
    "inspect",
    "list_runs",
    "queue_again",
    "resume",
    "run_health",
    "run_trial",
    "samples",
    "since_trial",
    "stop",
    "summary",
    "write_page",
]
