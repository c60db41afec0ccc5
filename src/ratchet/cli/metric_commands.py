"""``ratchet metric add | list | show | archive | try``."""

import json
from pathlib import Path
from typing import Any

import click

from ratchet.cli.train_commands import json_option

_REFERENCE = "NAME[@VERSION]"


def metric() -> click.Command:
    """Return the group."""
    file = click.Argument(["file"], metavar="FILE.py", type=click.Path(path_type=Path))
    return click.Group(
        "metric",
        help="Keep metrics of your own, score(answer, reference) from 0 to 1 in Python; they run in the sandbox.",
        commands=[
            click.Command(
                "add",
                callback=_add,
                help="Load FILE.py in the sandbox and keep it as the next version of a metric.",
                params=[file, click.Option(["--name"], required=True, help="Name of the metric."), json_option()],
            ),
            click.Command("list", callback=_list, help="List all versions of all metrics.", params=[json_option()]),
            click.Command(
                "show",
                callback=_show,
                help="Show a version and its source; without a version the newest active one.",
                params=[click.Argument(["reference"], metavar=_REFERENCE), json_option()],
            ),
            click.Command(
                "archive",
                callback=_archive,
                help="Archive a version, without a version the newest active one: new runs are refused it.",
                params=[click.Argument(["reference"], metavar=_REFERENCE), json_option()],
            ),
            click.Command(
                "try",
                callback=_try,
                help="Score the rows {answer, reference} of a file with FILE.py, without keeping it; --json prints a "
                "list of {score, outcome, failure}, in order.",
                params=[
                    file,
                    click.Option(["--rows"], required=True, type=click.Path(path_type=Path), help="File of rows."),
                    json_option(),
                ],
            ),
        ],
    )


def _add(file: Path, name: str, as_json: bool) -> None:
    from ratchet.service.verification import user_metrics

    added = user_metrics.add(file, name)
    if as_json:
        click.echo(json.dumps(_fields(added)))
        return
    kept = "Added" if added.is_new else "Already there:"
    click.echo(f"{kept} {added.name}@{added.version}" + ("" if added.is_active else ", which is archived"))


def _list(as_json: bool) -> None:
    from ratchet.service.verification import user_metrics

    found = user_metrics.list_metrics()
    if as_json:
        click.echo(json.dumps({"metrics": [_fields(one) for one in found]}))
        return
    if not found:
        click.echo("No metrics yet. Add one with ratchet metric add.")
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from ratchet.cli.console import console_for

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("metric", "state", "source", "characters", "created"):
        table.add_column(column, no_wrap=True)
    for one in found:
        state = "active" if one.is_active else "archived"
        length = f"{len(one.source):,}"
        created = f"{one.created_at:%Y-%m-%d %H:%M}"
        table.add_row(f"{one.name}@{one.version}", state, one.source_hash[:12], length, created)
    console_for(as_json).print(table)


def _show(reference: str, as_json: bool) -> None:
    from ratchet.service.verification import user_metrics

    found = user_metrics.show(reference)
    if as_json:
        click.echo(json.dumps({**_fields(found), "source": found.source}))
        return
    state = "active" if found.archived_at is None else f"archived {found.archived_at:%Y-%m-%d %H:%M} UTC"
    click.echo(f"{found.name}@{found.version}  {state}\nSource   {found.source_hash}")
    click.echo(f"Created  {found.created_at:%Y-%m-%d %H:%M} UTC\n\n{found.source}", nl=not found.source.endswith("\n"))


def _archive(reference: str, as_json: bool) -> None:
    from ratchet.service.verification import user_metrics

    archived = user_metrics.archive(reference)
    if as_json:
        click.echo(json.dumps(_fields(archived)))
    else:
        click.echo(f"Archived {archived.name}@{archived.version}: new runs are refused it, old ones keep it.")


def _try(file: Path, rows: Path, as_json: bool) -> None:
    from ratchet.service.verification import user_metrics

    tried = user_metrics.try_out(file, rows)
    if as_json:
        found = [{"score": one.score, "outcome": one.outcome, "failure": one.failure} for one in tried]
        click.echo(json.dumps(found))
        return
    for number, one in enumerate(tried, start=1):
        click.echo(f"row {number:>4}  {one.score:.4f}  {one.outcome}{f' ({one.failure})' if one.failure else ''}")
    failed = sum(one.outcome == "failed" for one in tried)
    mean = sum(one.score for one in tried) / len(tried)
    click.echo(f"{len(tried)} answers, {failed} failed, mean score {mean:.4f}")


def _fields(metric: Any) -> dict[str, Any]:
    """Return what machines are told of a version."""
    return {
        "name": metric.name,
        "version": metric.version,
        "source_hash": metric.source_hash,
        "state": "active" if metric.is_active else "archived",
        "created_at": metric.created_at.isoformat(timespec="seconds"),
        "archived_at": metric.archived_at.isoformat(timespec="seconds") if metric.archived_at else None,
        "is_new": metric.is_new,
    }
