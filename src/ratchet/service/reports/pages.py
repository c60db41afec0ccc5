"""What all pages share: templates that escape every text, settings as text, and drawings, also for files.

A page needs nothing else: no script, no font, no picture from elsewhere. What hides or acts in a text is made visible.
Its drawings are in stand-in colours that give way to the page's own, so that they follow a light or a dark screen. They
are made by matplotlib without pyplot, which would pick a window system and keep global state.
"""

import io
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

from ratchet.run.display import shortened, shown_seconds, visible
from ratchet.service.reports.evaluation_words import column_title, interval, percent, points, when

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

# How a drawing fits a page: narrow and wide ones shrink with it, a fixed one keeps its size and scrolls in its box.
Kind = Literal["narrow", "wide", "fixed"]
MARKERS = ("o", "s", "D", "^")
_LABEL_CHARACTERS = 24


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


@dataclass(frozen=True)
class Palette:
    """Colours by what they are for. ``sides`` tell the sides of a comparison apart, markers do so too."""

    paper: str
    ink: str
    soft: str
    line: str
    accent: str
    good: str
    bad: str
    warn: str
    sides: tuple[str, ...]


PAGE = Palette(
    "#010101", "#010203", "#010204", "#070809", "#040506", "#010205", "#010206", "#010207",
    ("#010301", "#010302", "#010303", "#010304"),
)  # fmt: skip
_PAGE_COLOURS = {
    PAGE.paper: "var(--paper)",
    PAGE.ink: "var(--ink)",
    PAGE.soft: "var(--soft)",
    PAGE.line: "var(--line)",
    PAGE.accent: "var(--accent)",
    PAGE.good: "var(--good)",
    PAGE.bad: "var(--bad)",
    PAGE.warn: "var(--warn)",
    **{colour: f"var(--side-{number})" for number, colour in enumerate(PAGE.sides, start=1)},
}
# For files, on white. Sides as on a light page; every colour has a contrast of 4.5 to white but the line's.
FILE = Palette(
    "#ffffff", "#1d2126", "#5b636d", "#c9cdd2", "#1f5fa8", "#1f7a3a", "#b3261e", "#8a5a00",
    ("#6b7280", "#a35c00", "#1f5fa8", "#8a2f5e"),
)  # fmt: skip


def figure(width: float, height: float, palette: Palette, *, dpi: int = 100) -> tuple["Figure", Any]:
    """A figure of that size in inches with one empty pair of axes: a line below, nothing else."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    if palette is PAGE:
        made.patch.set_alpha(0)
    axes = made.add_subplot()
    bare(axes, palette)
    return made, axes


def bare(axes: Any, palette: Palette) -> None:
    """Take from axes what is not needed to read them, and give the rest its colours."""
    axes.patch.set_alpha(0)
    axes.tick_params(colors=palette.ink, labelcolor=palette.ink, length=0)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(palette.ink)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(palette.line)


def label(text: str, most: int = _LABEL_CHARACTERS) -> str:
    """A name as it may be drawn: one short line, nothing that acts or hides, no formula to matplotlib."""
    return shortened(" ".join(visible(text).split()), most).replace("$", r"\$")


def svg(drawn: "Figure", meaning: str, kind: Kind = "narrow") -> Any:
    """A figure as an SVG element in the page's colours and type; ``meaning`` is for those who cannot see it."""
    import matplotlib
    from markupsafe import Markup

    content = io.BytesIO()
    # Text stays text, in the page's own type; the salt and the missing date make the same figure the same page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": meaning}), _any_script():
        drawn.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    text = content.getvalue().decode()
    text = text[text.index("<svg") :]
    # Names of groups are the same in every figure of a page, and nothing refers to them.
    text = re.sub(r'<metadata>.*?</metadata>| id="[A-Za-z0-9.]+_[0-9]+"', "", text, flags=re.DOTALL)
    for colour, name in _PAGE_COLOURS.items():
        text = text.replace(colour, name)
    # matplotlib escapes the texts that it draws, so the element is safe as it is.
    element = Markup('<figure class="{}" role="img" aria-label="{}">{}</figure>')
    return element.format(kind, meaning, Markup(text))


def png(drawn: "Figure") -> bytes:
    """A figure as a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    content = io.BytesIO()
    with _any_script():
        FigureCanvasAgg(drawn).print_png(content)  # type: ignore[no-untyped-call]
    return content.getvalue()


@contextmanager
def _any_script() -> Iterator[None]:
    """Let names be in a script that the font lacks: they are boxes in a file, and a page has the reader's own fonts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield
