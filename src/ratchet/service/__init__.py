"""Use cases: the one door for every surface. Command line and Python call these; later surfaces will too."""

from ratchet.service.runs.registry import find_run
from ratchet.service.runs.run_health import run_health
from ratchet.service.runs.runs import (
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
from ratchet.service.runs.scheduling import Queued, Stopping, queue_again, stop
from ratchet.service.runs.start_checks import check_run
from ratchet.service.runs.trials import Trial, changed_since, find_trial, run_trial, since_trial
from ratchet.service.verification.report_gate import (
    Ask,
    Consent,
    Report,
    confirm,
    described,
    find_report,
    inspect,
    write_page,
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
