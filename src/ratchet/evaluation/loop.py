"""What a loop is: its history round by round, what is to be done next, what is shown, and how it ended.

Plain data. ``loop_decisions.py`` decides and ``loop_report.py`` closes, both from this alone; settings are in
``config/resources.py``. Scores in a history are those of the selection half, never of the held-out half.
"""

from math import fsum
from typing import Any, Literal, Self

from pydantic import AliasChoices, Field, model_validator

from ratchet.evaluation.comparison import PairedTest, Verdict
from ratchet.evaluation.evaluation import Score
from ratchet.run.records import Record

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
        scores: Of a scored round: one score of 0..1 a question of the selection half, in the order of the questions.
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
        """Mean over the selection half, 0..1; the same answers in another order give the same number."""
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
    """A round as people see it. Percent are of the selection half, differences in percentage points.

    Attributes:
        on_top_of: The round whose adapter it continues from, None for round 0.
        change: Against the scored round before, None for the first; raw, no statement about what is real.
        best: The highest score, of equal ones the earliest; none where every scored round is without a verdict.
        real_gain_over: The round that this one is significantly better than; None where it is of none.
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
    """A loop's rounds and their summary.

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


class HeldOutVerdict(Record):
    """The best round against the start on the held-out half, paired per question; ``difference`` is best less start."""

    start: Score
    best: Score
    difference: float
    low: float
    high: float
    test: PairedTest
    p_value: float
    verdict: Verdict
    sentence: str


class SelectionBias(Record):
    """How much larger the gain is on the selection half than on the held-out half; all are shares, 1 is 100 points.

    Attributes:
        points: Gain of the best over the start on the selection half, less that on the held-out half.
        low: Of its 95 % interval.
        high: Of its 95 % interval.
        expected: What selecting the best of so many rounds adds on its own, on average.
        sentence: All of that in words.
    """

    points: float
    low: float
    high: float
    expected: float
    sentence: str


def _renamed(name: str, before: str, default: Any = ...) -> Any:
    """Field of a report whose name was another one in reports of earlier versions."""
    return Field(default, validation_alias=AliasChoices(name, before))


class LoopReport(Record):
    """How a loop came out: the round selected on one half of the benchmark, measured once on the other.

    Attributes:
        best: The winner's number, 0 where no round scored above the start.
        chosen_from: How many scored rounds it was selected from, the start among them; where some have no verdict, the
            others.
        selection_start: The start on the selection half.
        selection_best: The winner there, inflated by the selection.
        held_out: None where the start won: there is nothing to compare.
        selection_bias: None where the start won, or where no verdict is given on one of the four scores.
        held_out_score: The winner on the held-out half.
        target_on_selection: Whether the winner met the target there; None without one, or where no verdict is given.
        target_on_held_out: The same on the held-out half.
        sentences: The verdict, the target and the selection bias, as one reads them.
    """

    best: int
    chosen_from: int
    selection_start: Score = _renamed("selection_start", "choosing_start")
    selection_best: Score = _renamed("selection_best", "choosing_best")
    held_out_score: Score = _renamed("held_out_score", "sealed_score")
    held_out: HeldOutVerdict | None = _renamed("held_out", "sealed", None)
    selection_bias: SelectionBias | None = _renamed("selection_bias", "flattery", None)
    target_on_selection: bool | None = _renamed("target_on_selection", "target_on_choosing", None)
    target_on_held_out: bool | None = _renamed("target_on_held_out", "target_on_sealed", None)
    sentences: list[str]
