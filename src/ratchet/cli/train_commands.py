"""``ratchet train`` and ``ratchet resume``."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ratchet.cli import EXIT_OURS, EXIT_TASK, exit_code, fault, tell
from ratchet.cli.flags import SettingsCommand, given
from ratchet.config import RunConfig
from ratchet.config.config_text import build, read_file
from ratchet.errors import DiskFull, RatchetError
from ratchet.run.endings import GOOD
from ratchet.run.records import RunResult

if TYPE_CHECKING:
    from ratchet.cli.live import Live
    from ratchet.service import Launch
    from ratchet.service.runs.registry import Origin


def train() -> click.Command:
    """Return the command."""
    return SettingsCommand(
        "train",
        callback=_train,
        help="Train with the settings of CONFIG (YAML), if given, and of flags, which win.",
        params=[
            click.Argument(["config"], required=False, type=click.Path(path_type=Path)),
            *run_options(),
            queue_option(),
            click.Option(
                ["--trial"],
                metavar="RUN",
                help="The trial that was made for this run: settings that have changed since are named. Left out: the "
                "newest trial of the same model and data, if there is one.",
            ),
            click.Option(["--check"], is_flag=True, help="Only say whether the run could start, and what it would be."),
            against_option(),
        ],
        context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    )


def resume() -> click.Command:
    """Return the command."""
    return click.Command(
        "resume",
        callback=_resume,
        help="Go on with a run that was killed or stopped, from its last finished round.",
        params=[click.Argument(["run_or_folder"]), queue_option(), json_option()],
    )


def queue_option() -> click.Option:
    """Return the option that leaves a run to the keeper."""
    return click.Option(["--queue"], is_flag=True, help="Leave the work to ratchet serve, and return at once.")


def run_options() -> list[click.Parameter]:
    """Return the options of every command that starts a run."""
    return [
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path),
            help="Folder of the run; by default one under the user's data folder.",
        ),
        click.Option(
            ["--inspected"],
            is_flag=True,
            help="Say that you have read the verifier's report (ratchet inspect); one is made where there is none.",
        ),
        override_option(),
        json_option(),
    ]


def against_option() -> click.Option:
    """Return the option that names rows the user scores on."""
    return click.Option(
        ["--against"],
        multiple=True,
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="JSONL file of rows you score on (prompt, messages, question or problem): rows to train on that are among "
        "them refuse the run. May be given several times.",
    )


def override_option() -> click.Option:
    """Return the option that lets a run start which its report refuses."""
    return click.Option(
        ["--override-report"],
        metavar="REASON",
        default="",
        help="Start although the report of the verifier refuses the run: why, in three words or more. It is recorded.",
    )


def json_option() -> click.Option:
    """Return the option for machine-readable output."""
    return click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object on the last line of stdout.")


def _train(
    config: Path | None,
    out: Path | None,
    as_json: bool,
    check: bool,
    against: tuple[Path, ...],
    trial: str | None,
    **parameters: Any,
) -> int:
    settings = settings_of(config, parameters)
    if check:
        return _check(settings, out, against, trial, as_json=as_json)
    from ratchet.cli.starting import launch

    return launch(settings, out, parameters, against=against, trial=trial, as_json=as_json)


def settings_of(config: Path | None, parameters: Mapping[str, Any]) -> RunConfig:
    """Return the settings of a file, if there is one, and of flags, which win.

    Raises:
        UsageError: there are neither.
    """
    flags = given(parameters)
    if config is None and not flags:
        raise click.UsageError(
            "Give a settings file (the README shows one) or settings as flags. ratchet demo needs none."
        )
    return build(read_file(config) if config else {}, flags)


def _check(
    settings: RunConfig, out: Path | None, against: tuple[Path, ...], trial: str | None, *, as_json: bool
) -> int:
    """Print what the checks found; exit code 0 if the run could start, else that of its faults."""
    from ratchet import service
    from ratchet.cli.check_output import print_report, report_fields

    report = service.check_run(settings, out, against=against)
    report.close()
    if warning := service.since_trial(report.config, trial):
        report = replace(report, warnings=(*report.warnings, warning))
    if as_json:
        tell(json.dumps(report_fields(report)))
        return min((exit_code(fault) for fault in report.faults), default=0)
    print_report(report)
    report.raise_faults()
    return 0


def _resume(run_or_folder: str, queue: bool, as_json: bool) -> int:
    from ratchet import service

    if queue:
        from ratchet.cli.starting import tell_queued

        return tell_queued(service.queue_again(run_or_folder), as_json=as_json)
    settings = service.summary(run_or_folder).config
    return carry_out(lambda live: service.resume(run_or_folder, watch=live.watch), settings, as_json=as_json)[0]


def start(
    settings: RunConfig,
    out: Path | None,
    parameters: Mapping[str, Any],
    *,
    as_json: bool,
    against: tuple[Path, ...] = (),
    trial: str | None = None,
    origin: "Origin | None" = None,
) -> tuple[int, RunResult]:
    """Start a run and follow it to its end; return the exit code and the result.

    ``parameters`` holds those of ``run_options``; ``origin`` is the run or draft that it is made from.
    """
    from ratchet import service
    from ratchet.cli.inspect_commands import asking

    if trial is not None:
        service.find_trial(trial)  # one that is not there is said before anything starts

    def work(live: "Live") -> RunResult:
        ask = asking(live, inspected=parameters["inspected"], override=parameters["override_report"], as_json=as_json)
        told = telling(live, trial)
        return service.create_and_train(
            settings, out, watch=live.watch, against=against, ask=ask, on_launch=told, origin=origin
        )

    return carry_out(work, settings, as_json=as_json)


def telling(live: "Live", trial: str | None) -> Callable[["Launch"], None]:
    """Return what is called as a run starts: it says what is about to start, and what of its trial has changed."""
    from rich.markup import escape

    from ratchet import service

    def on_launch(launch: "Launch") -> None:
        live.on_launch(launch)
        if warning := service.since_trial(launch.config, trial):
            live.console.print(f"[yellow]Note:[/yellow] {escape(warning)}")

    return on_launch


def carry_out(work: Callable[["Live"], RunResult], settings: RunConfig, *, as_json: bool) -> tuple[int, RunResult]:
    """Do a run's work while showing it, then print how it ended and draw its curve."""
    from rich.markup import escape

    from ratchet import service
    from ratchet.cli.console import console_for
    from ratchet.cli.live import Live
    from ratchet.cli.run_output import print_result
    from ratchet.service.runs.learning_curve import draw_curve

    console = console_for(as_json, of_a_run=True)
    rounds = settings.rounds if isinstance(settings.rounds, int) and settings.rl.max_steps is None else None
    with Live(console, rounds, settings.limits.currency) as live:
        live.on_hard_end = lambda event: _tell_hard_end(event, live, as_json=as_json)
        try:
            result = work(live)
        except RatchetError as error:
            _end_with(error, live.run, as_json=as_json)
        except Exception as error:
            if live.run is None:
                raise
            _end_unforeseen(error, live.run, as_json=as_json)
    if as_json:
        tell(result.model_dump_json())  # first, so that whatever happens to the curve machines are told
    summary = service.summary(result.folder)
    if summary.records:
        print_result(console, result, list(summary.records))
        try:
            curve = draw_curve(summary, Path(result.folder) / "curve.png")
            console.print(f"Learning curve in {escape(str(curve))}")
        except DiskFull:
            console.print("The learning curve could not be drawn: the disk is full.")
        except OSError as error:
            console.print(f"The learning curve could not be drawn: {error.strerror}.")
    else:
        console.print(escape(result.message))
    return exit_status(result), result


