"""What all pages share: templates that escape every text, the filters they use, settings as text.

A page needs nothing else: no script, no font, no picture from elsewhere. What hides or acts in a text is made visible.
"""

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from ratchet.run.display import shown_seconds, visible
from ratchet.service.reports.evaluation_words import column_title, interval, percent, points, when

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **fields: Any) -> str:
    """A page: the file ``template.html.jinja`` beside this one, filled in."""
    return _environment().get_template(f"{template}.html.jinja").render(**fields)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = resources.files("ratchet.service.reports")
    loader = FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8"))
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": percent,
        "points": points,
        "interval": interval,
        "column_title": column_title,
        "when": when,
        "duration": shown_seconds,
        "visible": visible,
    }
    return environment


def settings_text(settings: dict[str, Any]) -> str:
    """Settings, one a line, without those that are empty."""
    return "\n".join(f"{name}: {written(value)}" for name, value in settings.items() if not _is_empty(value))


def written(value: Any) -> str:
    """A value as people type it: words in a list without their quotes, objects as JSON."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "; ".join(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | bool) else str(value)


def _is_empty(value: Any) -> bool:
    return value in (None, "", [], {})
