"""Settings as people write them: YAML files, and flags such as ``--rl.rounds 6`` or ``--rounds 6``.

Turns text into a RunConfig, or into a small class of settings such as those of an endpoint or a loop. Knows no command
line: ``cli`` hands over keys and texts. What is wrong is put into words in ``setting_words.py``.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ratchet.config.base import Settings, walk_settings
from ratchet.config.data import MathPairsData
from ratchet.config.run import RunConfig
from ratchet.config.setting_words import explained, full_key, keys, short_keys
from ratchet.errors import InvalidSetting

Section = TypeVar("Section", bound=Settings)
_MOST_NESTED = 100


class SettingsLoader(yaml.SafeLoader):
    """YAML with the plain values of version 1.2: 1e-4 is a number, off and no are texts, 010 is ten, dates are texts.

    The 1.1 rules of the library would turn ``format_bonus: off`` into false. A key given twice is refused, and so is
    nesting that no settings have, while it is scanned: that takes time in the square of its depth.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}  # noqa: RUF012 - the library's way to declare them

    def fetch_more_tokens(self) -> None:
        """Scan the next tokens."""
        if self.flow_level + len(self.indents) > _MOST_NESTED:
            reason = f"it is nested more than {_MOST_NESTED} deep"
            raise yaml.scanner.ScannerError(None, None, reason, self.get_mark())
        super().fetch_more_tokens()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Make a mapping of a node."""
        keys = [key.value for key, _ in node.value]
        if repeated := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"{repeated} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?[0-9]+$", list("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+0123456789."),
    ),
):
    SettingsLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)
SettingsLoader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def read_file(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file of settings.

    Raises:
        InvalidSetting: it is missing, unreadable, or not a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), SettingsLoader)
    except OSError as error:
        raise InvalidSetting(f"The settings file {path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        what = f": {error.problem}" if isinstance(error, yaml.MarkedYAMLError) and error.problem else ""
        raise InvalidSetting(f"The settings file {path} is not valid YAML{where}{what}.") from error
    if not isinstance(content, dict):
        raise InvalidSetting(f"The settings file {path} holds no settings: it must be a mapping such as model: tiny.")
    return content


class _Dumper(yaml.SafeDumper):
    """Quotes what the loader would read as something else than a text."""

    yaml_implicit_resolvers = SettingsLoader.yaml_implicit_resolvers

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Quote a text with escapes where it has line breaks or invisible characters."""
        style = None if data.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(str, _Dumper.represent_str)


def as_yaml(config: RunConfig) -> str:
    """All settings as a YAML file that ``read_file`` and ``build`` turn into the same settings."""
    settings = config.model_dump(mode="json", exclude={"given"})
    return yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def build(settings: Mapping[str, Any], flags: Mapping[str, str] | None = None) -> RunConfig:
    """Make a run's settings from nested values and, over them, flags by key.

    Args:
        settings: Nested mapping, as in a file; a key may also be dotted, or a leaf's name where one section has it.
        flags: Key (dotted or a leaf's name, likewise) -> text.

    Raises:
        InvalidSetting: one sentence for each setting that is wrong.
    """
    try:
        text = json.dumps(_merged(settings, flags or {}))
    except (RecursionError, ValueError) as error:  # json's words for a circle and for too much depth
        raise InvalidSetting("The settings hold a value that contains itself or is nested too deeply.") from error
    try:
        return RunConfig.model_validate_json(text)
    except ValidationError as error:
        raise explained(error, keys()) from error


def build_section(kind: type[Section], given: Mapping[str, Any]) -> Section:
    """Make a small class of settings of KEY=VALUE texts by key; what is no text is taken as it is.

    Raises:
        InvalidSetting: one sentence for each setting that is wrong.
    """
    known = dict(walk_settings(kind))
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f" Did you mean {close[0]}?" if close else f" There are {', '.join(known)}."
            raise InvalidSetting(f"There is no setting {key} here.{meant}", key)
        values[name] = typed_text([known[name]], value) if isinstance(value, str) else value
    try:
        return kind.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise explained(error, {name: [field] for name, field in known.items()}, hides_texts=True) from error


