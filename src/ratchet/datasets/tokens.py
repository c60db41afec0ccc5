"""Token ids of prompts without transformers: what a model's folder says, by ``tokenizers`` and Jinja2.

For whoever must know before a model loads whether prompts fit, and must not load torch. It reads ``tokenizer.json``
with the special tokens and the chat template beside it, in the way of transformers 5 (``TokenizersBackend``). Tests
hold the ids equal to those of transformers; a run is trained on what the engine encodes itself.

Left out: tokenizers that come in another form (SentencePiece, tiktoken, inside a GGUF file). Converting them takes
transformers, so that their prompts are counted when the run starts. Tokenizer classes of transformers that replace
parts of ``tokenizer.json`` by their own count alike as long as both say the same, which they do in released models.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ratchet.datasets.chat_template import ChatTemplate
from ratchet.datasets.encoder import PLAIN_TEMPLATE, PromptEncoder, own_first
from ratchet.errors import ModelUnavailable
from ratchet.models.model_files import Place, small_files
from ratchet.run.records import Message

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_NO_LIMIT = 1 << 30
_DEFAULT_TEMPLATE, _TOOL_TEMPLATE = "default", "tool_use"
# Stands for a model's templates where none is the default one: it fails as choosing among them would.
_NO_DEFAULT = "{{ raise_exception('no default template') }}"


class NotCountable(Exception):
    """The tokens cannot be counted without transformers. The text says why, in a sentence."""


def open_encoder(place: Place, revision: str, options: Mapping[str, Any]) -> PromptEncoder:
    """The encoder of prompts for a model.

    Args:
        place: Where the model is. The small files of a hub id are downloaded where the cache lacks them.
        revision: Of a hub id.
        options: The chat template options.

    Raises:
        NotCountable: it takes transformers.
        ModelUnavailable: the tokenizer's files are damaged, or those of a hub id cannot be had.
        InvalidSetting: the chat template fails on any conversation.
    """
    if place.gguf_file:
        raise NotCountable(
            f"The prompts' tokens are not counted yet: the tokenizer of {place.name} is inside a GGUF file, which is "
            "read when the run starts."
        )
    folder = small_files(place, revision)
    if folder is None:
        raise ModelUnavailable(
            f"The tokenizer of the base model {place.name}, revision {revision}, can neither be found in the hub's "
            "cache nor be downloaded. Check name, revision and connection, or give a local folder."
        )
    if not (folder / "tokenizer.json").is_file():
        raise NotCountable(
            f"The prompts' tokens are not counted yet: {place.name} has no tokenizer.json, and its tokenizer is "
            "converted when the run starts."
        )
    try:
        return _encoder(folder, options)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(place, error) from error
    except Exception as error:
        if type(error) is not Exception:  # what the tokenizers library raises is of no kind of its own
            raise
        raise _damaged(place, error) from error


def _damaged(place: Place, error: Exception) -> ModelUnavailable:
    return ModelUnavailable(
        f"The tokenizer files of the base model {place.name} are damaged ({type(error).__name__}). Take a whole copy."
    )


def _encoder(folder: Path, options: Mapping[str, Any]) -> PromptEncoder:
    settings = _settings(folder)
    special = _special_tokens(settings)
    tokenizer = _tokenizer(folder, settings, special)
    template = _template(folder, settings)
    # As a keyword of transformers' own would be: an option of the user's wins over a special token of that name.
    variables = {**special, **options}
    rendered = ChatTemplate(PLAIN_TEMPLATE if template is None else template, variables)
    with_tools = _template(folder, settings, _TOOL_TEMPLATE)
    # Models that bring several templates have one for conversations with tools, as transformers chooses.
    rendered_with_tools = rendered if with_tools is None else ChatTemplate(with_tools, variables)
    beginning = tuple(tokenizer.encode("a").ids[:1])
    bos = special.get("bos_token")
    limit = settings.get("model_max_length")

    def render(messages: Sequence[Message], tools: Sequence[Any] | None, is_asked: bool) -> str:
        return (rendered_with_tools if tools else rendered).render(messages, tools, is_asked)

    return PromptEncoder(
        render,
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        template=template,
        option_names=tuple(options),
        beginning=beginning if bos is not None and beginning == (tokenizer.token_to_id(bos),) else (),
        window=limit if isinstance(limit, int) and limit < _NO_LIMIT else None,
        end_ids=own_first(tokenizer.token_to_id(special.get("eos_token", "")), _end_ids(folder)),
    )


def _end_ids(folder: Path) -> set[int]:
    """The ids that end an answer, of the generation configuration and of the model's own configuration."""
    found = [_json(folder / name).get("eos_token_id") for name in ("config.json", "generation_config.json")]
    ids = [one for ids in found for one in (ids if isinstance(ids, list) else [ids])]
    return {one for one in ids if isinstance(one, int)}


def _settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with what older models say in special_tokens_map.json laid over it."""
    settings = _json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in settings:
        settings |= _json(folder / "special_tokens_map.json")
    return settings


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} holds no mapping")
    return content


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that have names, as templates know them: the usual ones and those of the model."""
    found = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) and name in _NAMED else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    own = settings.get("extra_special_tokens")
    return found | (dict(own) if isinstance(own, dict) else {})


def _tokenizer(folder: Path, settings: Mapping[str, Any], special: Mapping[str, str]) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens"))
    known = tokenizer.get_added_tokens_decoder().values()
    written = {repr(token) for token in known}
    contents = {token.content for token in known}
    added = []
    for _, fields in sorted(
        (int(number), fields) for number, fields in settings.get("added_tokens_decoder", {}).items()
    ):
        token = AddedToken(**fields)
        if repr(token) not in written:
            added.append(token)
            contents.add(token.content)
    for text in (*special.values(), *_extra_tokens(settings)):
        if text not in contents:
            added.append(AddedToken(text, special=True))
            contents.add(text)
    tokenizer.add_tokens(added)
    return tokenizer


def _extra_tokens(settings: Mapping[str, Any]) -> list[str]:
    listed = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    if isinstance(listed, dict):
        return []  # they have names
    return [token["content"] if isinstance(token, dict) else token for token in listed]


def _template(folder: Path, settings: Mapping[str, Any], name: str = _DEFAULT_TEMPLATE) -> str | None:
    """The model's chat template, None if it brings none; of several the one of that name."""
    given = settings.get("chat_template")
    templates = {one["name"]: one["template"] for one in given} if isinstance(given, list) else given
    files = {file.stem: file for file in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        templates = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    if isinstance(templates, dict):
        found = templates.get(name, _NO_DEFAULT if name == _DEFAULT_TEMPLATE else None)
        return None if found is None else str(found)
    return None if templates is None or name != _DEFAULT_TEMPLATE else str(templates)
