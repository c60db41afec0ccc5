"""``ratchet doctor``: what this machine can do, and what to install where it cannot."""

import click

from ratchet.cli.faults import EXIT_TASK
from ratchet.cli.options import json_option
from ratchet.cli.output import console_for, emit
from ratchet.service.doctor import MachineReport, examine

_WIDTH = 20


@click.command
@json_option
def doctor(as_json: bool) -> int:
    """Show what this machine can do.

    Torch and device, memory, disk, and whether the sandbox works, in which custom metrics and code rewards run. The
    exit code is 0 if the sandbox works, else 4.
    """
    with console_for(as_json=True).status("") as status:
        report = examine(lambda what: status.update(f"Checking {what} ..."))
    emit(as_json, report.as_record(), "\n".join(f"{name:<{_WIDTH}}{text}" for name, text in _lines(report)))
    return 0 if report.sandbox.ok else EXIT_TASK


def _lines(report: MachineReport) -> list[tuple[str, str]]:
    torch = report.torch
    lines = [
        ("Ratchet", report.ratchet),
        ("Python", report.python),
        ("System", report.system),
        ("torch", torch.problem or f"{torch.version}, on {torch.device}"),
        ("Memory", f"{_gigabytes(report.memory_bytes)}, {_gigabytes(report.memory_free_bytes)} of it free"),
        ("Disk", f"{_gigabytes(report.disk_free_bytes)} free for {report.home}"),
        ("Sandbox", _sandbox(report)),
        ("Metric packages", _metric_packages(report)),
    ]
    for extra, is_installed in report.extras.items():
        lines.append((f"Extra {extra}", "installed" if is_installed else f"missing: pip install 'ratchet-rl[{extra}]'"))
    return lines


def _sandbox(report: MachineReport) -> str:
    if report.sandbox.ok:
        memory = "the memory of programs is measured, and what could not be measured is denied to them"
        return f"works; metrics run under {report.sandbox_python}; {memory}"
    refused = "Until then custom metrics and code rewards are refused; everything else works. The exit code is 4."
    return f"does not work: {report.sandbox.reason} {report.sandbox.remedy} {refused}"


def _metric_packages(report: MachineReport) -> str:
    environment = report.metric_environment
    if environment.problem:
        return environment.problem
    if environment.folder is None:
        return "only the standard library (RATCHET_METRIC_ENV is not set)"
    return f"{', '.join(environment.packages) or 'none'} in {environment.folder}"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
