"""Use cases: the one door for every surface. Command line and Python call these; later surfaces will too."""

from ratchet.service.health import run_health
from ratchet.service.readiness import check_run
from ratchet.service.reports import Ask, Consent, Report, confirm, described, find_report, inspect, write_page
from ratchet.service.runs import (
    Launch,
    RunSummary,
    changed_samples,
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
    "Report",
    "RunSummary",
    "changed_samples",
    "check_run",
    "confirm",
    "create_and_train",
    "described",
    "find_report",
    "inspect",
    "list_runs",
    "resume",
    "run_health",
    "samples",
    "summary",
    "write_page",
]
