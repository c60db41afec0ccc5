"""``ratchet runs health``, and the same as part of ``ratchet runs show``. Rendering alone."""

import json
from typing import TYPE_CHECKING

import click

from ratchet.cli.train_commands import json_option

if TYPE_CHECKING:
    from rich.console import Console

    from ratchet.run.health import Health
    from ratchet.stats import Trend

_SHARES = ("reward", "accuracy", "validation accuracy", "watch metric", "validation watch metric")


def health() -> click.Command:
    """Return the command."""
    return click.Command(
        "health",
        callback=_health,
        help="Say what a run's curves show: what is wrong, by which numbers, what to do, and where each curve went.",
        params=[click.Argument(["run_or_folder"]), json_option()],
    )


def _health(run_or_folder: str, as_json: bool) -> None:
    from ratchet import service
    from ratchet.cli.console import console_for

    summary = service.summary(run_or_folder)
    found = service.run_health(summary)
    if as_json:
        click.echo(json.dumps({"run": summary.run, **found.model_dump(mode="json")}))
        return
    print_health(console_for(as_json), found)


def print_health(console: "Console", health: "Health") -> None:
    """Print diagnoses and trends."""
    from rich.text import Text

    for one in health.diagnoses:
        console.print(Text.assemble((one.title, "bold red"), f". {one.evidence} {one.remedy}"), soft_wrap=False)
    if health.too_early:
        console.print(Text(health.too_early, style="dim"), soft_wrap=False)
    elif not health.diagnoses:
        console.print("Health   nothing found", markup=False)
    for name, trend in health.trends.items():
        console.print(_line(name, trend), markup=False, highlight=False)


def _line(name: str, trend: "Trend") -> str:
    """Return a curve's line: where it began and ended, which way it went, and its peak."""

    def shown(value: float) -> str:
        if name in _SHARES:
            return f"{value:.1%}"
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3f}"

    went = f"{shown(trend.early)} -> {shown(trend.late)}"
    peak = f"peak {shown(trend.peak)} in round {trend.peak_round}"
    return f"{name[0].upper() + name[1:]:<24} {trend.direction:<8} {went:<18} {peak}"
