"""The command line: parse, one service call, render. Loads nothing heavy before a command is chosen."""

import errno
import gc
import io
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import click

from ratchet.cli.faults import EXIT_INTERRUPTED, EXIT_SETTING, EXIT_TASK, exit_code, fault, problems, silence, tell
from ratchet.errors import RatchetError

# Name -> (module, help). A command's module is imported when the command is called, so its imports stand at its top.
COMMANDS = {
    "demo": ("train_commands", "Watch a small model learn, on this machine, in minutes."),
    "plan": ("plan_commands", "Show what a run would be, whether it fits, and what to change."),
    "inspect": ("inspect_commands", "Try the verifier on answers of the starting model before a run."),
    "train": ("train_commands", "Train with the settings of a YAML file and of flags."),
    "trial": ("trial_commands", "Measure one small round, and estimate the full run from it."),
    "resume": ("train_commands", "Resume a run that was killed or stopped."),
    "runs": ("run_commands", "List runs; show, follow, stop, retry, duplicate or continue one; read its samples."),
    "serve": ("serve_commands", "Run the scheduler: it works through the queue, also after a crash."),
    "adapters": ("adapter_commands", "List the adapters of finished runs; show one and verify its files."),
    "bench": ("bench_commands", "Manage benchmarks: questions that are never trained on, and who does best on them."),
    "eval": ("eval_commands", "Score a model, an adapter or an endpoint on a benchmark."),
    "compare": ("eval_commands", "Compare evaluations question by question: better, worse, or within the noise?"),
    "experiment": ("experiment_commands", "Measure, train and score in one job, with a verdict."),
    "replicate": ("experiment_commands", "Repeat a run with other seeds: luck or learning?"),
    "loop": ("loop_commands", "Train and benchmark round after round until a target, a plateau or a limit."),
    "data": ("data_commands", "Add, list, show and check datasets."),
    "metric": ("metric_commands", "Add metrics of your own in Python, and try them out."),
    "grade": ("grade_commands", "Grade the answers of a JSONL file with a verifier."),
    "doctor": ("doctor_commands", "Show what this machine can do."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called.

    Args:
        args: As of a group.
        table: Command -> (module of ``ratchet.cli``, help in the list of commands).
        aliases: Former name -> command.
        kwargs: As of a group.
    """

    def __init__(
        self,
        *args: Any,
        table: Mapping[str, tuple[str, str]],
        aliases: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._table, self._aliases = table, aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, without importing anything."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        name = self._aliases.get(cmd_name, cmd_name)
        if name not in self._table:
            return None
        module = import_module(f"ratchet.cli.{self._table[name][0]}")
        return next(one for one in vars(module).values() if isinstance(one, click.Command) and one.name == name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._table.items()])


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        click.echo(f"ratchet {version('ratchet-rl')}")
        ctx.exit()


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, callback=_print_version, expose_value=False, is_eager=True, help="Version.")
def ratchet() -> None:
    """Train language models with verifiable rewards on your own machine, and be told honestly whether it helped."""


def _count_presses() -> list[int]:
    """Start a list that gets an entry with each Ctrl-C, which is raised as ever."""
    presses: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        presses.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it may be ignored, or somebody else's
        signal.signal(signal.SIGINT, hear)
    return presses


def _open_missing_streams() -> None:
    """Give a process without standard streams some that lead nowhere: no file may take their numbers."""
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


_OUTPUT_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
# Imports make a hundred thousand objects and no garbage: looking for it takes a fifth of a short command's time.
_OBJECTS_BEFORE_COLLECTION = 200_000


def main() -> NoReturn:
    """Run the command line; every fault ends in one sentence and an exit code, ours in a traceback."""
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    _open_missing_streams()
    as_json = "--json" in sys.argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # better a question mark than a run that ends at a character
    presses = _count_presses()
    try:
        code = ratchet.main(standalone_mode=False)
        sys.stdout.flush()  # while its fault can still be told
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f" See {context.command_path} --help." if context else ""
        _fail("usage", error.format_message() + hint, EXIT_SETTING, as_json)
    except RatchetError as error:
        _fail(error.code, str(error), exit_code(error), as_json, problems(error))
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", "Interrupted.", EXIT_INTERRUPTED, as_json)
    except Exception as error:
        _tell_of(error, bool(presses), as_json)
        raise
    finally:
        gc.freeze()  # what is left is the system's to take back, not to be searched for garbage at the end


def _tell_of(error: Exception, was_pressed: bool, as_json: bool) -> None:
    """Tell machines of a fault that has no sentence, and everybody of one that is the output's or a Ctrl-C's."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_FAULTS:
        silence(sys.stdout)
        _fail("output", f"The output cannot be written: {error.strerror}.", EXIT_TASK, as_json)
    if was_pressed:  # it came while a library was loading, which has made another fault of it
        _fail("interrupted", "Interrupted.", EXIT_INTERRUPTED, as_json)
    if as_json:
        message = f"Unexpected error ({type(error).__name__}); see the traceback."
        tell(json.dumps(fault("error", message)))


def _fail(code: str, message: str, status: int, as_json: bool, found: Sequence[dict[str, str]] = ()) -> NoReturn:
    tell(f"Error: {message}", err=True)
    if as_json:
        told = fault(code, message)
        if found:
            told["error"]["problems"] = list(found)
        tell(json.dumps(told))
    sys.exit(status)
