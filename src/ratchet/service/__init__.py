"""Use cases: the one door for every surface. Command line and Python call these; later surfaces will too.

A name's module is imported when the name is first used, so listing runs does not load what checks or starts one.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.service.runs.launching import Launch, create_and_queue, create_and_train, resume
    from ratchet.service.runs.registry import find_run
    from ratchet.service.runs.runs import (
        ListedRun,
        RunSummary,
        changed_samples,
        list_runs,
        run_health,
        samples,
        summary,
    )
    from ratchet.service.runs.scheduling import Queued, Stopping, queue_again, stop
    from ratchet.service.runs.start_checks import check_run
    from ratchet.service.runs.trials import Trial, changed_since, find_trial, run_trial, since_trial
    from ratchet.service.verification.report_gate import (
        AskToConfirm,
        Consent,
        Report,
        confirm,
        described,
        find_report,
        inspect,
        write_page,
    )

_MODULES = {
    "runs.launching": ("Launch", "create_and_queue", "create_and_train", "resume"),
    "runs.registry": ("find_run",),
    "runs.runs": ("ListedRun", "RunSummary", "changed_samples", "list_runs", "run_health", "samples", "summary"),
    "runs.scheduling": ("Queued", "Stopping", "queue_again", "stop"),
    "runs.start_checks": ("check_run",),
    "runs.trials": ("Trial", "changed_since", "find_trial", "run_trial", "since_trial"),
    "verification.report_gate": (
        "AskToConfirm",
        "Consent",
        "Report",
        "confirm",
        "described",
        "find_report",
        "inspect",
        "write_page",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AskToConfirm",
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


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"ratchet.service.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ratchet.service' has no attribute {name!r}")
