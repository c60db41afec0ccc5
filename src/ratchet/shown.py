"""Texts of models and of rows on their way to a screen, a page or a file that must be valid Unicode."""

import re

_HALVES = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def whole(text: str) -> str:
    """Return a text with halves of surrogate pairs replaced: a model may write one, and UTF-8 cannot hold it."""
    return _HALVES.sub(_REPLACEMENT, text)


def visible(text: str) -> str:
    """Return a text in which nothing acts on a terminal or hides: no control or format characters but line and tab."""
    return "".join(c if c.isprintable() or c in "\n\t" else _REPLACEMENT for c in text)


def shortened(text: str, limit: int) -> str:
    """Return at most the first ``limit`` characters of a text, and a mark where there were more."""
    return text if len(text) <= limit else text[:limit] + " ..."
