"""A verifier report card as one HTML page that needs nothing else: no script, no font, no picture from elsewhere.

Every text is escaped by Jinja2, and what hides or acts in a text is made visible first. The plots are SVG by matplotlib
in the page's own colours, so that they follow a light or a dark screen.
"""

import io
import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from ratchet.report_card import PARSE_FAILURE_WARNING, PASS_MARK, ReportCard
from ratchet.shown import visible

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure

# Colours that stand in a plot for the page's own, which a style sheet decides.
_INK, _BAR, _FAINT = "#010203", "#040506", "#070809"
_PAGE_COLOURS = {_INK: "var(--ink)", _BAR: "var(--accent)", _FAINT: "var(--line)"}
_MOST_PROMPTS_DRAWN = 32


def page(card: ReportCard) -> str:
    """Return a card as a page."""
    return str(_template().render(card=card, histogram=_histogram(card), prompts=_prompts(card), **_words(card)))


@cache
def _template() -> "Template":
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": _percent, "visible": visible}
    source = resources.files("ratchet.service").joinpath("report_page.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source)


def _percent(share: float | None) -> str:
    return "none tried" if share is None else f"{share:.1%}"


def _words(card: ReportCard) -> dict[str, Any]:
    made = card.made_with
    return {
        "warns_of_parsing": card.share("unparseable") > PARSE_FAILURE_WARNING,
        "warning_share": PARSE_FAILURE_WARNING,
        "pass_mark": PASS_MARK,
        "source": made.verifier.get("source", ""),
        "left_out": list(card.probes.left_out.items()),
        "must_fail": [result for result in card.probes.results if not result.must_pass],
        "must_pass": [result for result in card.probes.results if result.must_pass],
        "made": [
            ("Base model", made.model_name),
            ("Fingerprint or commit", made.model),
            ("Quantization", made.quantization),
            ("Adapter", f"sha256 {made.start}" if made.start else "none"),
            ("Verifier", _settings({name: value for name, value in made.verifier.items() if name != "source"})),
            ("Reward", _settings(made.reward)),
            ("Data", f"{made.source}, {made.training_prompts:,} training prompts"),
            ("Data hash", made.data),
            ("System prompt", made.prompt.get("system_prompt") or "none"),
            ("Worked examples", str(len(made.prompt.get("worked_examples") or ()))),
            ("Sampling", f"temperature {made.temperature:g}, top-p {made.top_p:g}, top-k {made.top_k or 'off'}"),
            ("Longest answer", f"{made.max_answer_tokens:,} tokens"),
            ("Device", made.device),
            ("Versions", ", ".join(f"{name} {version}" for name, version in made.versions.items())),
        ],
    }


def _settings(settings: dict[str, Any]) -> str:
    return "\n".join(
        f"{name}: {_written(value)}" for name, value in settings.items() if value not in (None, "", [], {})
    )


def _written(value: Any) -> str:
    """Return a value as people type it: words in a list without their quotes, objects as JSON."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "; ".join(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | bool) else str(value)


def _histogram(card: ReportCard) -> Any:
    figure, axes = _figure(3.0)
    edges = [step / 10 for step in range(10)]
    bars = axes.bar(edges, card.histogram, width=0.094, align="edge", color=_BAR)
    axes.bar_label(bars, labels=[str(n) if n else "" for n in card.histogram], color=_INK, fontsize=10, padding=2)
    axes.set(xlim=(0, 1), ylim=(0, max(card.histogram) * 1.15), xlabel="reward")
    axes.set_xticks([step / 10 for step in range(0, 11, 2)])
    axes.set_yticks([])  # every bar has its number
    return _svg(figure, "How many answers scored how much, in ten steps from 0 to 1")


def _prompts(card: ReportCard) -> Any:
    """Draw every prompt as a row, a dot for each answer at its reward; dots at one place grow with their number."""
    scores = card.scores[:_MOST_PROMPTS_DRAWN]
    figure, axes = _figure(0.9 + 0.26 * len(scores))
    for row, score in enumerate(scores):
        counts = {reward: score.rewards.count(reward) for reward in sorted(set(score.rewards))}
        axes.plot([min(counts), max(counts)], [row, row], color=_FAINT, linewidth=2, zorder=1)
        sizes = [18 + 130 * number / len(score.rewards) for number in counts.values()]
        axes.scatter(list(counts), [row] * len(counts), s=sizes, color=_BAR if score.has_signal else _FAINT, zorder=2)
    axes.set(xlim=(-0.05, 1.05), ylim=(len(scores) - 0.4, -0.6), xlabel="reward")
    axes.set_yticks(range(len(scores)), [str(score.prompt_id) for score in scores])
    return _svg(figure, "The rewards of each prompt's answers; prompts whose answers all scored alike are faint")


def _figure(height: float) -> tuple["Figure", Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.tick_params(colors=_INK, labelcolor=_INK, length=0)
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_FAINT)
    return figure, axes


def _svg(figure: "Figure", meaning: str) -> Any:
    """Return a figure as an SVG element in the page's colours and type; ``meaning`` is for those who cannot see it."""
    import matplotlib
    from markupsafe import Markup, escape

    content = io.BytesIO()
    # Text stays text, in the page's own type; the salt and the missing date make the same card the same page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": meaning, "font.family": "sans-serif"}):
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    drawn = content.getvalue().decode()
    drawn = drawn[drawn.index("<svg") :]
    for colour, name in _PAGE_COLOURS.items():
        drawn = drawn.replace(colour, name)
    # Nothing of the card but numbers is in the drawing, so it is safe as it is.
    return Markup('<figure role="img" aria-label="{}">{}</figure>').format(escape(meaning), Markup(drawn))
