"""What the worker finds out about one answer: right, wrong, or nothing to grade. Everything that needs sympy."""

import logging
from typing import Any

from ratchet.verifiers.math_equality import are_equal
from ratchet.verifiers.math_expression import expression
from ratchet.verifiers.math_reading import read_answer, read_ground_truth

# math_verify warns that its own alarm is off. It has to be: this process is killed from outside.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def find(text: str, ground_truth: str, require_boxed: bool) -> dict[str, Any]:
    """Grade one answer.

    Returns:
        ``{"outcome": "graded", "is_correct": ...}``, ``{"outcome": "unparseable"}`` when the answer holds nothing that
        can be compared or boxes that disagree, or ``{"outcome": "ungradable"}`` when the ground truth is to blame.
    """
    gold_text = read_ground_truth(ground_truth)
    if gold_text is None:
        return {"outcome": "ungradable"}
    gold = expression(gold_text)
    answers = [expression(latex) for latex in read_answer(text, require_boxed=require_boxed)]
    # The cheap test first: equal spelling needs no parser.
    right = [are_equal(gold, answer) for answer in answers]
    if not answers:
        return {"outcome": "unparseable"}
    if all(right):
        return {"outcome": "graded", "is_correct": True}
    # One of them right and another not, or two that differ: several guesses are no answer.
    if any(right) or any(not answer.is_readable or not are_equal(answers[0], answer) for answer in answers):
        return {"outcome": "unparseable"}
    return {"outcome": "graded", "is_correct": False}
