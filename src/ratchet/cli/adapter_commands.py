"""``ratchet adapters list | show``, and ``ratchet runs fetch | upload``: files of runs in the artifact storage."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ratchet.cli.options import PATH, json_option, run_argument
from ratchet.cli.output import emit, print_fields, table
from ratchet.service.runs.run_files import ListedAdapter, Transfer, fetch_run, list_adapters, show_adapter, upload_run

_DIGITS = 12


@click.group
def adapters() -> None:
    """List the adapters of finished runs; show one and verify its files."""


@adapters.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List all adapters, newest last; trials have none."""
    found = list_adapters()
    shown: Any = "No adapters yet. A run that ends after its round 0 keeps one: start with ratchet demo."
    if found:
        columns = ("run", "objective", "base model", "revision", "round", "score", "sha256", "folder")
        shown = table(*columns, rows=map(_cells, found), folding=("folder",))
    emit(as_json, {"adapters": [_fields(one) for one in found]}, shown)


def _cells(one: ListedAdapter) -> list[str]:
    revision = one.identity.removeprefix("sha256:")[:_DIGITS]
    cells = [one.run, one.origin.objective, one.model, revision, str(one.origin.round), _score(one)]
    return [*cells, one.origin.sha256[:_DIGITS], str(one.folder)]


@adapters.command
@run_argument
@json_option
def show(run_or_folder: str, as_json: bool) -> None:
    """Show the adapter of a run, and verify that its files are what the run ended with."""
    adapter, files = show_adapter(run_or_folder)
    origin, layers = adapter.origin, len(files.pairs())
    fields = [
        ("Adapter of run", f"{adapter.run} ({origin.objective}), which ended {adapter.ended_at}"),
        ("Folder", str(adapter.folder)),
        ("Base model", adapter.model),
        ("Revision", adapter.identity),
        ("Round", f"{origin.round}{' (the starting adapter)' if origin.round == 0 else ''}"),
        ("Score", f"{_score(adapter)} on its run's validation sample"),
        ("Size", f"rank {adapter.rank}, alpha {adapter.alpha}, on {layers} layers"),
        ("Checksum", f"sha256 {files.sha256}, as the run ended with"),
    ]
    for number, one in enumerate(origin.start.line() if origin.start else ()):
        fields.append(("" if number else "Starts", f"from {one.words}"))

    def print_all(console: Console) -> None:
        print_fields(console, fields, 15)
        console.print(f"Continue from it: ratchet train CONFIG --start-from {adapter.run}")

    emit(as_json, {**_fields(adapter), "layers": layers, "is_whole": True}, print_all)


def _score(adapter: ListedAdapter) -> str:
    accuracy = adapter.origin.accuracy
    return "" if accuracy is None else f"{accuracy:.1%}"


def _fields(adapter: ListedAdapter) -> dict[str, Any]:
    return {
        "run": adapter.run,
        "folder": str(adapter.folder),
        "ended_at": adapter.ended_at,
        "base_model": adapter.model,
        "revision": adapter.identity,
        "rank": adapter.rank,
        "alpha": adapter.alpha,
        **adapter.origin.model_dump(mode="json", include={"objective", "round", "accuracy", "sha256", "start"}),
    }


@click.command
@click.argument("run")
@click.option("--to", "folder", required=True, type=PATH, help="A folder that is new or empty.")
@json_option
def fetch(run: str, folder: Path, as_json: bool) -> None:
    """Download a run's files from the artifact storage into a folder, and verify each one."""
    done = fetch_run(run, folder)
    text = f"Downloaded {done.files} files of run {run} from {done.url} to {done.folder}."
    emit(as_json, _transfer_fields(done), text)


@click.command
@run_argument
@json_option
def upload(run_or_folder: str, as_json: bool) -> None:
    """Upload what the artifact storage (RATCHET_ARTIFACTS) lacks of a run, or has damaged."""
    done = upload_run(run_or_folder)
    damaged = f", {done.damaged} of them in place of damaged ones" if done.damaged else ""
    text = f"Uploaded {done.files} files of run {done.run} to {done.url}{damaged}."
    if not done.files:
        text = f"{done.url} has all files of run {done.run}, undamaged."
    emit(as_json, _transfer_fields(done), text)


def _transfer_fields(done: Transfer) -> dict[str, Any]:
    fields = {"run": done.run, "folder": str(done.folder), "url": done.url}
    return {**fields, "files": done.files, "damaged": done.damaged}
