"""Settings as people write them: YAML files, and flags such as ``--rl.rounds 6`` or ``--rounds 6``.

Turns text into a RunConfig and what pydantic finds wrong into sentences with the labels that users see. Knows no
command line: ``cli`` hands over keys and texts.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ratchet.config import RunConfig, walk_settings
from ratchet.config.not_rewards import why_not_a_reward
from ratchet.config.renames import current_key
from ratchet.errors import InvalidSetting

# Of several kinds: what is in them follows from data.source, verifier.kind and watch.kind.
_SECTIONS = ("data", "verifier", "watch")
# A leaf that one of these shares with another section is the other one's: --epochs stays rl's, --metric the verifier's.
_WRITTEN_IN_FULL = ("watch", "sft", "dpo")


class _Loader(yaml.SafeLoader):
    """YAML with the plain values of version 1.2: 1e-4 is a number, off and no are texts, 010 is ten, dates are texts.

    The 1.1 rules of the library would turn ``format_bonus: off`` into false. A key given twice is refused.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}  # noqa: RUF012 - the library's way to declare them

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
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
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def read_file(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file of settings.

    Raises:
        InvalidSetting: it is missing, unreadable, or not a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), _Loader)
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

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

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
        raise _explained(error) from error


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
    usual = RunConfig.model_fields["data"].default
    data = settings.get("data")
    if isinstance(data, dict) and "source" not in data and data.keys() <= type(usual).model_fields.keys():
        data["source"] = usual.source


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


def keys() -> dict[str, list[FieldInfo]]:
    """Every dotted key that people type, with its fields: one per variant of its section."""
    found: dict[str, list[FieldInfo]] = {}
    for key, field in walk_settings(RunConfig):
        if not isinstance(field.json_schema_extra, dict) or field.json_schema_extra.get("typed", True):
            found.setdefault(key, []).append(field)
    return found


def short_keys() -> dict[str, str]:
    """Leaf name -> dotted key, for the leaves that one key alone ends with; a top-level key wins.

    A section that is itself one thing, ``start_from``, goes by its name.
    """
    owners: dict[str, set[str]] = {}
    for key in keys():
        if key.partition(".")[0] not in _WRITTEN_IN_FULL:
            owners.setdefault(key.rpartition(".")[2], set()).add(key)
    return {"start_from": "start_from.adapter"} | {
        leaf: leaf if leaf in whole else next(iter(whole))
        for leaf, whole in owners.items()
        if (len(whole) == 1 or leaf in whole) and leaf != "adapter"
    }


def full_key(key: str) -> str:
    """The dotted key that a flag means, also by a name that the setting had before.

    Raises:
        InvalidSetting: there is no such setting, or several sections have it.
    """
    key, known = current_key(key), keys()
    if key in known:
        return key
    short = short_keys()
    if key in short:
        return short[key]
    several = sorted(k for k in known if k.endswith(f".{key}"))
    if several:
        raise InvalidSetting(f"Setting {key} could mean {' or '.join(several)}. Write it in full.", key)
    raise InvalidSetting(_unknown(key), key)


def _unknown(key: str) -> str:
    close = difflib.get_close_matches(key, [*keys(), *short_keys()], n=1)
    meant = f" Did you mean {full_key(close[0])}?" if close else ""
    return f"There is no setting {key}.{meant} See ratchet train --help for all of them."


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
        return yaml.load(text, _Loader)
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


def _explained(error: ValidationError) -> InvalidSetting:
    """Put pydantic's findings into sentences: the label, the value, the limit. One for each setting."""
    by_key: dict[str, list[dict[str, Any]]] = {}
    for finding in error.errors(include_url=False):
        by_key.setdefault(_key_of(finding["loc"]), []).append(dict(finding))
    sentences = [sentence for key, findings in by_key.items() for sentence in _sentences(key, findings)]
    return InvalidSetting(" ".join(dict.fromkeys(sentences)), next(iter(by_key)))


def _key_of(location: tuple[Any, ...]) -> str:
    """The dotted key of a finding, without the variants of a section or of a value that pydantic names."""
    names = [str(part) for part in location]
    if len(names) > 1 and names[0] in _SECTIONS:
        del names[1]
    known = keys()
    for end in range(len(names), 0, -1):
        if ".".join(names[:end]) in known:
            return ".".join(names[:end])
    return ".".join(names)


def _sentences(key: str, findings: list[dict[str, Any]]) -> Iterator[str]:
    """Say what is wrong with one setting."""
    # Of a value that may be one thing or another, the findings that reach deepest into it are about what was meant.
    deepest = max(len(finding["loc"]) for finding in findings)
    by_place: dict[str, list[dict[str, Any]]] = {}
    for finding in findings:
        if len(finding["loc"]) == deepest:
            by_place.setdefault(_place_in(key, finding["loc"]), []).append(finding)
    for place, alike in by_place.items():
        yield _sentence(key, place, alike)


