"""What a loop is: its history round by round, what is to be done next, what is shown, and how it ended.

Plain data. ``supervisor/loops.py`` decides and ``supervisor/loop_report.py`` closes, both from this alone; settings
are in ``config/loop.py``. Scores in a history are those of the benchmark's choosing half, never of the sealed one.
"""

from math import fsum
from typing import Literal, Self

from pydantic import model_validator

from ratchet.evaluation.comparison import PairedTest, Verdict
from ratchet.evaluation.evaluation import Score
from ratchet.run.records import Record

LoopStatus = Literal[
    "queued", "training", "benchmarking", "target_reached", "rounds_spent", "plateaued", "failed", "stopped"
]
LoopEnding = Literal["target_reached", "rounds_spent", "plateaued", "failed", "stopped"]
# Of a round's run: not started, under way, ended with an adapter (also one that stopped early), ended without.
RoundRun = Literal["none", "at_work", "adapter", "no_adapter"]
RoundEvaluation = Literal["none", "at_work", "scored", "failed"]
RoundState = Literal["waiting", "training", "benchmarking", "scored", "unscored", "failed"]
# An evaluation that fails is begun once more.
MOST_TRIES = 2


class LoopRound(Record):
    """One round as far as it has come. Round 0 is the start, which is benchmarked and not trained.

    Attributes:
        number: From 0 on.
        run: What became of its run, "none" for round 0.
        evaluation: What became of the latest try to benchmark it.
        tries: How many evaluations were begun, that one included.
        scores: Of a scored round: one score of 0..1 a question of the choosing half, in the order of the questions.
        withheld: Of a scored round: why no verdict is given on these scores, a sentence; "" where one is.
    """

    number: int
    run: RoundRun = "none"
    evaluation: RoundEvaluation = "none"
    tries: int = 0
    scores: tuple[float, ...] | None = None
    withheld: str = ""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.number == 0 and self.run != "none":
            raise ValueError("round 0 is the start and has no run")
        if self.number > 0 and self.run != "adapter" and self.evaluation != "none":
            raise ValueError(f"round {self.number} has an evaluation and no adapter")
        if (self.evaluation == "none") != (self.tries == 0):
            raise ValueError(f"round {self.number}: {self.tries} evaluations begun do not go with {self.evaluation}")
        if (self.evaluation == "scored") != bool(self.scores):
            raise ValueError(f"round {self.number}: scores belong to a scored round, one a question")
        if self.withheld and self.evaluation != "scored":
            raise ValueError(f"round {self.number}: a verdict is withheld from a scored round alone")
        return self

    @property
    def score(self) -> float | None:
        """Mean over the choosing half, 0..1; the same answers in another order give the same number."""
        return fsum(self.scores) / len(self.scores) if self.scores else None

    @property
    def at_work(self) -> bool:
        """Whether a job of this round is under way."""
        return "at_work" in (self.run, self.evaluation)

    @property
    def is_unscored(self) -> bool:
        """Whether every try to benchmark it failed."""
        return self.evaluation == "failed" and self.tries >= MOST_TRIES

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be done for this round."""
        return self.run == "no_adapter" or self.evaluation == "scored" or self.is_unscored


class TrainRound(Record):
    """Start the run of a round on a copy of the adapter of another one; 0 stands for the start."""

    round: int
    on_top_of: int


class BenchmarkRound(Record):
    """Begin an evaluation of a round, the first or the second try. Round and try name the job: begin each once."""

    round: int
    attempt: int


class Wait(Record):
    """Do nothing: a job of this round is under way."""

    round: int
    status: Literal["training", "benchmarking"]


class EndLoop(Record):
    """The loop is over. ``best`` is its best round, None where not even the start was scored."""

    status: LoopEnding
    reason: str
    best: int | None


Decision = TrainRound | BenchmarkRound | Wait | EndLoop


class RoundView(Record):
    """A round as people see it. Percent are of the choosing half, differences in percentage points.

    Attributes:
        on_top_of: The round whose adapter it goes on from, None for round 0.
        change: Against the scored round before, None for the first; raw, no statement about what is real.
        best: The highest score, of equal ones the earliest; none where every scored round is without a verdict.
        real_gain_over: The round that this one is shown to be better than; None where that is not shown.
        withheld: Why no verdict is given on its score, a sentence; "" where one is.
    """

    number: int
    state: RoundState
    on_top_of: int | None = None
    percent: float | None = None
    change: float | None = None
    best: bool = False
    real_gain_over: int | None = None
    withheld: str = ""


class LoopView(Record):
    """A loop's rounds and what stands above them.

    ``gain_over_first`` is over round 1. Either gain is None where one of its two rounds has no score, or no verdict.
    """

    rounds: list[RoundView]
    rounds_used: int
    max_rounds: int
    target_percent: float | None = None
    best: int | None = None
    best_percent: float | None = None
    gain_over_start: float | None = None
    gain_over_first: float | None = None


class SealedVerdict(Record):
    """The best round against the start on the sealed half, paired per question; ``difference`` is best less start."""

    start: Score
    best: Score
    difference: float
    low: float
    high: float
    test: PairedTest
    p_value: float
    verdict: Verdict
    sentence: str


class Flattery(Record):
    """How much better the gain looks on the half that chose than on the sealed one; all are shares, 1 is 100 points.

    Attributes:
        points: Gain of the best over the start on the choosing half, less that on the sealed half.
        low: Of its 95 % interval.
        high: Of its 95 % interval.
        expected: What choosing the best of so many rounds adds by itself, on average.
        sentence: All of that in words.
    """

    points: float
    low: float
    high: float
    expected: float
    sentence: str


class LoopReport(Record):
    """How a loop came out: the round that the choosing half chose, reported once on the sealed half.

    Attributes:
        best: The winner's number, 0 where no round scored above the start.
        chosen_from: How many scored rounds it was chosen from, the start among them; where some are without a verdict,
            the others.
        choosing_start: The start on the choosing half.
        choosing_best: The winner there, which flatters it.
        sealed: None where the start won: there is nothing to compare.
        flattery: None where the start won, or where no verdict is given on one of the four scores.
        sealed_score: The winner on the sealed half.
        target_on_choosing: Whether the winner met the target there; None without one, or where no verdict is given.
        target_on_sealed: The same on the sealed half.
        sentences: The verdict, the target and the flattery, as one reads them.
    """

    best: int
    chosen_from: int
    choosing_start: Score
    choosing_best: Score
    sealed_score: Score
    sealed: SealedVerdict | None = None
    flattery: Flattery | None = None
    target_on_choosing: bool | None = None
    target_on_sealed: bool | None = None
    sentences: list[str]
