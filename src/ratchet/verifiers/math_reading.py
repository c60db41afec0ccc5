r"""Where the expression in an answer is: its boxes, else its last expression. Strings only; no sympy in this module.

Boxes come first: where there is one, nothing outside counts, and a box that is never closed makes the answer
unreadable. Without a box the last expression is taken, whatever the words around it say: LaTeX between ``$...$``,
``$$...$$``, ``\(...\)`` or ``\[...\]`` (several of them joined by commas, "and", "or" form a list), or a bare one
(see ``bare_expression``). Every function takes time linear in the text.
"""

import re

from ratchet.verifiers.bare_expression import last_bare_expression
from ratchet.verifiers.reading import read_boxes

# Longer than any real reference; parsing takes up to 1 ms per character, so this also bounds the time (measured).
MAX_EXPRESSION_CHARACTERS = 2_000
_MAX_BOXES = 16  # differently written boxes that are compared with one another; more are a list of guesses
_MAX_JOINED = 32

_DELIMITER = re.compile(r"\\[()\[\]]|\\.|\$\$|\$", re.DOTALL)
_CLOSING = {r"\(": r"\)", r"\[": r"\]", "$$": "$$", "$": "$"}
_JOINT = re.compile(r"\s*[,;]?\s*(?:and|or)?\s*")
_GROUP_OF_WORDS = re.compile(r"\\[a-zA-Z]+\s*\{[^{}]*\}|\\[a-zA-Z]+")
_PROSE = re.compile(r"\b(?!(?:sin|cos|tan|sec|csc|cot|log|exp|max|min|gcd|lcm|mod|det)\b)[a-z]{3,}\b")


def read_answer(text: str, *, require_boxed: bool) -> tuple[str, ...]:
    """The differently written expressions an answer gives as its result, all of which must agree.

    None at all means that there is nothing to grade.
    """
    boxes = read_boxes(text)
    if not boxes.is_balanced:
        return ()
    if boxes.contents:
        # An empty box among others names the form ("put it in \boxed{}") and holds no value.
        contents = tuple(dict.fromkeys(content.strip() for content in boxes.contents if content.strip()))
        too_much = len(contents) > _MAX_BOXES or any(len(content) > MAX_EXPRESSION_CHARACTERS for content in contents)
        return () if too_much else contents
    last = None if require_boxed else last_expression(text)
    return (last,) if last is not None and len(last) <= MAX_EXPRESSION_CHARACTERS else ()


def read_ground_truth(text: str) -> str | None:
    """The expression of a ground truth: its last box, the inside of its dollars, or all of it."""
    boxes = read_boxes(text)
    expression = boxes.contents[-1].strip() if boxes.contents else _without_delimiters(text.strip())
    if re.search(r"(?<!\\)\$|\\[(\[]", expression):  # LaTeX within prose
        expression = last_expression(expression) or ""
    return expression if 0 < len(expression) <= MAX_EXPRESSION_CHARACTERS else None


def last_expression(text: str) -> str | None:
    """The last expression of a text without boxes, as LaTeX, or None if there is none that can be read whole."""
    spans = _math_spans(text)
    bare = last_bare_expression(text[spans[-1][1] :] if spans else text)
    if bare is not None:
        return bare or None
    if not spans:
        return None
    joined = [spans[-1]]
    for span in reversed(spans[:-1]):
        if len(joined) == _MAX_JOINED or not _joins(text[span[1] : joined[-1][0]]):
            break
        joined.append(span)
    return ", ".join(_without_delimiters(text[start:end]) for start, end in reversed(joined))


def _joins(gap: str) -> bool:
    """Whether what stands between two expressions makes them one list."""
    return len(gap) < 20 and bool(gap.strip()) and _JOINT.fullmatch(gap) is not None


def _without_delimiters(text: str) -> str:
    """Remove the delimiters that enclose the whole text, if any do."""
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inside = text[len(opening) : -len(closing)]
        if text.startswith(opening) and text.endswith(closing) and inside.strip() and closing not in inside:
            return inside.strip()
    return text


def _math_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of every stretch of delimited LaTeX, delimiters included.

    A single dollar may be money: it opens LaTeX only if no prose stands before the next one.
    """
    spans = []
    opening, start, content_start = "", 0, 0
    for found in _DELIMITER.finditer(text):
        token = found.group()
        if opening and token == _CLOSING[opening]:
            if opening != "$" or _is_latex(text[content_start : found.start()]):
                spans.append((start, found.end()))
                opening = ""
            else:
                start, content_start = found.span()
        elif token in _CLOSING and opening in ("", "$"):
            opening = token
            start, content_start = found.span()
    return spans


def _is_latex(content: str) -> bool:
    """Whether the text between two single dollars is LaTeX rather than prose between two prices."""
    if not content.strip() or "\n\n" in content:
        return False
    return _PROSE.search(_GROUP_OF_WORDS.sub("", content)) is None
