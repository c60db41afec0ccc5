"""``ratchet runs list | show | health | samples``."""

import json
from typing import Any

import click

from ratchet.cli.health import health
from ratchet.cli.train import json_option


def runs() -> click.Command:
    """Return the group."""
    return click.Group(
        "runs",
        help="List runs, show one and its health, read its samples.",
        commands=[
            click.Command("list", callback=_list, help="List all runs, newest last.", params=[json_option()]),
            click.Command(
                "show",
                callback=_show,
                help="Show a run: its rounds and how it ended; with --json all settings too.",
                params=[click.Argument(["run_or_folder"]), json_option()],
            ),
            health(),
            click.Command(
                "samples",
                callback=_samples,
                help="Read what the model answered in a round.",
                params=[
                    click.Argument(["run_or_folder"]),
                    click.Option(
                        ["--round", "number"],
                        type=click.IntRange(min=0),
                        help="Round; the last by default. 0: held-out.",
                    ),
                    click.Option(["--prompts"], type=click.IntRange(min=1), default=3, help="How many prompts (3)."),
                    click.Option(["--whole"], is_flag=True, help="Do not shorten long texts."),
                    json_option(),
                ],
            ),
        ],
    )


def _list(as_json: bool) -> None:
    from ratchet import service

    found = service.list_runs()
    if as_json:
        click.echo(json.dumps({"runs": [_fields(summary) for summary in found]}))
        return
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from ratchet.cli.console import console_for

    if not found:
        click.echo("No runs yet. Start one with ratchet demo.")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("run", "status", "model", "data", "rounds", "start", "best"):
        table.add_column(column, no_wrap=column != "model", overflow="fold")
    for summary in found:
        records = summary.records
        start = f"{records[0].validation.accuracy:.1%}" if records else ""
        best = f"{records[-1].best_accuracy:.1%}" if records else ""
        done = f"{records[-1].round if records else 0} / {summary.config.rl.rounds}"
        status = summary.status.replace("_", " ")
        config = summary.config
        cells = [summary.run, status, config.model, config.data.source, done, start, best]
        table.add_row(*map(escape, cells))
    console_for(as_json).print(table)


def _show(run_or_folder: str, as_json: bool) -> None:
    from ratchet import service

    summary = service.summary(run_or_folder)
    if as_json:
        rounds = [record.model_dump(mode="json") for record in summary.records]
        fields = {**_fields(summary), "config": summary.config.model_dump(mode="json"), "rounds": rounds}
        click.echo(json.dumps({**fields, "health": service.run_health(summary).model_dump(mode="json")}))
        return
    from ratchet.cli.console import console_for
    from ratchet.cli.health import print_health
    from ratchet.cli.report import print_summary

    console = console_for(as_json)
    print_summary(console, summary)
    if summary.records:
        print_health(console, service.run_health(summary))


def _samples(run_or_folder: str, number: int | None, prompts: int, whole: bool, as_json: bool) -> None:
    from ratchet import service

    title, rows = service.samples(run_or_folder, number)
    if as_json:
        click.echo(json.dumps({"title": title, "prompts": rows[:prompts]}))
        return
    from ratchet.cli.console import console_for
    from ratchet.cli.report import print_samples

    print_samples(console_for(as_json), title, rows[:prompts], answers=32, whole=whole)


def _fields(summary: Any) -> dict[str, Any]:
    from ratchet.cli.report import summary_fields

    return {**summary_fields(summary), "created_at": summary.created_at}