def _end_with(error: RatchetError, run: str | None, *, as_json: bool) -> NoReturn:
    """End the command with a fault; machines are told of the run too, once there is one."""
    if not as_json or run is None:
        raise error
    from ratchet import service
    from ratchet.cli.run_output import summary_fields

    tell(f"Error: {error}", err=True)
    tell(json.dumps({**summary_fields(service.summary(run)), **fault(error.code, str(error))}))
    raise click.exceptions.Exit(exit_code(error))


def _end_unforeseen(error: Exception, run: str, *, as_json: bool) -> NoReturn:
    """End the command with a fault of ours in a run; not with a traceback, which may quote what a model wrote."""
    message = f"Something unforeseen failed ({type(error).__name__}); the run's log says where: ratchet runs log {run}"
    tell(f"Error: {message}", err=True)
    if as_json:
        tell(json.dumps(fault("error", message)))
    raise click.exceptions.Exit(EXIT_OURS)


def _tell_hard_end(event: Mapping[str, Any], live: "Live", *, as_json: bool) -> None:
    """Say how a run ended that hangs, in the moment that is left before the process ends."""
    from ratchet import service
    from ratchet.cli.run_output import summary_fields

    tell(f"Error: {event['message']}", err=True)
    if as_json and live.run is not None:
        tell(json.dumps({**summary_fields(service.summary(live.run)), **fault("stalled", event["message"])}))
    sys.stdout.flush()


def exit_status(result: RunResult) -> int:
    """Return the exit code of an ending: 0 if it is a good one that packaged an adapter, else the task's."""
    good = result.adapter is not None and result.ending in GOOD
    return 0 if good else EXIT_TASK
