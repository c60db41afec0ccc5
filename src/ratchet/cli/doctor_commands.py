"""``ratchet doctor``: what this machine can do, and what to install where it cannot."""

import json
from typing import TYPE_CHECKING

import click

from ratchet.cli import EXIT_TASK
from ratchet.cli.train_commands import json_option

if TYPE_CHECKING:
    from ratchet.service.doctor import MachineReport

_WIDTH = 17


def doctor() -> click.Command:
    """Return the command."""
    return click.Command(
        "doctor",
        callback=_doctor,
        help="Show what this machine can do: torch and device, memory, disk, and whether the sandbox works in which "
        "custom metrics and code rewards run. Exits with 0 if the sandbox works, else with 4.",
        params=[json_option()],
    )


def _doctor(as_json: bool) -> int:
    from ratchet.service.doctor import examine

    report = examine()
    if as_json:
        click.echo(json.dumps(report.as_record()))
    else:
        for name, text in _lines(report):
            click.echo(f"{name:<{_WIDTH}}{text}")
    return 0 if report.sandbox.ok else EXIT_TASK


def _lines(report: "MachineReport") -> list[tuple[str, str]]:
    torch = report.torch
    lines = [
        ("Ratchet", report.ratchet),
        ("Python", report.python),
        ("System", report.system),
        ("torch", torch.problem or f"{torch.version}, computes on {torch.device}"),
        ("Memory", f"{_gigabytes(report.memory_bytes)}, {_gigabytes(report.memory_free_bytes)} of it free"),
        ("Disk", f"{_gigabytes(report.disk_free_bytes)} free for {report.home}"),
        ("Sandbox", _sandbox(report)),
        ("Metric packages", _metric_packages(report)),
    ]
    for extra, is_installed in report.extras.items():
        lines.append((f"Extra {extra}", "installed" if is_installed else f"missing: pip install 'ratchet-rl[{extra}]'"))
    return lines


def _sandbox(report: "MachineReport") -> str:
    if report.sandbox.ok:
        return f"works; metrics run under {report.sandbox_python}"
    refused = "Until then custom metrics and code rewards are refused; everything else works. Exit code 4 says so."
    return f"does not work: {report.sandbox.reason} {report.sandbox.remedy} {refused}"


def _metric_packages(report: "MachineReport") -> str:
    environment = report.metric_environment
    if environment.problem:
        return environment.problem
    if environment.folder is None:
        return "the standard library alone (RATCHET_METRIC_ENV is not set)"
    return f"{', '.join(environment.packages) or 'none'} in {environment.folder}"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
