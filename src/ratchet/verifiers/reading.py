r"""Which part of an answer a verifier reads, and the boxes in it. Text in, text out; nothing is interpreted here.

Tags are read by their exact spelling and never nested. A box is ``\boxed{...}`` with its braces balanced; ``\fbox``
and ``\boxed 7`` are none. All functions take time linear in the text, whatever it holds.
"""

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ratchet.verifiers.settings import Read

_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is a character, not a group


class Boxes(NamedTuple):
    """The outermost boxes of a text in order; ``is_balanced`` is False when the last one is never closed."""

    contents: tuple[str, ...]
    is_balanced: bool


def part_to_read(text: str, read: "Read | None", *, prefer_answer_tag: bool = False) -> str | None:
    """The part of an answer that is checked, or None if the answer lacks it.

    Args:
        text: The answer.
        read: ``whole`` (also for None), ``after_reasoning`` or ``answer_tag``.
        prefer_answer_tag: Within that part, read inside the answer tag where there is exactly one. A policy that
            writes several tags gains nothing: then the part counts as if it had none.
    """
    if read == "answer_tag":
        return inside_answer_tag(text)
    if read == "after_reasoning":
        _, closing_tag, text = text.rpartition("</think>")
        if not closing_tag:
            return None
    inside = inside_answer_tag(text) if prefer_answer_tag else None
    return text if inside is None else inside


def inside_answer_tag(text: str) -> str | None:
    """The text inside the only ``<answer>...</answer>``, or None unless there is exactly one."""
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return None
    start, end = text.index("<answer>") + len("<answer>"), text.index("</answer>")
    return text[start:end] if start <= end else None


def read_boxes(text: str) -> Boxes:
    r"""What the boxes of a text hold. A box inside a box belongs to the outer one's content."""
    contents: list[str] = []
    found = _BOX.search(text)
    while found:
        end = _closing_brace(text, found.end())
        if end is None:
            return Boxes(tuple(contents), is_balanced=False)
        contents.append(text[found.end() : end])
        found = _BOX.search(text, end)
    return Boxes(tuple(contents), is_balanced=True)


def _closing_brace(text: str, start: int) -> int | None:
    """Where the brace opened just before ``start`` is closed, or None if it never is."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        if brace.group() == "{":
            depth += 1
        elif brace.group() == "}":
            depth -= 1
            if depth == 0:
                return brace.start()
    return None
