"""Texts of models and of rows on their way to a screen, a page or a file that must be valid Unicode; sizes, times."""

import re
from collections.abc import Sequence
from unicodedata import category

from ratchet.config import LimitSettings

_HALVES = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def whole(text: str) -> str:
    """A text with halves of surrogate pairs replaced: a model may write one, and UTF-8 cannot hold it."""
    return _HALVES.sub(_REPLACEMENT, text)


def visible(text: str) -> str:
    """A text in which nothing acts on a terminal or hides: no control or format characters but line and tab."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else " " if category(c) == "Zs" else _REPLACEMENT for c in text)


def shortened(text: str, limit: int) -> str:
    """At most the first ``limit`` characters of a text, and a mark where there were more."""
    return text if len(text) <= limit else text[:limit] + " ..."


def counted(number: float, noun: str) -> str:
    """Such as "1 round" or "2.5 hours"."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """First names, and how many there are more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shown_seconds(seconds: float) -> str:
    """A duration as people read it."""
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def shown_bytes(count: int | None) -> str:
    """A size as people read it; "?" where it is not known."""
    if count is None:
        return "?"
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def most_expensive(limits: LimitSettings) -> str | None:
    """Highest cost of a run, in words; None without a price."""
    if limits.price_per_hour is None:
        return None
    price = f"{limits.price_per_hour:g} {limits.currency} an hour"
    bounds = [limits.cost_cap] if limits.cost_cap is not None else []
    if limits.time_hours is not None:
        bounds.append(limits.time_hours * limits.price_per_hour)
    return f"at most {min(bounds):.2f} {limits.currency}, {price}" if bounds else f"{price}, no limit"
