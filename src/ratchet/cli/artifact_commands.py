"""``ratchet runs fetch | upload``: files of runs from the storage of artifacts and to it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli.train_commands import json_option

if TYPE_CHECKING:
    from ratchet.service.adapters.run_files import Transfer


def commands() -> list[click.Command]:
    """Return both commands."""
    return [
        click.Command(
            "fetch",
            callback=_fetch,
            help="Bring a run's files from the storage of artifacts into a folder, each one checked.",
            params=[
                click.Argument(["run"]),
                click.Option(
                    ["--to", "folder"],
                    required=True,
                    type=click.Path(path_type=Path),
                    help="A folder that is new or empty.",
                ),
                json_option(),
            ],
        ),
        click.Command(
            "upload",
            callback=_upload,
            help="Send what the storage of artifacts (RATCHET_ARTIFACTS) lacks of a run, or has damaged.",
            params=[click.Argument(["run_or_folder"]), json_option()],
        ),
    ]


def _fetch(run: str, folder: Path, as_json: bool) -> None:
    from ratchet.service.adapters.run_files import fetch_run

    done = fetch_run(run, folder)
    _say(done, as_json, f"Fetched {done.files} files of run {run} from {done.url} to {done.folder}.")


def _upload(run_or_folder: str, as_json: bool) -> None:
    from ratchet.service.adapters.run_files import upload_run

    done = upload_run(run_or_folder)
    damaged = f", {done.damaged} of them in place of damaged ones" if done.damaged else ""
    nothing = f"{done.url} has all files of run {done.run}, undamaged."
    _say(done, as_json, f"Sent {done.files} files of run {done.run} to {done.url}{damaged}." if done.files else nothing)


def _say(done: "Transfer", as_json: bool, sentence: str) -> None:
    if not as_json:
        click.echo(sentence)
        return
    fields: dict[str, Any] = {"run": done.run, "folder": str(done.folder), "url": done.url, "files": done.files}
    click.echo(json.dumps({**fields, "damaged": done.damaged}))
