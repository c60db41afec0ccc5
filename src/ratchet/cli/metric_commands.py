"""``ratchet metric add | list | show | archive | try``."""

from pathlib import Path
from typing import Any

import click

from ratchet.cli.options import PATH, json_option
from ratchet.cli.output import emit, table
from ratchet.service.verification import user_metrics

_DIGITS = 12
_file = click.argument("file", metavar="FILE.py", type=PATH)
_reference = click.argument("reference", metavar="NAME[@VERSION]")


@click.group
def metric() -> None:
    """Add metrics of your own, score(answer, reference) from 0 to 1 in Python; they run in the sandbox."""


@metric.command
@_file
@click.option("--name", required=True, help="Name of the metric.")
@json_option
def add(file: Path, name: str, as_json: bool) -> None:
    """Load FILE.py in the sandbox and store it as the next version of a metric."""
    added = user_metrics.add(file, name)
    archived = "" if added.is_active else ", which is archived"
    text = f"{'Added' if added.is_new else 'Already there:'} {added.name}@{added.version}{archived}"
    emit(as_json, _fields(added), text)


@metric.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List all versions of all metrics."""
    found = user_metrics.list_metrics()
    rows = []
    for one in found:
        state = "active" if one.is_active else "archived"
        size, created = f"{len(one.source):,}", f"{one.created_at:%Y-%m-%d %H:%M}"
        rows.append([f"{one.name}@{one.version}", state, one.source_hash[:_DIGITS], size, created])
    columns = ("metric", "state", "source", "characters", "created")
    shown = table(*columns, rows=rows) if found else "No metrics yet. Add one with ratchet metric add."
    emit(as_json, {"metrics": [_fields(one) for one in found]}, shown)


@metric.command
@_reference
@json_option
def show(reference: str, as_json: bool) -> None:
    """Show a version and its source; without a version the newest active one."""
    found = user_metrics.show(reference)
    state = "active" if found.archived_at is None else f"archived {found.archived_at:%Y-%m-%d %H:%M} UTC"
    text = (
        f"{found.name}@{found.version}  {state}\nSource   {found.source_hash}\n"
        f"Created  {found.created_at:%Y-%m-%d %H:%M} UTC\n\n{found.source.removesuffix(chr(10))}"
    )
    emit(as_json, {**_fields(found), "source": found.source}, text)


@metric.command
@_reference
@json_option
def archive(reference: str, as_json: bool) -> None:
    """Archive a version, by default the newest active one: new runs cannot use it."""
    archived = user_metrics.archive(reference)
    text = f"Archived {archived.name}@{archived.version}: new runs cannot use it, existing runs keep it."
    emit(as_json, _fields(archived), text)


@metric.command("try")
@_file
@click.option("--rows", required=True, type=PATH, help="File of rows.")
@json_option
def try_(file: Path, rows: Path, as_json: bool) -> None:
    """Score the rows {answer, reference} of a file with FILE.py, without storing it.

    --json prints a list of {score, outcome, failure}, in order.
    """
    tried = user_metrics.try_out(file, rows)
    lines = [
        f"row {number:>4}  {one.score:.4f}  {one.outcome}{f' ({one.failure})' if one.failure else ''}"
        for number, one in enumerate(tried, start=1)
    ]
    failed = sum(one.outcome == "failed" for one in tried)
    mean = sum(one.score for one in tried) / len(tried)
    lines.append(f"{len(tried)} answers, {failed} failed, mean score {mean:.4f}")
    fields = [{"score": one.score, "outcome": one.outcome, "failure": one.failure} for one in tried]
    emit(as_json, fields, "\n".join(lines))


def _fields(metric: Any) -> dict[str, Any]:
    return {
        "name": metric.name,
        "version": metric.version,
        "source_hash": metric.source_hash,
        "state": "active" if metric.is_active else "archived",
        "created_at": metric.created_at.isoformat(timespec="seconds"),
        "archived_at": metric.archived_at.isoformat(timespec="seconds") if metric.archived_at else None,
        "is_new": metric.is_new,
    }
