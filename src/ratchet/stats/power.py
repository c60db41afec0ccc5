"""How many questions show a gain, and which gain a number of questions shows: McNemar's exact test, planned ahead.

``discordance`` is the share of questions on which the two sides differ, fixed and broken together. It decides what a
gain takes: ten questions fixed and none broken convince, sixty fixed and fifty broken do not. With partial credit the
mean of the squared differences stands in for it. Left out: several answers a question, which need fewer questions.
"""

from math import ceil, isfinite, sqrt

from ratchet.stats.paired import ALPHA

# With a smaller chance of seeing a gain that is there an evaluation is hardly worth its time (Cohen 1988, Statistical
# Power Analysis for the Behavioral Sciences, section 2.4).
POWER = 0.8
# How alike the scores of a model and of one trained from it are on the same questions, as a correlation. It is that of
# two answers where questions have a chance to be answered right of Beta(1/2, 1/2), most near 0 or near 1: half of the
# spread is the questions', half is luck. Our assumption; a guess of 0 is the worst case (why pairing helps at all:
# Miller 2024, Adding Error Bars to Evals, arXiv:2411.00640).
CORRELATION = 0.5
# What lies outside so many standard deviations has a probability below 1e-14.
_SDS = 8
# The search ends here: no benchmark has as many.
MOST_QUESTIONS = 100_000_000


def expected_discordance(base: float, gain: float, correlation: float = CORRELATION) -> float:
    """A guess of the share of questions on which two models differ, before either has answered.

    Both are right on a share ``p q + r sqrt(p (1 - p) q (1 - q))``, where p and q are their accuracies and r the
    correlation of their scores over questions, so that they differ on p + q less twice that. Answers that have nothing
    to do with each other (r = 0) differ most: that is the worst case for a plan.

    Args:
        base: Accuracy of the one, 0..1.
        gain: How much more the other has.
        correlation: Of their scores, 0..1.

    Returns:
        At least ``gain``: whoever gains differs on as many questions.

    Raises:
        ValueError: an accuracy is not in 0..1.
    """
    other = base + gain
    if not (0 <= base <= 1 and 0 <= other <= 1):
        raise ValueError(f"accuracies of {base:g} and {other:g} are not both in 0..1")
    both = base * other + correlation * sqrt(base * (1 - base) * other * (1 - other))
    return max(abs(gain), base + other - 2 * both)


def power_of(questions: int, gain: float, discordance: float, alpha: float = ALPHA) -> float:
    """Probability that the exact test finds a gain that is there, and on its side.

    Exact: of n questions m differ, which is binomial, and of these so many are fixed, which is binomial too; summed
    over all m (Duffy 1984, Biometrics 40).

    Args:
        questions: How many there are, n.
        gain: Right less left, as a share of the questions.
        discordance: The share on which they differ, ``gain`` at least.
        alpha: Of the two-sided test.

    Raises:
        ValueError: the numbers do not go together.
    """
    _check(gain, discordance)
    import numpy as np
    from scipy.stats import binom

    if questions < 1 or discordance == 0:
        return 0.0
    spread = _SDS * sqrt(questions * discordance * (1 - discordance)) + _SDS
    middle = questions * discordance
    differing = np.arange(max(1, int(middle - spread)), min(questions, ceil(middle + spread)) + 1)
    # The fewest fixed questions of m whose one-sided p-value is below alpha / 2; strictly, as a verdict asks for it.
    enough = binom.isf(alpha / 2 * (1 - 1e-12), differing, 0.5) + 1
    found = binom.sf(enough - 1, differing, (1 + abs(gain) / discordance) / 2)
    return float((binom.pmf(differing, questions, discordance) * found).sum())


def questions_to_detect(gain: float, discordance: float, power: float = POWER, alpha: float = ALPHA) -> int:
    """How many questions find a gain with that probability.

    Args:
        gain: Right less left, as a share of the questions, not 0.
        discordance: The share on which they differ, see ``expected_discordance`` for a guess.
        power: The probability of finding the gain.
        alpha: Of the two-sided test.

    Raises:
        ValueError: the gain is 0, or more than the sides differ on, or so small that 100 million would not do.
    """
    _check(gain, discordance)
    if gain == 0:
        raise ValueError("a gain of 0 cannot be detected")
    high = 1
    while power_of(high, gain, discordance, alpha) < power:
        high *= 2
        if high > MOST_QUESTIONS:
            raise ValueError(f"a gain of {gain:g} takes more than {MOST_QUESTIONS} questions")
    low = high // 2
    while high - low > 1:  # low does not do, high does
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle, gain, discordance, alpha) >= power else (middle, high)
    return high


def questions_to_decide(difference: float, discordance: float, n: int) -> int | None:
    """How many questions would decide a difference as large as the one seen on ``n``, which did not.

    Decide means: find it in four of five evaluations, if it is as large in truth. None where no difference was seen, or
    one so small that no benchmark could tell.

    Args:
        difference: Right less left.
        discordance: The share of questions on which they differed, or the mean squared difference.
        n: How many questions there were.
    """
    if difference == 0 or not isfinite(difference):
        return None
    try:
        return max(n + 1, questions_to_detect(difference, max(discordance, abs(difference))))
    except ValueError:
        return None


def smallest_gain(questions: int, base: float, power: float = POWER, alpha: float = ALPHA) -> float | None:
    """Smallest gain that so many questions detect, in thousandths; None where even the largest is not.

    Args:
        questions: How many there are.
        base: Accuracy of the starting model, from which the discordance is guessed.
        power: The probability of finding the gain.
        alpha: Of the two-sided test.
    """
    for thousandths in range(1, int((1 - base) * 1000 + 1e-9) + 1):
        gain = min(thousandths / 1000, 1 - base)
        if power_of(questions, gain, expected_discordance(base, gain), alpha) >= power:
            return gain
    return None


def _check(gain: float, discordance: float) -> None:
    if not abs(gain) <= discordance <= 1:
        raise ValueError(f"a gain of {gain:g} does not go with sides that differ on a share of {discordance:g}")
