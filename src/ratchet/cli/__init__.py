"""The command line: parse, one service call, render. Loads nothing heavy before a command is chosen.

Exit codes follow the owner of the fault: 0 good, 1 ours, 2 setting or data, 3 wrong state or not found, 4 metric,
machine or task; 130 after a second Ctrl-C.
"""

import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import IO, Any, NoReturn

import click

from ratchet.errors import Conflict, IncompatibleData, InvalidSetting, NotFound, NotReady, RatchetError

# Name -> (module, help). The modules import what they need, so a command costs nothing until it is called.
COMMANDS = {
    "demo": ("demo_commands", "Watch a small model learn, on this machine, in minutes."),
    "plan": ("plan_commands", "Say what a run would be, whether it fits, and what to change."),
    "inspect": ("inspect_commands", "See what the verifier makes of the starting model's answers, before a run."),
    "train": ("train_commands", "Train with the settings of a YAML file and of flags."),
    "trial": ("trial_commands", "Measure one small round, and see what the full run would take."),
    "resume": ("train_commands", "Go on with a run that was killed or stopped."),
    "runs": ("run_commands", "List runs, show one, follow it, read its rounds, log and samples, stop one."),
    "serve": ("serve_commands", "Work off the queue of runs, also after a crash."),
    "adapters": ("adapter_commands", "List the adapters of finished runs, show one and check that it is whole."),
    "bench": ("bench_commands", "Keep benchmarks: questions that nobody trains on. See who does best on them."),
    "eval": ("eval_commands", "Score a model, an adapter or an endpoint on a benchmark."),
    "compare": ("compare_commands", "Compare evaluations question by question: better, worse, or within the noise?"),
    "experiment": ("experiment_commands", "Measure, train and score as one thing, with a verdict."),
    "replicate": ("experiment_commands", "Repeat a run with other seeds: luck or learning?"),
    "loop": ("loop_commands", "Train and benchmark round after round until a target, a plateau or a limit."),
    "data": ("data_commands", "Add datasets, list them, look at their rows, check them."),
    "metric": ("metric_commands", "Keep metrics of your own in Python, try them out."),
    "grade": ("grade_commands", "Grade the answers of a JSONL file with a verifier."),
    "doctor": ("doctor_commands", "Show what this machine can do."),
}

EXIT_OURS = 1
EXIT_SETTING = 2
EXIT_STATE = 3
EXIT_TASK = 4
EXIT_INTERRUPTED = 130
_EXIT_CODES: dict[type[RatchetError], int] = {
    InvalidSetting: EXIT_SETTING,
    IncompatibleData: EXIT_SETTING,
    NotFound: EXIT_STATE,
    Conflict: EXIT_STATE,
}


def exit_code(error: RatchetError) -> int:
    """Return the exit code of a fault; what is not in the table is the metric's, the machine's or the task's.

    Of several faults it is the first of the table: what is wrong with settings and data comes before anything else.
    """
    if isinstance(error, NotReady):
        return min(map(exit_code, error.faults))
    return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), EXIT_TASK)


class _Commands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"ratchet.cli.{COMMANDS[cmd_name][0]}"), cmd_name)()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        click.echo(f"ratchet {version('ratchet-rl')}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, callback=_print_version, expose_value=False, is_eager=True, help="Version.")
def ratchet() -> None:
    """Train language models with verifiable rewards on your own machine, and be told honestly whether it helped."""


def _count_presses() -> list[int]:
    """Return a list that gets an entry with each Ctrl-C, which is raised as ever."""
    presses: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        presses.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored, or somebody else's
        signal.signal(signal.SIGINT, hear)
    return presses


def _tell_unforeseen(error: Exception, as_json: bool, *, was_interrupted: bool) -> None:
    """Tell machines of a fault of ours; end as interrupted what is one only because of a Ctrl-C."""
    if was_interrupted:  # in the middle of loading a library, which has made another fault of it
        _fail("interrupted", "Interrupted.", EXIT_INTERRUPTED, as_json)
    if as_json:
        message = f"Something unforeseen failed ({type(error).__name__}); see the traceback."
        tell(json.dumps(fault("error", message)))


def main() -> NoReturn:
    """Run the command line; every fault ends in one sentence and an exit code, ours in a traceback."""
    as_json = "--json" in sys.argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # better a question mark than a run that ends at a character
    presses = _count_presses()
    try:
        code = ratchet.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.UsageError as error:
        _fail("usage", _usage(error), EXIT_SETTING, as_json)
    except click.ClickException as error:
        _fail("usage", error.format_message(), EXIT_SETTING, as_json)
    except RatchetError as error:
        _fail(error.code, str(error), exit_code(error), as_json, problems(error))
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", "Interrupted.", EXIT_INTERRUPTED, as_json)
    except Exception as error:
        _tell_unforeseen(error, as_json, was_interrupted=bool(presses))
        raise


def tell(line: str, *, err: bool = False) -> None:
    """Print a line of a run's end; whoever closed the stream meanwhile does without, and the exit code stands."""
    try:
        click.echo(line, err=err)
    except OSError:
        silence(sys.stderr if err else sys.stdout)


def silence(stream: IO[str]) -> None:
    """Lead what is still written to a stream nowhere, also what Python flushes as it exits."""
    with suppress(OSError, ValueError):  # not one of the system's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _usage(error: click.UsageError) -> str:
    help_hint = f" See {error.ctx.command_path} --help." if error.ctx else ""
    return error.format_message() + help_hint


def fault(code: str, message: str) -> dict[str, dict[str, Any]]:
    """Return a fault as machines are told of it."""
    return {"error": {"code": code, "message": message}}


def problems(error: RatchetError) -> list[dict[str, str]]:
    """Return each of the faults that an error stands for: code, dotted key of the setting if it is one, message."""
    faults = error.faults if isinstance(error, NotReady) else (error,)
    return [{"code": one.code, "field": getattr(one, "field", ""), "message": str(one)} for one in faults]


def _fail(code: str, message: str, status: int, as_json: bool, found: Sequence[dict[str, str]] = ()) -> NoReturn:
    tell(f"Error: {message}", err=True)
    if as_json:
        told = fault(code, message)
        if found:
            told["error"]["problems"] = list(found)
        tell(json.dumps(told))
    sys.exit(status)
