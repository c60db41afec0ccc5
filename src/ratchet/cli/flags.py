"""Flags made from the settings model: ``--rl.prompts-per-round 16``, or ``--prompts-per-round 16`` where one has it."""

from collections.abc import Collection, Mapping
from typing import Any

import click

from ratchet.config.config_text import keys, short_keys

_DOT = "__"


class SettingsCommand(click.Command):
    """A command with a flag for every setting, listed by section in its help.

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
        super().__init__(*args, **kwargs)
        options = _options(further_names or {})
        self.params.extend(one for one in options if settings is None or {one.section, one.key} & set(settings))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then the settings by section."""
        own, sections = [], dict[str, list[tuple[str, str]]]()
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if isinstance(param, _SettingOption):
                sections.setdefault(param.section, []).append(record)
            else:
                own.append(record)
        with formatter.section("Options"):
            formatter.write_dl(own)
        for section, records in sections.items():
            with formatter.section(f"Settings: {section}"):
                formatter.write_dl(records)


class _SettingOption(click.Option):
    """The flag of one setting; its text is read by ``config_text``, which knows the type and the limits."""

    def __init__(self, declarations: list[str], key: str, **kwargs: Any) -> None:
        super().__init__(declarations, **kwargs)
        self.key = key
        self.section = key.partition(".")[0] if "." in key else "run"


def _options(further_names: Mapping[str, str]) -> list[_SettingOption]:
    short = {key: leaf for leaf, key in short_keys().items() if leaf != key}
    options = []
    for key, fields in keys().items():
        if key == "config_version":
            continue
        names = [f"--{key.replace('_', '-')}"]
        if key in short:
            names.append(f"--{short[key].replace('_', '-')}")
        if key in further_names:
            names.append(further_names[key])
        destination = key.replace(".", _DOT)
        usual = {
            str(field.default)
            for field in fields
            if isinstance(field.default, str | int | float) and field.default != ""
        }
        help_text = f"{fields[0].description} [default: {usual.pop()}]" if len(usual) == 1 else fields[0].description
        options.append(_SettingOption([destination, *names], key, help=help_text, metavar="VALUE", type=str))
    return options


def given(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings among a command's parameters that were given: dotted key -> text."""
    known = keys()
    flags = {name.replace(_DOT, "."): value for name, value in parameters.items() if value is not None}
    return {key: value for key, value in flags.items() if key in known}
