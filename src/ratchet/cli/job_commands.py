"""What ``ratchet loop`` and ``ratchet experiment`` have in common: list, show, stop, and following one to its end.

Where no scheduler runs for this RATCHET_HOME, the command does the work until the loop or experiment has ended.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
from rich.console import Console

from ratchet.cli.faults import EXIT_TASK, tell
from ratchet.cli.inspect_commands import confirmation
from ratchet.cli.interrupts import interruptible
from ratchet.cli.live import Live
from ratchet.cli.options import StartOptions, chart_option, json_option, project_option, report_option, settings_of
from ratchet.cli.output import console_for, emit, plain, table
from ratchet.cli.starting import tell_without_scheduler
from ratchet.server import serve_runs
from ratchet.service.jobs import job_settings
from ratchet.service.jobs.conductor import Job, find_job, list_jobs, stop_job
from ratchet.supervisor.scheduler import SchedulerHome

Found = TypeVar("Found", bound=Job)
_POLL_SECONDS = 1.0

from_adapter_option = click.option(
    "--from-adapter",
    is_flag=True,
    help="Of a run: begin with its adapter, not with what the run itself started from.",
)


@dataclass(frozen=True)
class Jobs(Generic[Found]):
    """Loops, or experiments, as these commands know them.

    Attributes:
        kind: Which of the two.
        noun: What one of them is called.
        kept: What remains of one that is stopped.
        columns: Of the list, the folding ones in ``folding``; ``cells`` are those of one of them.
        is_good: Whether one that has ended did its work, or was stopped by the user.
        line: How far one is.
        fields: Its fields for JSON.
        show: Prints one.
        write: Writes a page and a chart to where they are asked for.
    """

    kind: type[Found]
    noun: str
    kept: str
    columns: Sequence[str]
    folding: Sequence[str]
    cells: Callable[[Found], Sequence[str]]
    is_good: Callable[[Found], bool]
    line: Callable[[Found], str]
    fields: Callable[[Found], dict[str, Any]]
    show: Callable[[Console, Found], None]
    write: Callable[[Found, Path | None, Path | None], None]

    def is_open(self, one: Found) -> bool:
        """Whether one has not ended."""
        return one.stored.status in self.kind.open_statuses

    def resume_command(self, id: str) -> str:
        """The command that resumes one."""
        return f"ratchet {self.noun} resume {id}"


def add_shared_commands(group: click.Group, jobs: Jobs[Any]) -> None:
    """Add the commands list, show and stop to a group."""
    noun = jobs.noun
    named = click.argument("id", metavar=noun.upper())

    @group.command("list", help=f"List {noun}s, newest last.")
    @project_option
    @json_option
    def list_(project: str | None, as_json: bool) -> None:
        found = list_jobs(jobs.kind, project)
        none = f"No {noun}s yet. Start one with ratchet {noun} start." if project is None else "None."
        shown = table(*jobs.columns, rows=map(jobs.cells, found), folding=jobs.folding) if found else none
        emit(as_json, {f"{noun}s": [jobs.fields(one) for one in found]}, shown)

    @group.command(help=f"Show {'an' if noun[0] in 'aeiou' else 'a'} {noun}: how far it is, and how it ended.")
    @named
    @report_option
    @chart_option
    @json_option
    def show(id: str, report: Path | None, chart: Path | None, as_json: bool) -> None:
        one = find_job(jobs.kind, id)
        emit(as_json, jobs.fields(one), lambda console: jobs.show(console, one))
        jobs.write(one, report, chart)
        for label, path in (("Report", report), ("Chart", chart)):
            if path is not None:
                console_for(as_json).print(plain(f"{label:<8} {path}"))

    @group.command(help=f"Stop {'an' if noun[0] in 'aeiou' else 'a'} {noun} cleanly; {jobs.kept} is kept.")
    @named
    @json_option
    def stop(id: str, as_json: bool) -> None:
        stop_job(jobs.kind, id)
        text = f"Stop requested: the running step stops cleanly, and {jobs.kept} is kept."
        emit(as_json, {noun: id, "stop": "asked"}, text)
        if not as_json:
            later = (
                f"The scheduler is not running: this happens with the next ratchet serve or {jobs.resume_command(id)}."
            )
            tell_without_scheduler(sentence=later)


def read_source(
    source: str | None, start: StartOptions, flags: dict[str, str], console: Console, *, from_adapter: bool
) -> job_settings.Source:
    """Settings that a command names: those of a file, of a run, or of flags alone.

    Raises:
        UsageError: nothing is named.
    """
    with Live(console, None) as live:
        ask, on_progress = confirmation(live, start), live.on_progress
        if source is not None and not Path(source).is_file():
            return job_settings.source_of_run(
                source, flags, from_adapter=from_adapter, ask=ask, on_progress=on_progress
            )
        if from_adapter:
            raise click.UsageError("--from-adapter goes with a run. In settings it is start_from.")
        settings = settings_of(Path(source) if source else None, flags)
        return job_settings.source_of_settings(settings, ask, on_progress)


def follow_job(jobs: Jobs[Found], id: str, *, queue: bool, as_json: bool) -> int:
    """Follow one to its end, or leave it to the scheduler; the exit code."""
    if queue:
        if as_json:
            tell(json.dumps(jobs.fields(find_job(jobs.kind, id))))
        else:
            tell(f"{jobs.noun.capitalize()} {id} is queued.")
            tell_without_scheduler()
        return 0
    console = console_for(as_json, of_a_run=True)
    console.print(plain(f"{jobs.noun.capitalize()} {id}"))
    _carry_out(jobs, id, console)
    ended = find_job(jobs.kind, id)
    if as_json:
        tell(json.dumps(jobs.fields(ended)))
    else:
        jobs.show(console, ended)
    return 0 if jobs.is_good(ended) or jobs.is_open(ended) else EXIT_TASK


def _carry_out(jobs: Jobs[Any], id: str, console: Console) -> None:
    """Follow one to its end, as the scheduler where none is running."""
    if SchedulerHome().is_held():
        console.print("The scheduler does the work; Ctrl-C leaves it running.")
        last = ""
        try:
            with interruptible() as pause:
                while SchedulerHome().is_held() and jobs.is_open(one := find_job(jobs.kind, id)):
                    if (line := jobs.line(one)) != last:
                        console.print(plain(line))
                        last = line
                    pause(_POLL_SECONDS)
        except KeyboardInterrupt:
            return
    if jobs.is_open(
        find_job(jobs.kind, id)
    ):  # no scheduler was running, or it has ended: it may have been another command
        console.print("No server is running; this command does the work. Ctrl-C stops it cleanly.")
        try:
            serve_runs(show=lambda line: console.print(plain(line)), until_ended=id)
        except KeyboardInterrupt:
            console.print(plain(f"The running step may continue on its own. Resume with: {jobs.resume_command(id)}"))
            raise
