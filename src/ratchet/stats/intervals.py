"""95 % intervals of a share and of a mean over questions, and pass@k. Left out: two sides at once, see ``paired.py``.

A question counts once however many answers it has: answers to one question are alike, questions are drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The normal quantile of 0.975: 95 % lie within so many standard errors.
Z = 1.959963984540054
# Of the bootstrap: the ends of an interval then wobble by about a fiftieth of its width with the seed (Efron and
# Tibshirani 1993, An Introduction to the Bootstrap, section 14.5, ask for a thousand at least, BCa for more).
RESAMPLES = 10_000
# With fewer questions off the most frequent value, resamples repeat a handful of them and an interval comes out short.
FEWEST_OFF_MODE = 10
# How many numbers are drawn at a time: 32 MB of them.
_CHUNK = 4_000_000
# Values are few where there are so many times as many questions: drawing a count takes as long as drawing some values.
_FEW = 4


@dataclass(frozen=True)
class Interval:
    """Where the true value lies, with 95 % confidence. ``method`` is how it was found."""

    low: float
    high: float
    method: Literal["wilson", "bootstrap"]


def wilson(successes: float, total: int) -> Interval:
    """Score interval of a share (Wilson 1927, JASA 22, page 209), never of width zero.

    Args:
        successes: How many of ``total`` count; need not be whole, see ``bootstrap_mean``.
        total: How many there are.

    Raises:
        ValueError: there are none, or more successes than there are.
    """
    if total < 1 or not 0 <= successes <= total:
        raise ValueError(f"{successes:g} of {total} is no share")
    share, spread = successes / total, Z * Z / total
    middle = (share + spread / 2) / (1 + spread)
    half = Z * sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return Interval(
        0.0 if successes == 0 else max(0.0, middle - half),
        1.0 if successes == total else min(1.0, middle + half),
        "wilson",
    )


def bootstrap_mean(values: Sequence[float], seed: int = 0) -> Interval:
    """Interval of a mean over questions by the bootstrap; the same values give the same interval.

    Questions are drawn with replacement and the percentiles corrected for bias and skew (BCa: Efron 1987, JASA 82,
    section 3). Where fewer than ten questions differ from the most frequent value, and so where all are equal, there is
    too little to draw from. Then the interval is Wilson's with the values' sum for successes: no values of 0..1 spread
    more than zeros and ones of the same mean, so it errs on the wide side, and has a width even where no two differ.

    Args:
        values: One of 0..1 a question, such as the mean over its answers.
        seed: Of the draws.

    Raises:
        ValueError: there are none, or one is not in 0..1.
    """
    if len(values) == 0 or not all(0 <= value <= 1 for value in values):
        raise ValueError("an interval needs values of 0..1, one a question")
    if off_mode(values) < FEWEST_OFF_MODE:
        return wilson(min(float(sum(values)), float(len(values))), len(values))
    low, high = bca(values, seed)
    return Interval(low, high, "bootstrap")


def off_mode(values: Sequence[float]) -> int:
    """How many values differ from the most frequent one."""
    import numpy as np

    return len(values) - int(np.unique(values, return_counts=True)[1].max())


def bca(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Ends of the BCa bootstrap interval of a mean; ``values`` are not all equal."""
    import numpy as np
    from scipy.special import ndtr, ndtri

    array = np.asarray(values, dtype=float)
    means = _resampled_means(array, seed)
    mean, off = array.mean(), array - array.mean()
    # Resamples that hit the mean exactly count half, as in a rank with ties.
    bias = ndtri(((means < mean).mean() + (means <= mean).mean()) / 2)
    skew = (off**3).sum() / (6 * (off**2).sum() ** 1.5)
    sides = bias + np.array([-Z, Z])
    low, high = np.quantile(means, ndtr(bias + sides / (1 - skew * sides)))
    return float(low), float(high)


def _resampled_means(array: "NDArray[np.float64]", seed: int) -> "NDArray[np.float64]":
    """Means of RESAMPLES draws with replacement of as many values as there are.

    Of few different values it is drawn how often each comes, which is the same and takes a fraction of the time.
    """
    import numpy as np

    random, count = np.random.default_rng(seed), len(array)
    distinct, counts = np.unique(array, return_counts=True)
    if len(distinct) * _FEW <= count:
        return random.multinomial(count, counts / count, RESAMPLES) @ distinct / count
    rows = max(1, _CHUNK // count)
    sizes = [min(rows, RESAMPLES - start) for start in range(0, RESAMPLES, rows)]
    return np.concatenate([array[random.integers(0, count, (size, count))].mean(axis=1) for size in sizes])


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of k answers is right, estimated without bias from n answers.

    ``1 - C(n - c, k) / C(n, k)`` (Chen et al. 2021, arXiv:2107.03374, section 2.1), as the product of
    ``1 - k / i`` over i = n - c + 1 .. n, which no large number overflows. With fewer than k wrong ones a factor is 0.

    Args:
        n: Answers that were sampled.
        c: How many of them are right.
        k: Answers that are allowed, n at most.

    Raises:
        ValueError: the numbers do not go together.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} cannot be estimated from {c} right of {n} answers")
    none_right = 1.0
    for i in range(n - c + 1, n + 1):
        none_right *= 1 - k / i
    return 1 - none_right


def shown_points(share: float) -> str:
    """A difference of shares in percentage points, such as "8.2"; never "-0.0"."""
    return f"{round(100 * share, 1) + 0.0:.1f}"


def shown_interval(low: float, high: float) -> str:
    """A 95 % interval in percentage points, in words."""
    return f"95 % interval {shown_points(low)} to {shown_points(high)}"
