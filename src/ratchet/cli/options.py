"""Options and arguments that several commands take, each declared once, and flags made from the settings model.

A flag is ``--rl.prompts-per-round 16``, or ``--prompts-per-round 16`` where only one setting has that name.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ratchet.config import RunConfig
from ratchet.config.base import current_key
from ratchet.config.config_text import build, read_file
from ratchet.config.setting_words import keys, short_keys

PATH = click.Path(path_type=Path)
# Sections and further names of commands whose only settings are those of a verifier.
VERIFIER_FLAGS: dict[str, Any] = {"settings": ("verifier", "reward"), "further_names": {"verifier.kind": "--verifier"}}

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on the last line of stdout.")
queue_option = click.option("--queue", is_flag=True, help="Queue it for ratchet serve, and return at once.")
run_argument = click.argument("run_or_folder")
config_argument = click.argument("config", required=False, type=PATH)
config_option = click.option(
    "--config",
    type=PATH,
    help="Settings of a run (YAML), of which verifier and reward are used; flags take precedence.",
)
out_option = click.option("--out", type=PATH, help="Run folder; by default one under the user's data folder.")
project_option = click.option("--project", metavar="LABEL", help="Only those with this project label.")
report_option = click.option("--report", type=PATH, help="Write an HTML page to this file.")
chart_option = click.option("--chart", type=PATH, help="Draw a chart into this file (PNG).")
inspected_option = click.option(
    "--inspected",
    is_flag=True,
    help="Confirm that you have read the verifier's report (ratchet inspect); it is made if there is none.",
)
override_option = click.option(
    "--override-report",
    metavar="REASON",
    default="",
    help="Start although the verifier's report refuses the run. The reason, in three words or more, is recorded.",
)
against_option = click.option(
    "--against",
    multiple=True,
    metavar="FILE",
    type=PATH,
    help="JSONL file of rows you score on (prompt, messages, question or problem). The run is refused if a training "
    "row is among them. Repeatable.",
)


@dataclass(frozen=True)
class StartOptions:
    """How a run is to start: ``queue`` leaves it to the scheduler."""

    as_json: bool
    inspected: bool
    override_report: str
    queue: bool
    out: Path | None


def start_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command that starts runs; they reach it as ``start``, with --out and --queue if any."""

    @inspected_option
    @override_option
    @json_option
    @wraps(function)
    def packed(
        as_json: bool,
        inspected: bool,
        override_report: str,
        queue: bool = False,
        out: Path | None = None,
        **others: Any,
    ) -> Any:
        return function(start=StartOptions(as_json, inspected, override_report, queue, out), **others)

    return packed


class SettingsCommand(click.Command):
    """A command with a flag for every setting, listed by section in its help. Flags reach it as ``flags``: key -> text.

    Args:
        settings: Sections and dotted keys whose settings have flags; left out, all of them.
        further_names: Dotted key -> one more flag for it.
        args: As of a command.
        kwargs: Likewise.
    """

    def __init__(
        self,
        *args: Any,
        settings: Collection[str] | None = None,
        further_names: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        # Flags of settings that were renamed are still taken.
        normal = {"token_normalize_func": lambda name: current_key(name.replace("-", "_")).replace("_", "-")}
        super().__init__(*args, **{"context_settings": normal, **kwargs})
        options = _setting_options(further_names or {})
        self._settings = [one for one in options if settings is None or {one.section, one.key} & set(settings)]
        self.params.extend(self._settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Gather the settings that were given, and call the command."""
        values = {one.key: ctx.params.pop(str(one.name)) for one in self._settings}
        ctx.params["flags"] = {key: value for key, value in values.items() if value is not None}
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then the settings by section."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                section = f"Settings: {param.section}" if isinstance(param, _SettingOption) else "Options"
                sections.setdefault(section, []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)


class _SettingOption(click.Option):
    """The flag of one setting; its text is read by ``config_text``, which knows the type and the limits."""

    def __init__(self, declarations: list[str], key: str, **kwargs: Any) -> None:
        super().__init__(declarations, **kwargs)
        self.key = key
        self.section = key.partition(".")[0] if "." in key else "run"


def _setting_options(further_names: Mapping[str, str]) -> list[_SettingOption]:
    short = {key: leaf for leaf, key in short_keys().items() if leaf != key}
    options = []
    for key, fields in keys().items():
        if key == "config_version":
            continue
        names = [f"--{name.replace('_', '-')}" for name in (key, short.get(key)) if name]
        names += [further_names[key]] if key in further_names else []
        defaults = {
            str(field.default)
            for field in fields
            if isinstance(field.default, str | int | float) and field.default != ""
        }
        default = f" [default: {defaults.pop()}]" if len(defaults) == 1 else ""
        destination = key.replace(".", "__")
        text = " ".join(dict.fromkeys(str(field.description) for field in fields)) + default
        options.append(_SettingOption([destination, *names], key, help=text, metavar="VALUE", type=str))
    return options


def settings_of(config: Path | None, flags: Mapping[str, str]) -> RunConfig:
    """Settings of a file, if there is one, and of flags, which take precedence.

    Raises:
        UsageError: there are neither.
    """
    if config is None and not flags:
        raise click.UsageError(
            "Give a settings file (the README shows one) or settings as flags. ratchet demo needs none."
        )
    return build(read_file(config) if config else {}, dict(flags))


def verifier_settings(config: Path | None, flags: Mapping[str, str]) -> RunConfig:
    """Settings whose verifier and reward are used; without a file the bonus is off unless asked for.

    Raises:
        UsageError: there is neither a file nor a kind of verifier.
    """
    if config is not None:
        return build(read_file(config), dict(flags)).resolved()
    if "verifier.kind" not in flags:
        raise click.UsageError("Give --verifier with a kind, such as math, or --config with the settings of a run.")
    return build({}, {"reward.format_bonus": "off", **flags}).resolved()


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Texts like KEY=VALUE as a mapping.

    Raises:
        click.UsageError: one is not like that, or a key comes twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals or not value:
            raise click.UsageError(f"{option} is {text!r}; write it as KEY=VALUE.")
        if key in found:
            raise click.UsageError(f"{option} gives {key} twice. Leave one of them out.")
        found[key] = value
    return found