def _merged(settings: Mapping[str, Any], flags: Mapping[str, str]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key, value in settings.items():
        plain = _plain(value, str(key))
        if key in RunConfig.model_fields and not (isinstance(value, str) and key in short_keys()):
            set_at(merged, str(key), plain, is_new=True)
        else:
            set_at(merged, full_key(str(key)), plain, is_new=True)
    for key, text in flags.items():
        value = _plain(typed_text(keys()[full_key(key)], text), full_key(key))
        set_at(merged, full_key(key), value)
        if isinstance(remembered := merged.get("given"), dict):  # the file is a run's config.json
            set_at(remembered, full_key(key), value)
    _read_none(merged)
    _name_usual_source(merged)
    return merged


def _name_usual_source(settings: dict[str, Any]) -> None:
    """Take the usual source for settings of data that are all its own, such as data.heldout alone."""
    data = settings.get("data")
    if isinstance(data, dict) and "source" not in data and data.keys() <= MathPairsData.model_fields.keys():
        data["source"] = "math_pairs"


def _plain(value: Any, key: str) -> Any:
    """A value in JSON's types, so that all ways to give settings accept the same.

    Raises:
        InvalidSetting: it is an object of another kind, or a text with half a Unicode character.
    """
    if isinstance(value, Mapping):
        return {str(name): _plain(inner, f"{key}.{name}") for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, key) for inner in value]
    if isinstance(value, str):
        return _whole(value, key)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise InvalidSetting(
        f"{key} holds a {type(value).__name__}, which is neither text, number, true/false, list nor mapping.", key
    )


def _whole(text: str, key: str) -> str:
    """A text with both halves of each Unicode character together, as YAML's escapes may bring them apart.

    Raises:
        InvalidSetting: a half is alone; no tokenizer takes it, nor does a file of settings.
    """
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"Setting {key} holds half a Unicode character. Correct it.", key) from error


def set_at(settings: dict[str, Any], key: str, value: Any, *, is_new: bool = False) -> None:
    """Set a value at a dotted key of nested settings; one that ``is_new`` must not be there yet."""
    section = settings
    *path, leaf = key.split(".")
    for name in path:
        inner = section.setdefault(name, {})
        if not isinstance(inner, dict):
            raise InvalidSetting(f"Setting {name} must be a section with settings in it.", key)
        section = inner
    if is_new and isinstance(value, dict) and isinstance(section.get(leaf), dict):
        for name, inner in value.items():  # a section after a dotted key of it
            set_at(settings, f"{key}.{name}", inner, is_new=True)
        return
    if is_new and leaf in section:
        raise InvalidSetting(f"Setting {key} is given twice. Leave one of them out.", key)
    section[leaf] = value


def typed_text(fields: Sequence[FieldInfo], text: str) -> Any:
    """A flag's text as a file would give it: as it stands for a text setting, else read as YAML."""
    if any(str in _types(field.annotation) for field in fields):
        return text
    try:
        return yaml.load(text, SettingsLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text  # for the error to name


def _types(annotation: Any) -> set[Any]:
    """What an annotation is a union of, down to plain types; a Literal counts as Literal."""
    if get_origin(annotation) is Literal:
        return {Literal}
    if get_origin(annotation) in (dict, tuple):
        return {get_origin(annotation)}
    parts = [part for part in get_args(annotation) if not isinstance(part, FieldInfo)]
    return {kind for part in parts for kind in _types(part)} if parts else {annotation}


def _read_none(settings: dict[str, Any]) -> None:
    """Read "none" as nothing for numbers that may be left out. For others it is a text: off is what they call it."""
    for key, fields in keys().items():
        *path, leaf = key.split(".")
        section: Any = settings
        for name in path:
            section = section.get(name) if isinstance(section, dict) else None
        if isinstance(section, dict) and section.get(leaf) == "none":
            kinds = set().union(*(_types(field.annotation) for field in fields))
            if type(None) in kinds and not kinds & {str, Literal}:
                section[leaf] = None
