"""Verifier: is the answer's text the expected one, or how many of its words are?

Normalisation and both numbers are those of SQuAD v1.1 (Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1) as its
evaluation script computes them: lower case, then ASCII punctuation removed, then the whole words a, an and the, then
white space made single. ``normalized_exact_match`` asks for equal texts; ``token_f1`` takes precision and recall of
the words, each as often as it occurs. With one reference there is no maximum over several.

Any text is an answer: nothing is unparseable, unless the part that is to be read is missing.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from ratchet.verifiers.base import Building, Example, Grade, Kind, KnownAnswers, PartVerifier, Prompt
from ratchet.verifiers.known_texts import as_given, other_case, other_ground_truth
from ratchet.verifiers.settings import METRIC_LABEL, KindSettings, kind_setting, setting

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_UNPARSEABLE = Grade(0.0, "unparseable", parts={"normalized_exact_match": 0.0, "token_f1": 0.0})


class QaVerifier(KindSettings):
    """The answer's text must equal the reference, or share its words, as SQuAD compares them."""

    kind: Literal["qa"] = kind_setting(
        "qa", "the answer's text must equal the reference, or share its words, as SQuAD compares them."
    )
    metric: Literal["normalized_exact_match", "token_f1"] = setting(
        "normalized_exact_match",
        label=METRIC_LABEL,
        help="qa trains on normalized_exact_match (usual) or token_f1; the other is reported.",
    )


class Qa(PartVerifier):
    """Grades by exact match or by the share of words in common."""

    def __init__(self, settings: QaVerifier, building: Building) -> None:
        super().__init__(settings, building)
        self._metric = settings.metric

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse a reference of which nothing is left to compare."""
        if normalized(prompt.ground_truth):
            return None
        return "is empty once punctuation, articles and whitespace are removed"

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Compare the answer's words with those of the ground truth."""
        part = self.part(text)
        if part is None:
            return _UNPARSEABLE
        answer, truth = normalized(part), normalized(prompt.ground_truth)
        parts = {
            "normalized_exact_match": float(answer == truth != ""),
            "token_f1": token_f1(answer.split(), truth.split()),
        }
        return Grade(parts[self._metric], "graded", parts)


def normalized(text: str) -> str:
    """A text as SQuAD v1.1 compares it."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def token_f1(answer: list[str], truth: list[str]) -> float:
    """The harmonic mean of precision and recall over words, 0 where none is in common."""
    common = sum((Counter(answer) & Counter(truth)).values())
    return 2 * common / (len(answer) + len(truth)) if common else 0.0


def _known_answers(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    """Write answers to questions, compared after normalisation: case, articles and punctuation mean nothing."""
    known = as_given(settings, prompt, others)
    if known.right is None:
        return known
    right = known.right.strip()
    variants = {**known.variants, **other_case(right), "full_stop": f"{right}.", "article": f"The {right}"}
    several = [other for other in dict.fromkeys(others) if other_ground_truth(right, [other])][:8]
    mistakes = {"many_answers": ", ".join([*several, right])} if several else {}
    return replace(known, variants=variants, mistakes=mistakes)


KIND = Kind(
    settings=QaVerifier,
    build=Qa,
    metrics={
        "normalized_exact_match": "The same text apart from case, punctuation, articles and whitespace.",
        "token_f1": "Harmonic mean of word precision and recall against the reference.",
    },
    example=lambda: Example(QaVerifier(), "the red house", right="Red house.", wrong="the blue house"),
    known_answers=_known_answers,
)
