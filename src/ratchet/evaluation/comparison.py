"""What a paired comparison of evaluations says. Plain data; ``comparing.py`` computes it, surfaces show it."""

from typing import Literal

from pydantic import Field

from ratchet.evaluation.evaluation import Evaluation, Score
from ratchet.run.records import Record

Verdict = Literal["better", "worse", "within_noise", "withheld"]
PairedTest = Literal["mcnemar", "bootstrap"]
BandSource = Literal["difficulty", "left"]


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
