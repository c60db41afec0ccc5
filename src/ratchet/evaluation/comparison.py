"""Evaluations against each other, question by question: what differs, in which bands, and one sentence that says so.

Decides nothing about a run or a loop. The tests and intervals are in ``stats``, single scores in ``scores.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from ratchet.errors import Conflict, InvalidSetting
from ratchet.evaluation.bands import Band, bands_by_difficulty
from ratchet.evaluation.evaluation import Evaluation, EvaluationScores, QuestionResult, Score
from ratchet.evaluation.scores import score_of
from ratchet.run.display import counted, listed
from ratchet.run.records import Record
from ratchet.stats import ALPHA, Paired, holm, paired_test, questions_to_decide, shown_interval, shown_points

Verdict = Literal["better", "worse", "within_noise", "withheld"]
PairedTest = Literal["mcnemar", "bootstrap"]
BandSource = Literal["difficulty", "left"]
# A setting's value is shown in an error up to so many characters; what is longer may be a text of the user's.
_SHORT = 24
# Parts of a set-up whose text is never shown, however short.
_TEXTS = ("prompt", "example")
# Missing questions that an error names by number.
_MOST_NAMED = 20

# How the left side did on a question, as bands: from those it has always right to those it never has.
ALWAYS, SOMETIMES, NEVER = "always right before", "sometimes right before", "never right before"


class Difference(Record):
    """One column of two evaluations, right less left, paired per question.

    ``fixed`` are the questions that the right side has right and the left has not, ``broken`` the other way round; for
    partial credit those that scored higher, and lower. ``to_decide`` is how many questions would decide a difference as
    large as the one seen, None where it is decided or none was seen.
    """

    column: str
    left: Score
    right: Score
    difference: float
    low: float
    high: float
    test: PairedTest
    p_value: float
    fixed: list[int]
    broken: list[int]
    verdict: Verdict
    to_decide: int | None
    sentence: str


class BandDifference(Record):
    """The main column in one band: both sides and their difference with its 95 % interval."""

    band: str
    questions: int
    left: Score
    right: Score
    difference: float
    low: float
    high: float


class Comparison(Record):
    """Two evaluations of the same questions, asked in the same way.

    ``bands_from``: the questions' own column difficulty, or how the left side did on them ("left"), which ``notes``
    then explains; ``bands`` is empty where neither gives more than one band.
    """

    left: Evaluation
    right: Evaluation
    questions: int
    main: Difference
    columns: list[Difference]
    bands: list[BandDifference] = Field(default_factory=list)
    bands_from: BandSource = "difficulty"
    notes: list[str] = Field(default_factory=list)


class SideBySide(Record):
    """Several evaluations of the same questions in one table, such as base, SFT and RL.

    ``labels`` are the sides' names in order; ``bands`` maps each band to one score a side. ``comparisons`` holds each
    later side against the first, and each against the one before it where that is another.
    """

    labels: list[str]
    evaluations: list[Evaluation]
    columns: dict[str, list[Score]]
    bands: dict[str, list[Score]] = Field(default_factory=dict)
    comparisons: list[Comparison]
    notes: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: an evaluation with all its questions, and what the sentences call it."""

    name: str
    evaluation: Evaluation
    questions: Sequence[QuestionResult]

    @property
    def scores(self) -> EvaluationScores:
        """Its scores.

        Raises:
            Conflict: it has none.
        """
        if self.evaluation.scores is None:
            raise Conflict(f"Evaluation {self.evaluation.id} is {self.evaluation.status} and has no scores.")
        return self.evaluation.scores

    @property
    def main_column(self) -> str:
        """The column that the verdict goes by."""
        return self.evaluation.main_column

    def at(self, band: Band) -> list[QuestionResult]:
        """Questions of a band."""
        return [self.questions[place] for place in band.places]

    def values(self, column: str) -> list[float]:
        """Score of each question in a column."""
        return [question.score(column) for question in self.questions]


def side_by_side(sides: Sequence[Side]) -> SideBySide:
    """Put several evaluations of the same questions into one table, the one to start from first.

    Raises:
        InvalidSetting: fewer than two.
        Conflict: two of them cannot be compared, or questions are missing.
    """
    if len(sides) < 2:
        raise InvalidSetting(f"A comparison needs two evaluations, not {len(sides)}.")
    in_order = [
        Side(side.name, side.evaluation, sorted(side.questions, key=lambda one: one.question)) for side in sides
    ]
    first = in_order[0]
    pairs = [(first, other) for other in in_order[1:]] + list(pairwise(in_order))[1:]
    comparisons = [_compared(before, after) for before, after in pairs]
    names = [name for name in _columns(first) if all(name in _columns(side) for side in in_order)]
    # The bands of the table are the first side's, and so are the notes on them.
    notes = list(dict.fromkeys(note for comparison in comparisons[: len(sides) - 1] for note in comparison.notes))
    return SideBySide(
        labels=[side.name for side in in_order],
        evaluations=[side.evaluation for side in in_order],
        columns={name: [score for side in in_order if (score := side.scores.column(name))] for name in names},
        bands={
            band.name: [score_of(first.main_column, side.at(band)) for side in in_order] for band in _bands(first)[0]
        },
        comparisons=comparisons,
        notes=notes + _many_comparisons([(before.name, after.name) for before, after in pairs], comparisons),
    )


