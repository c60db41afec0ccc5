"""What an evaluation found, from its graded answers. Knows no model and no verifier: answers are graded when they come.

scores.py  columns with intervals, pass@k, bands, counts, and what makes a verdict impossible
bands.py   questions by difficulty
groups.py  what became of an answer, as people sort failures
"""

from ratchet.evaluation.bands import Band, bands_by_difficulty
from ratchet.evaluation.groups import group_of, is_refusal
from ratchet.evaluation.scores import score_of, scores_of

__all__ = [
    "Band",
    "bands_by_difficulty",
    "group_of",
    "is_refusal",
    "score_of",
    "scores_of",
]
