"""Chat templates without transformers: the Jinja environment that templates on the hub are written for.

What a template may use is what transformers gives it (utils/chat_template_utils.py of version 5.24): ``tojson`` that
escapes nothing, ``raise_exception``, ``strftime_now``, ``break`` and ``continue``, and the ``generation`` tag, which
marks what an assistant wrote and changes no text. A template is a program that came with a model, so it runs in
Jinja's sandbox and is given plain data alone.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class ChatTemplate:
    """A template with what is passed to it beside the messages: the special tokens by name, the user's options."""

    def __init__(self, text: str, variables: Mapping[str, Any]) -> None:
        self._text = text
        self._variables = dict(variables)

    @cached_property
    def _template(self) -> Template:
        return _environment().from_string(self._text)

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None, is_asked: bool = True
    ) -> str:
        """The text of a conversation, up to where the answer begins if one is asked for; may fail in any way."""
        # Copies: messages are shared between rows, and a template is not trusted to leave them alone.
        turns = [dict(message) for message in messages]
        offered = copy.deepcopy(list(tools)) if tools else None
        return self._template.render(
            messages=turns, tools=offered, documents=None, add_generation_prompt=is_asked, **self._variables
        )


class _Generation(Extension):
    """``{% generation %}...{% endgeneration %}`` stands for what is between."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja wants it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope of its own, as in transformers: what is set inside is not seen after it.
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Any) -> str:
        text: str = caller()
        return text


class _Dict:
    """``dict(...)`` of templates, without the rest of Python's ``dict``."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """A dictionary with these keys."""
        return dict.fromkeys(*args, **kwargs)


class _Namespace(Namespace):
    """``namespace(...)`` of templates, whose attributes cannot be Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _refuse_internal(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_internal(name)
        super().__setitem__(name, value)


def _refuse_internal(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("a namespace holds no attribute that begins with an underscore")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace
    )
    return environment


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