def refuse_incomparable(left: Evaluation, right: Evaluation) -> None:
    """Refuse two evaluations that did not ask the same questions in the same way.

    Raises:
        Conflict: one has no scores yet, or they differ in questions, main column or set-up. Names each part that
            differs, with short values; never a prompt.
    """
    for evaluation in (left, right):
        if evaluation.scores is None:
            raise Conflict(
                f"Evaluation {evaluation.id} is {evaluation.status} and has no scores. Compare evaluations that are "
                "completed."
            )
    differing = _differing(left, right)
    if differing:
        raise Conflict(
            f"Evaluations {left.id} and {right.id} cannot be compared: they differ in more than the model. "
            f"{' '.join(differing)} Evaluate one of the models again, set up like the other: ratchet "
            f"eval start MODEL --like {left.id}, or --like {right.id}"
        )


def verdict_of(paired: Paired, *, withheld: bool) -> Verdict:
    """Verdict of a paired test: the only place that says better or worse, for comparisons and loops alike.

    Args:
        paired: Right against left. Its p-value decides, and its interval holds no 0 wherever that is below ALPHA.
        withheld: Whether the scores of either side allow no verdict.
    """
    if withheld:
        return "withheld"
    if paired.p_value >= ALPHA:
        return "within_noise"
    return "better" if paired.difference > 0 else "worse"


def _compared(left: Side, right: Side) -> Comparison:
    refuse_incomparable(left.evaluation, right.evaluation)
    _refuse_incomplete(left, right)
    shared = [name for name in _columns(left) if name in _columns(right)]
    differences = [_difference(name, left, right) for name in shared]
    bands, source = _bands(left)
    return Comparison(
        left=left.evaluation,
        right=right.evaluation,
        questions=len(left.questions),
        main=differences[0],
        columns=differences,
        bands=[_band_difference(band, left, right) for band in bands],
        bands_from=source,
        notes=[*_failure_notes(left, right), *([_regression_note(left)] if source == "left" and bands else [])],
    )


def _many_comparisons(names: Sequence[tuple[str, str]], comparisons: Sequence[Comparison]) -> list[str]:
    """Note on the verdicts of more than two comparisons, with p-values corrected for their number."""
    judged = [(pair, one.main) for pair, one in zip(names, comparisons, strict=True) if one.main.verdict != "withheld"]
    if len(judged) < 3:
        return []
    corrected = ", ".join(
        f"{right} against {left} p = {p_value:.2g}"
        for ((left, right), _), p_value in zip(judged, holm([main.p_value for _, main in judged]), strict=True)
    )
    return [
        f"With {len(judged)} comparisons the chance of a false positive is higher (Holm-corrected: {corrected}). Each "
        f"verdict stands for itself, at p < {ALPHA}."
    ]


def _columns(side: Side) -> list[str]:
    """Names of an evaluation's columns, the main one first."""
    names = [score.name for score in side.scores.columns]
    return sorted(names, key=lambda name: name != side.main_column)


def _difference(column: str, left: Side, right: Side) -> Difference:
    before, after = left.values(column), right.values(column)
    paired = paired_test(before, after)
    verdict = verdict_of(paired, withheld=bool(left.scores.withheld or right.scores.withheld))
    to_decide = None
    if verdict == "within_noise":
        spread = fmean((new - old) ** 2 for old, new in zip(before, after, strict=True))
        to_decide = questions_to_decide(paired.difference, spread, len(before))
    scores = [score_of(column, side.questions) for side in (left, right)]
    return Difference(
        column=column,
        left=scores[0],
        right=scores[1],
        difference=paired.difference,
        low=paired.low,
        high=paired.high,
        test=paired.test,
        p_value=paired.p_value,
        fixed=[left.questions[place].question for place in paired.fixed],
        broken=[left.questions[place].question for place in paired.broken],
        verdict=verdict,
        to_decide=to_decide,
        sentence=_sentence(column, paired, verdict, to_decide, (left, right)),
    )


def _sentence(column: str, paired: Paired, verdict: Verdict, to_decide: int | None, sides: tuple[Side, Side]) -> str:
    left, right = sides
    if verdict == "withheld":
        reasons = [f"{side.name}: {side.scores.withheld}" for side in sides if side.scores.withheld]
        return f"No verdict on {right.name} against {left.name}. {' '.join(reasons)}"
    by = "" if column == "accuracy" else f"By {column}, "
    points, interval = shown_points(abs(paired.difference)), shown_interval(paired.low, paired.high)
    fixed, broken = counted(len(paired.fixed), "question"), len(paired.broken)
    if paired.test == "mcnemar":
        changes = f"it fixed {fixed} and broke {broken}"
    else:
        changes = f"it scored higher on {fixed} and lower on {broken}"
    if verdict != "within_noise":
        return f"{by}{right.name} is {verdict} than {left.name} by {points} points ({interval}): {changes}."
    more = f" A difference this large would need about {_rounded(to_decide):,} questions." if to_decide else ""
    if paired.difference == 0:
        return f"{by}{right.name} and {left.name} score the same ({interval}): {changes}."
    above = "above" if paired.difference > 0 else "below"
    seen = f"{right.name} is {points} points {above} {left.name}, which is within the noise ({interval})"
    return f"{by}{seen}: {changes}.{more}"


