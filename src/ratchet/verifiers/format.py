r"""The format bonus: was the answer given in the asked-for form? Says nothing about whether it is right.

tags
    Exactly one ``<think>...</think>``, then exactly one ``<answer>...</answer>`` that is not blank, and nothing but
    white space around and between them. Where the chat template has already opened ``<think>``, the answer starts
    inside it.
boxed
    Exactly one ``\boxed{...}``, closed and not blank.
pattern
    The user's regular expression matches the whole answer, white space at its ends removed; a dot matches line ends
    too.
    A pattern that backtracks for longer than its time limit does not match: the bonus is lost, the run goes on.
"""

import re
from typing import TYPE_CHECKING

from ratchet.errors import InvalidSetting
from ratchet.verifiers.reading import read_boxes
from ratchet.verifiers.settings import FormatKind

if TYPE_CHECKING:
    import regex  # type: ignore[import-untyped]

# Ordinary patterns take microseconds; 512 answers that all run into this limit delay a round by a minute.
_PATTERN_LIMIT_SECONDS = 0.1

# \Z after \s* and one literal per tag: no two repeats can match the same text, so this is linear.
_TAGS = re.compile(r"\s*<think>(.*?)</think>\s*<answer>(.*?)</answer>\s*", re.DOTALL)


def compile_pattern(pattern: str) -> "regex.Pattern[str]":
    """Compile the user's format pattern.

    Raises:
        InvalidSetting: It is not a regular expression; says what is wrong and where.
    """
    import regex  # here, since most runs have no pattern; unlike re, it can be given a time limit

    try:
        return regex.compile(pattern, regex.DOTALL)
    except (regex.error, RecursionError, OverflowError) as error:
        raise InvalidSetting(
            f"Format pattern is not a regular expression: {error}. Correct it, or try it in Python with re.fullmatch.",
            field="reward.format_pattern",
        ) from error


def earns_format(
    text: str, kind: FormatKind, pattern: "regex.Pattern[str] | None" = None, *, prefilled_think: bool = False
) -> bool:
    """Whether an answer earns the format bonus.

    Args:
        text: The answer.
        kind: Which form was asked for; ``off`` is never earned.
        pattern: What ``compile_pattern`` returned; for the kind ``pattern`` alone.
        prefilled_think: Whether the prompt already ends in an opened ``<think>``. Matters for ``tags`` alone.

    Raises:
        ValueError: The kind is ``pattern`` and there is none.
    """
    if kind == "tags":
        return _has_tags(f"<think>{text}" if prefilled_think else text)
    if kind == "boxed":
        boxes = read_boxes(text)
        return boxes.is_balanced and len(boxes.contents) == 1 and _is_one_value(boxes.contents[0])
    if kind == "pattern":
        if pattern is None:
            raise ValueError("format kind pattern needs a compiled pattern")
        try:
            return pattern.fullmatch(text.strip(), timeout=_PATTERN_LIMIT_SECONDS) is not None
        except TimeoutError:
            return False
    return False


def _has_tags(text: str) -> bool:
    """Whether a text consists of one pair of think tags and one pair of answer tags, in that order."""
    if any(text.count(tag) != 1 for tag in ("<think>", "</think>", "<answer>", "</answer>")):
        return False
    found = _TAGS.fullmatch(text)
    return found is not None and not found[2].isspace() and found[2] != ""


def _is_one_value(content: str) -> bool:
    """Whether a box holds something, and no further box."""
    return bool(content.strip()) and "\\boxed" not in content
