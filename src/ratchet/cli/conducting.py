"""What starting a loop and starting an experiment have in common: settings from a file or a run, and following it here.

Where no keeper looks after this RATCHET_HOME, the command is the keeper until the loop or experiment has ended.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli.flags import given
from ratchet.cli.interrupts import interruptible
from ratchet.cli.train_commands import json_option, override_option, queue_option, settings_of

if TYPE_CHECKING:
    from rich.console import Console

    from ratchet.service.jobs.job_settings import Source

_POLL_SECONDS = 1.0


def starting_options() -> list[click.Parameter]:
    """Return the options of every command that starts what is carried out in steps."""
    return [
        click.Option(
            ["--from-adapter"],
            is_flag=True,
            help="Of a run: begin with its adapter, instead of with what the run itself started from.",
        ),
        click.Option(
            ["--inspected"],
            is_flag=True,
            help="Say that you have read the verifier's report (ratchet inspect); one is made where there is none.",
        ),
        override_option(),
        queue_option(),
        json_option(),
    ]


def read_source(source: str | None, parameters: Mapping[str, Any], console: "Console", *, as_json: bool) -> "Source":
    """Return the settings that a command names: those of a file, of a run, or of flags alone.

    Raises:
        UsageError: nothing is named.
    """
    from ratchet.cli.inspect_commands import asking
    from ratchet.cli.live import Live
    from ratchet.service.jobs import job_settings

    is_file = source is not None and Path(source).is_file()
    with Live(console, None) as live:
        ask = asking(live, inspected=parameters["inspected"], override=parameters["override_report"], as_json=as_json)
        if source is not None and not is_file:
            return job_settings.source_of_run(
                source,
                given(parameters),
                from_adapter=parameters["from_adapter"],
                ask=ask,
                on_progress=live.watch.on_progress,
            )
        if parameters["from_adapter"]:
            raise click.UsageError("--from-adapter goes with a run. In settings it is start_from.")
        settings = settings_of(Path(source) if source else None, parameters)
        return job_settings.source_of_settings(settings, ask, live.watch.on_progress)


def tell_without_keeper(resume: str) -> None:
    """Say what a wish to stop waits for where no keeper runs."""
    from ratchet.supervisor import KeeperHome

    if not KeeperHome().is_held():
        click.echo(f"No keeper runs here, so that happens with the next ratchet serve or {resume}.")


def carry_out(id: str, console: "Console", resume: str, is_open: Callable[[], bool], state: Callable[[], str]) -> None:
    """Follow a loop or experiment to its end, being the keeper where there is none.

    Args:
        id: Which one.
        console: Where what happens is said.
        resume: The command that goes on with it.
        is_open: Tells whether it has not ended.
        state: Says in a line how far it is.
    """
    from ratchet.supervisor import KeeperHome

    if KeeperHome().is_held():
        console.print("The keeper carries it out; Ctrl-C leaves it to that.")
        last = ""
        try:
            with interruptible() as pause:
                while KeeperHome().is_held() and is_open():
                    if (now := state()) != last:
                        console.print(now, markup=False)
                        last = now
                    pause(_POLL_SECONDS)
        except KeyboardInterrupt:
            return
    if is_open():  # there was no keeper, or it has ended: it may have been another command that was one
        from ratchet.server import serve_runs

        console.print("No keeper runs here, so this command is one until the end. Ctrl-C ends it in good order.")
        try:
            serve_runs(show=lambda line: console.print(line, markup=False), until_ended=id)
        except KeyboardInterrupt:
            console.print(f"What is at work may go on by itself. Go on with all of it: {resume}", markup=False)
            raise