def _rounded(count: int) -> int:
    """Round a count to two figures: it follows from a difference that is itself uncertain."""
    return int(float(f"{count:.1e}"))


def _bands(left: Side) -> tuple[list[Band], BandSource]:
    """Bands by the questions' difficulty, without one by how the left side did; none where all are one."""
    bands = bands_by_difficulty([question.difficulty for question in left.questions])
    if bands:
        return bands, "difficulty"
    values = left.values(left.main_column)
    own = {
        ALWAYS: [place for place, value in enumerate(values) if value == 1],
        SOMETIMES: [place for place, value in enumerate(values) if 0 < value < 1],
        NEVER: [place for place, value in enumerate(values) if value == 0],
    }
    filled = [Band(name, places) for name, places in own.items() if places]
    return (filled if len(filled) > 1 else []), "left"


def _band_difference(band: Band, left: Side, right: Side) -> BandDifference:
    column, before, after = left.main_column, left.at(band), right.at(band)
    paired = paired_test([one.score(column) for one in before], [one.score(column) for one in after])
    return BandDifference(
        band=band.name,
        questions=len(before),
        left=score_of(column, before),
        right=score_of(column, after),
        difference=paired.difference,
        low=paired.low,
        high=paired.high,
    )


def _regression_note(left: Side) -> str:
    """What bands that are picked by one side's own answers cannot tell (regression to the mean, Galton 1886)."""
    return (
        f"The questions have no difficulty, so the bands are how {left.name} itself did on them. Regression to the "
        f'mean: an equally good model would score lower in "{ALWAYS}" and higher in "{NEVER}". Read the bands as where '
        "answers changed, not as gains."
    )


def _failure_notes(left: Side, right: Side) -> list[str]:
    notes = []
    for side in (left, right):
        failed, could_be = side.scores.outcomes.get("failed", 0), side.scores.could_be
        if failed and could_be:
            notes.append(
                f"The verifier failed on {counted(failed, 'answer')} of {side.name}, counted as 0; its "
                f"{side.main_column} is between {could_be[0]:.1%} and {could_be[1]:.1%}."
            )
    return notes


def _refuse_incomplete(left: Side, right: Side) -> None:
    numbers = [[question.question for question in side.questions] for side in (left, right)]
    everything = sorted({number for side in numbers for number in side})
    for side, own in zip((left, right), numbers, strict=True):
        missing = sorted(set(everything) - set(own))
        if missing:
            raise Conflict(
                f"Evaluation {side.evaluation.id} lacks {counted(len(missing), 'question')} that the other one has: "
                f"{listed([str(number) for number in missing], _MOST_NAMED)}. Resume it (ratchet eval resume "
                f"{side.evaluation.id}), then compare."
            )
        if len(own) != side.scores.questions:
            raise Conflict(
                f"Evaluation {side.evaluation.id} scored {counted(side.scores.questions, 'question')}, but "
                f"{len(own)} have answers. Resume it (ratchet eval resume {side.evaluation.id}), then compare."
            )


def _differing(left: Evaluation, right: Evaluation) -> list[str]:
    """A sentence for each thing that must be the same and is not."""
    if left.questions_sha256 != right.questions_sha256:
        benchmarks = f"{left.benchmark} and {right.benchmark}" if left.benchmark != right.benchmark else left.benchmark
        return [f"The questions differ ({benchmarks})."]
    found = []
    if left.main_column != right.main_column:
        found.append(f"Score column: {left.main_column} on the left, {right.main_column} on the right.")
    for part in sorted({*left.setup, *right.setup}, key=str.casefold):
        one, other = left.setup.get(part), right.setup.get(part)
        if one != other:
            found += _worded(part, one, other)
    return found


def _worded(part: str, one: Any, other: Any) -> list[str]:
    """What differs in one part of a set-up, key by key; long values and texts are named by their size."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in sorted({*one, *other}) if one.get(key) != other.get(key)]
        return [difference for key in keys for difference in _worded(f"{part}, {key}", one.get(key), other.get(key))]
    shown, shown_other = _value(part, one), _value(part, other)
    if shown == shown_other:
        return [f"{part}: not the same on both sides ({shown})."]
    return [f"{part}: {shown} on the left, {shown_other} on the right."]


def _value(part: str, value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, list | tuple):
        return f"{len(value)} of them"
    if isinstance(value, dict):
        return f"set, with {', '.join(sorted(value))}"
    if isinstance(value, str) and (len(value) > _SHORT or any(word in part.casefold() for word in _TEXTS)):
        return counted(len(value), "character")
    return str(value)
