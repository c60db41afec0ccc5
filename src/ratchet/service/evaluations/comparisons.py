"""Comparing evaluations by their ids: two with a verdict, or several side by side."""

from collections.abc import Sequence

from ratchet.errors import InvalidSetting
from ratchet.evaluation.comparing import side_by_side
from ratchet.evaluation.comparison import SideBySide
from ratchet.evaluation.evaluation import Evaluation, QuestionResult
from ratchet.service.evaluations.evaluations import find_evaluation, questions_of


def compare_evaluations(ids: Sequence[str]) -> tuple[SideBySide, list[list[QuestionResult]]]:
    """Return evaluations side by side, each later one against the first, and each side's questions.

    Args:
        ids: Two evaluations or more, by id or folder, also as LABEL=ID.

    Raises:
        NotFound: there is no such evaluation.
        Conflict: they are not comparable, in words; or one has not completed.
        InvalidSetting: fewer than two are named, or one twice.
    """
    named = [_labelled(one) for one in ids]
    if len(named) < 2:
        raise InvalidSetting("Name two evaluations or more to compare: ratchet compare LEFT RIGHT.")
    sides = [(label, find_evaluation(id), questions_of(id)) for label, id in named]
    if len({evaluation.id for _, evaluation, _ in sides}) < len(sides):
        raise InvalidSetting("An evaluation is named twice. Compare it with another one.")
    labels = _told_apart([label or evaluation.subject.name for label, evaluation, _ in sides], [s[1] for s in sides])
    table = side_by_side([(label, *side[1:]) for label, side in zip(labels, sides, strict=True)])
    return table, [questions for _, _, questions in sides]


def _labelled(text: str) -> tuple[str, str]:
    label, sign, id = text.rpartition("=")
    return (label.strip(), id) if sign else ("", text)


def _told_apart(labels: Sequence[str], evaluations: Sequence[Evaluation]) -> list[str]:
    """Return labels of which no two are the same."""
    if len(set(labels)) == len(labels):
        return list(labels)
    return [f"{label} ({one.id})" for label, one in zip(labels, evaluations, strict=True)]
