"""``ratchet runs``: list | show | samples | stop here, the other commands from their own modules."""

import json
from typing import TYPE_CHECKING, Any, get_args

import click

from ratchet.cli import artifact_commands
from ratchet.cli.health_commands import health
from ratchet.cli.train_commands import json_option
from ratchet.errors import Conflict, NotFound
from ratchet.run.records import RunStatus

if TYPE_CHECKING:
    from ratchet.service import ListedRun
    from ratchet.store import StoredRun


_STATUSES = [*get_args(RunStatus), "interrupted"]


def runs() -> click.Command:
    """Return the group."""
    from ratchet.cli.derive_commands import commands
    from ratchet.cli.follow_commands import log, watch
    from ratchet.cli.round_commands import rounds

    return click.Group(
        "runs",
        help="List runs; show, follow, stop, retry, duplicate or continue one; read its rounds, log and samples.",
        commands=[
            click.Command(
                "list",
                callback=_list,
                help="List runs, newest last.",
                params=[
                    click.Option(["--project"], metavar="LABEL", help="Only those with this project label."),
                    click.Option(["--status"], type=click.Choice(_STATUSES), help="Only those of this status."),
                    json_option(),
                ],
            ),
            click.Command(
                "stop",
                callback=_stop,
                help="End a run in good order with its best adapter, or take it out of the queue.",
                params=[click.Argument(["run_or_folder"]), json_option()],
            ),
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
                    click.Option(
                        ["--prompts"], type=click.IntRange(min=1), default=3, help="How many prompts are open (3)."
                    ),
                    click.Option(["--full", "--whole", "full"], is_flag=True, help="Do not shorten long texts."),
                    json_option(),
                ],
            ),
            watch(),
            rounds(),
            log(),
            *commands(),
            *artifact_commands.commands(),
        ],
    )


def _list(project: str | None, status: Any, as_json: bool) -> None:
    from ratchet import service

    found = service.list_runs(project, status)
    if as_json:
        click.echo(json.dumps({"runs": [_listed_fields(listed) for listed in found]}))
        return
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from ratchet.cli.console import console_for

    if not found:
        is_all = project is None and status is None
        click.echo("No runs yet. Start one with ratchet demo." if is_all else "No such runs.")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("run", "status", "model", "data", "rounds", "start", "best"):
        table.add_column(column, no_wrap=column != "model", overflow="fold")
    for listed in found:
        run = listed.stored
        start, best = _score(run.start_accuracy, run.start_loss), _score(run.best_accuracy, run.best_loss)
        done = f"{run.rounds_done or 0} / {run.rounds or run.config.rounds}"
        status = ("trial " if run.kind == "trial" else "") + listed.status.replace("_", " ")
        cells = [run.id, status, run.config.model, run.config.data.source, done, start, best]
        table.add_row(*map(escape, cells))
    console_for(as_json).print(table)


def _listed_fields(listed: "ListedRun") -> dict[str, Any]:
    run = listed.stored
    return {
        "run": run.id,
        "folder": None if run.folder is None else str(run.folder),
        "project": run.project,
        "kind": run.kind,
        "status": listed.status,
        "ending": run.ending,
        "rounds": run.rounds,
        "rounds_done": run.rounds_done or 0,
        "best_round": run.best_round,
        "start_accuracy": run.start_accuracy,
        "best_accuracy": run.best_accuracy,
        "seconds": run.seconds,
        "created_at": run.created_at.isoformat(timespec="seconds"),
    }


def _stop(run_or_folder: str, as_json: bool) -> None:
    from ratchet import service

    became = service.stop(run_or_folder)
    if as_json:
        click.echo(json.dumps({"run": service.find_run(run_or_folder).run_id, "stop": became}))
    elif became == "cancelled":
        click.echo("Taken out of the queue.")
    else:
        click.echo("Asked to stop: it ends in good order, with the best adapter it has.")


def _score(accuracy: float | None, loss: float | None) -> str:
    """Return what a run is ranked by: its accuracy, without a verifier its loss; "" before there is one."""
    if accuracy is not None:
        return f"{accuracy:.1%}"
    return "" if loss is None else f"loss {loss:.4f}"


def _show(run_or_folder: str, as_json: bool) -> None:
    from ratchet import service
    from ratchet.service.runs.derived_runs import find_draft

    try:
        summary = service.summary(run_or_folder)
    except (Conflict, NotFound):
        draft = find_draft(run_or_folder)
        if draft is None:
            raise
        _show_draft(draft, as_json=as_json)
        return
    if as_json:
        rounds = [record.model_dump(mode="json") for record in summary.records]
        fields = {**_fields(summary), "config": summary.config.model_dump(mode="json"), "rounds": rounds}
        click.echo(json.dumps({**fields, "health": service.run_health(summary).model_dump(mode="json")}))
        return
    from ratchet.cli.console import console_for
    from ratchet.cli.health_commands import print_health
    from ratchet.cli.run_output import print_summary
    from ratchet.service.runs.allowed_actions import commands as commands_for

    console = console_for(as_json)
    print_summary(console, summary)
    if summary.records:
        print_health(console, service.run_health(summary))
    if summary.kind == "trial" and summary.ended:
        from ratchet.cli.trial_commands import print_trial

        print_trial(console, service.find_trial(run_or_folder).report)
    ending = summary.ended["ending"] if summary.ended else None
    for number, command in enumerate(commands_for(summary.run, summary.status, ending, summary.kind)):
        console.print(f"{'' if number else 'Possible':<9}{command}")


def _show_draft(draft: "StoredRun", *, as_json: bool) -> None:
    """Print the settings of a draft, as a file that train takes, and what can be done with it."""
    from ratchet.cli.derive_commands import draft_fields
    from ratchet.config.config_text import as_yaml
    from ratchet.service.runs.allowed_actions import commands

    if as_json:
        click.echo(json.dumps(draft_fields(draft)))
        return
    click.echo(
        f"# Draft {draft.id}: nothing was started. Possible: {', '.join(commands(draft.id, 'draft', None, 'full'))}"
    )
    click.echo(as_yaml(draft.config))


def _samples(run_or_folder: str, number: int | None, prompts: int, full: bool, as_json: bool) -> None:
    from ratchet import service

    title, rows = service.samples(run_or_folder, number)
    if as_json:
        click.echo(json.dumps({"title": title, "prompts": rows}))
        return
    from ratchet.cli.console import console_for
    from ratchet.cli.sample_output import print_round

    print_round(console_for(as_json), title, rows, opened=prompts, full=full)


def _fields(summary: Any) -> dict[str, Any]:
    from ratchet.cli.run_output import summary_fields

    return {**summary_fields(summary), "created_at": summary.created_at}
