"""Power analysis: how many questions detect a gain, and which gain a benchmark's questions detect."""

from dataclasses import dataclass

from ratchet.errors import InvalidSetting
from ratchet.service.evaluations.benchmarks import find_benchmark
from ratchet.stats import expected_discordance, power_of, questions_to_detect, smallest_gain
from ratchet.stats.power import MOST_QUESTIONS

_POINTS = 100.0


@dataclass(frozen=True)
class PowerPlan:
    """What it takes to detect a gain. Shares are of 0..1.

    Attributes:
        base: Accuracy that is assumed of the model there is.
        gain: The gain that is asked about.
        needed: Questions that find it in four of five evaluations.
        needed_at_worst: The same if answers of the two had nothing to do with one another.
        questions: How many there are, None where no number was given.
        chance: How likely that many find the gain.
        smallest: The smallest gain that they find in four of five evaluations, None where none is small enough.
    """

    base: float
    gain: float
    needed: int
    needed_at_worst: int
    questions: int | None = None
    chance: float | None = None
    smallest: float | None = None


def plan_power(
    gain_points: float, base_percent: float, questions: int | None = None, benchmark: str | None = None
) -> PowerPlan:
    """What it takes to detect a gain of so many percentage points over a model of that accuracy.

    Raises:
        NotFound: there is no such benchmark.
        InvalidSetting: the numbers do not go together.
    """
    gain, base = gain_points / _POINTS, base_percent / _POINTS
    if not 0 < gain <= 1 or not 0 <= base <= 1 or base + gain > 1:
        raise InvalidSetting(
            f"A gain of {gain_points:g} points over {base_percent:g} percent is impossible. Give a gain above 0 that "
            "ends at 100 percent or less.",
            "gain",
        )
    if benchmark is not None:
        if questions is not None:
            raise InvalidSetting("Give a number of questions or a benchmark, which has one.", "questions")
        questions = find_benchmark(benchmark).spec.questions
    if questions is not None and questions < 1:
        raise InvalidSetting(f"The number of questions is {questions}. Give 1 or more.", "questions")
    usual, worst = expected_discordance(base, gain), expected_discordance(base, gain, 0.0)
    try:
        needed, at_worst = questions_to_detect(gain, usual), questions_to_detect(gain, worst)
    except ValueError as error:
        raise InvalidSetting(
            f"A gain of {gain_points:g} points over {base_percent:g} percent takes more than {MOST_QUESTIONS:,} "
            "questions to detect. Give a larger gain.",
            "gain",
        ) from error
    if questions is None:
        return PowerPlan(base, gain, needed, at_worst)
    return PowerPlan(
        base, gain, needed, at_worst, questions, power_of(questions, gain, usual), smallest_gain(questions, base)
    )
