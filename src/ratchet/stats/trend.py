"""Where a curve went: the trend test and the trend tile. numpy and scipy are loaded when something is computed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import copysign, erfc, sqrt
from typing import Literal

Direction = Literal["rising", "falling", "flat"]

# Of the rounds there are, the share that makes the early and the late window, and their least length.
WINDOW_SHARE, LEAST_WINDOW = 0.2, 3
# Two windows of the least length that do not overlap.
FEWEST_POINTS = 2 * LEAST_WINDOW
# A trend is called one where chance alone would show it in one of twenty curves without any.
ALPHA = 0.05
# With more values the normal approximation is as good, and takes no time.
_MOST_EXACT = 50


@dataclass(frozen=True)
class Trend:
    """Where a curve went.

    ``early`` and ``late`` are the means over the first and the last fifth of the points, three at least, ``change``
    their difference, in the curve's own unit. ``p_value`` is of the two-sided Mann-Kendall test over all points.
    ``peak`` is the highest value and ``peak_round`` where it was reached first.
    """

    points: int
    first: float
    last: float
    early: float
    late: float
    change: float
    direction: Direction
    p_value: float
    peak: float
    peak_round: int


def trend(points: Sequence[tuple[int, float]], alpha: float = ALPHA) -> Trend | None:
    """Where a curve went; None below six points, which is too early to say.

    Args:
        points: (round, value) in the order of the rounds; values finite.
        alpha: Probability with which a curve of independent values without a trend is called rising or falling.
    """
    if len(points) < FEWEST_POINTS:
        return None
    values = [value for _, value in points]
    window = max(LEAST_WINDOW, round(WINDOW_SHARE * len(values)))
    early, late = _mean(values[:window]), _mean(values[-window:])
    score, p_value = mann_kendall(values)
    peak = max(values)
    return Trend(
        points=len(values),
        first=values[0],
        last=values[-1],
        early=early,
        late=late,
        change=late - early,
        direction="flat" if p_value >= alpha or score == 0 else ("rising" if score > 0 else "falling"),
        p_value=p_value,
        peak=peak,
        peak_round=points[values.index(peak)][0],
    )


def mann_kendall(values: Sequence[float]) -> tuple[int, float]:
    """Test whether values rise or fall with time, whatever the shape (Mann 1945; Kendall 1975, chapter 4).

    Without ties and up to 50 values the p-value is exact. Else it is the normal approximation with the variance for
    ties, ``(n (n - 1) (2 n + 5) - sum over groups of t equal values of t (t - 1) (2 t + 5)) / 18``, and a continuity
    correction of 1 (Gilbert 1987, Statistical Methods for Environmental Pollution Monitoring, section 16.4).

    Args:
        values: n of them, finite, in the order of time, assumed independent of one another where there is no trend.

    Returns:
        S, the number of pairs that rise less the number that fall, and the two-sided p-value.
    """
    import numpy as np

    array = np.asarray(values, dtype=float)
    score = int(np.triu(np.sign(array[None, :] - array[:, None]), 1).sum())
    count, groups = len(values), Counter(values)
    if 1 < len(groups) == count <= _MOST_EXACT:
        from scipy.stats import kendalltau

        return score, float(kendalltau(range(count), array, method="exact").pvalue)
    variance = sum(sign * n * (n - 1) * (2 * n + 5) for sign, n in [(1, count), *((-1, n) for n in groups.values())])
    if variance == 0 or score == 0:  # all values are equal, or nothing speaks for either side
        return score, 1.0
    z = (score - copysign(1, score)) / sqrt(variance / 18)
    return score, erfc(abs(z) / sqrt(2))


def exceeds(hits: int, total: int, share: float, alpha: float) -> bool:
    """Whether a share is above a limit by more than chance (exact one-sided binomial test).

    Args:
        hits: How many of ``total`` count.
        total: How many there are.
        share: The limit, 0..1.
        alpha: Probability with which a true share just at the limit is called above it, at most.
    """
    if total == 0 or hits <= share * total:
        return False
    from scipy.stats import binomtest

    return bool(binomtest(hits, total, share, alternative="greater").pvalue < alpha)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