def _place_in(key: str, location: tuple[Any, ...]) -> str:
    """Where in a list or mapping a finding is, such as ", entry 2, assistant"; empty for a plain value."""
    rest = location[len(key.split(".")) :]
    indices = [position for position, part in enumerate(rest) if isinstance(part, int)]
    if indices:
        return f", entry {rest[indices[0]] + 1}" + "".join(f", {part}" for part in rest[indices[0] + 1 :])
    inside_mapping = key.endswith(("template_options", "task_config")) and rest
    return f", {rest[0]}" if inside_mapping else ""


def _sentence(key: str, place: str, findings: list[dict[str, Any]]) -> str:
    finding = findings[0]
    kind, context, value = finding["type"], finding.get("ctx", {}), finding.get("input")
    fields = keys().get(key)
    label = (fields[0].title if fields else None) or key
    name = (f"{label} ({key})" if label != key else key or "The settings") + place
    if refused := _refused_measure(key, finding):
        return refused
    match kind:
        case "value_error":
            return str(context["error"])
        case "extra_forbidden" if fields and finding["loc"][0] in _SECTIONS:
            section = finding["loc"][0]
            owner = "data.source" if section == "data" else f"{section}.kind"
            return f"{name} does not go with {owner} {finding['loc'][1]}. Leave one of them out."
        case "extra_forbidden":
            return _unknown(key)
        case "missing":
            return f"{name} is missing. Give it a value."
        case "union_tag_not_found" | "union_tag_invalid":
            discriminator = str(context["discriminator"]).strip("'")
            said = f"is {json.dumps(context['tag'])}" if "tag" in context else "is missing"
            return f"{key}{place}.{discriminator} {said}; it must be one of {', '.join(_variants(key, discriminator))}."
        case "string_pattern_mismatch" if fields:
            return f"{name} is {shown_value(value)}; what it can be: {fields[0].description}"
    limits = dict.fromkeys(limit_in_words(one) for one in findings)
    return f"{name} is {shown_value(value)}; it must be {' or '.join(limits)}."


def _refused_measure(key: str, finding: dict[str, Any]) -> str | None:
    """Say why a verifier or metric of a known name is not offered, or None if that is not what is wrong."""
    context = finding.get("ctx", {})
    section = key.partition(".")[0]
    if finding["type"] == "union_tag_invalid" and section in ("verifier", "watch"):
        measure, what = context["tag"], f"{section}.kind"
    elif finding["type"] in ("literal_error", "extra_forbidden") and finding["loc"][-1] == "metric":
        measure, what = finding.get("input"), f"{section}.metric"
    else:
        return None
    reason = why_not_a_reward(measure)
    if reason is None:
        return None
    return (
        f"{what} is {shown_value(measure)}, which is never a reward: {reason}. Choose a verifier that checks one "
        "answer against its reference."
    )


def _variants(key: str, discriminator: str) -> list[str]:
    """The kinds that a section, or an entry of a list in it, may be of."""
    tag = f"{key}.{discriminator}"
    if tag in keys():
        return [value for field in keys()[tag] for value in get_args(field.annotation)]
    return [kind for kind in _variants(key.rpartition(".")[0], discriminator) if kind != "composite"]


def limit_in_words(finding: dict[str, Any]) -> str:
    """Complete "it must be ..." for a finding."""
    limit = {
        "greater_than_equal": "at least {ge}",
        "greater_than": "above {gt}",
        "less_than_equal": "at most {le}",
        "less_than": "below {lt}",
        "literal_error": "{expected}",
        "string_pattern_mismatch": "a text of another form",
        "string_too_short": "a text that is not empty",
        "string_too_long": "a text of at most {max_length} characters",
        "too_long": "at most {max_length} entries",
        "too_short": "at least {min_length} entries",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "int_parsing_size": "a smaller number",
        "float_type": "a number",
        "bool_type": "true or false",
        "finite_number": "a finite number",
        "string_type": "a text",
        "tuple_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a section with settings in it",
        "model_attributes_type": "a section with settings in it",
    }.get(finding["type"])
    if limit is None:
        return str(finding["msg"]).removeprefix("Input should be ").removeprefix("Value should be ")
    context = finding.get("ctx", {})
    return limit.format(**{name: f"{x:g}" if isinstance(x, float) else x for name, x in context.items()})


def shown_value(value: Any) -> str:
    """A value as an error shows it, shortened where it is long."""
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 80 else shown[:77] + "..."
