"""Two sides on the same questions: the difference of their means, its 95 % interval and its test, question by question.

Left out: what is concluded from it, see ``comparing.py``; several seeds, see ``across_seeds.py``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Literal

from ratchet.stats.intervals import FEWEST_APART, Z, apart, bca

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A difference is called one where chance alone would show as large a one in at most one of twenty comparisons.
ALPHA = 0.05
# Decimals of a difference. What lies beyond is rounding: means of the same answers in another order.
_DECIMALS = 12
# Of the patterns of signs. A p-value of 0.05 then varies by 0.002 from seed to seed.
_FLIPS = 10_000
_CHUNK = 4_000_000
# The halvings that bring a difference of 2 below the rounding of a double.
_HALVINGS = 54


@dataclass(frozen=True)
class Paired:
    """Right less left on the same questions.

    ``p_value`` is two-sided. ``fixed`` are the questions, counted from 0, on which the right side scores higher,
    ``broken`` those on which it scores lower. The interval holds 0 wherever ``p_value`` is 0.05 or more.
    """

    difference: float
    low: float
    high: float
    p_value: float
    test: Literal["mcnemar", "bootstrap"]
    fixed: tuple[int, ...]
    broken: tuple[int, ...]


def paired_test(left: Sequence[float], right: Sequence[float], seed: int = 0) -> Paired:
    """Compare two sides question by question.

    Where every score is 0 or 1: McNemar's exact test, a two-sided binomial test on the questions where the sides differ
    (McNemar 1947, Psychometrika 12; the exact form: Fagerland, Lydersen and Laake 2013, BMC Med. Res. Methodol. 13),
    and Tango's score interval, ``tango``. With partial credit: a permutation test that flips the signs of the
    differences, ``_sign_flips``, and the BCa bootstrap over questions.

    The tests are a shade stricter than their intervals. Where a test finds nothing, the interval is widened to 0, so
    that the two never say different things; widening only makes it cover more.

    Args:
        left: One score of 0..1 a question.
        right: The other side's, in the same order.
        seed: Of the draws that partial credit needs.

    Raises:
        ValueError: no questions, different numbers of them, or a score that is not in 0..1.
    """
    differences, is_binary = _differences(left, right), _is_right_or_wrong(left, right)
    fixed = tuple(index for index, value in enumerate(differences) if value > 0)
    broken = tuple(index for index, value in enumerate(differences) if value < 0)
    if is_binary:
        p_value = _binomial(len(fixed), len(broken), "two-sided")
        low, high = tango(len(fixed), len(broken), len(left))
    else:
        p_value = _sign_flips(differences, seed)[0]
        low, high = _interval(differences, seed)
    if p_value >= ALPHA:
        low, high = min(low, 0.0), max(high, 0.0)
    return Paired(
        difference=sum(differences) / len(differences),
        low=low,
        high=high,
        p_value=p_value,
        test="mcnemar" if is_binary else "bootstrap",
        fixed=fixed,
        broken=broken,
    )


def one_sided_p(left: Sequence[float], right: Sequence[float], seed: int = 0) -> float:
    """Return the probability of seeing the right side so far above the left one if it is not better.

    By the exact binomial test on the questions where the sides differ, with partial credit by flipped signs.

    Args:
        left: One score of 0..1 a question.
        right: The other side's, in the same order.
        seed: Of the draws that partial credit needs.

    Raises:
        ValueError: no questions, different numbers of them, or a score that is not in 0..1.
    """
    differences = _differences(left, right)
    if not _is_right_or_wrong(left, right):
        return _sign_flips(differences, seed)[1]
    return _binomial(sum(value > 0 for value in differences), sum(value < 0 for value in differences), "greater")


def tango(fixed: float, broken: float, total: int) -> tuple[float, float]:
    """Return the score interval of a difference of paired shares (Tango 1998, Stat. Med. 17, 891-908).

    Its ends are the differences d at which ``(fixed - broken - n d) / sqrt(n (2 q + d (1 - d)))`` is 1.96 and -1.96,
    where q is the likeliest share of broken questions if the difference is d, the root of a quadratic. Its width is
    never zero, and it covers 95 % also where few questions differ and the usual normal interval does not.

    Args:
        fixed: Questions that only the right side has; with partial credit the sum of what it gained.
        broken: Those that only the left side has, or the sum of what was lost.
        total: All questions.
    """

    def score(difference: float) -> float:
        linear = (2 * total - fixed + broken) * difference - fixed - broken
        constant = -broken * difference * (1 - difference)
        share = (sqrt(max(0.0, linear * linear - 8 * total * constant)) - linear) / (4 * total)
        variance = total * (2 * share + difference * (1 - difference))
        distance = fixed - broken - total * difference
        return distance / sqrt(variance) if variance > 0 else (distance > 0) * 2 * Z - (distance < 0) * 2 * Z

    middle = (fixed - broken) / total
    return _falls_below(Z, score, -1.0, middle), _falls_below(-Z, score, middle, 1.0)


def _falls_below(limit: float, score: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function passes a limit between two points, by halving."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > limit else (low, middle)
    return (low + high) / 2


def _interval(differences: Sequence[float], seed: int) -> tuple[float, float]:
    """Return the bootstrap interval of a mean difference.

    Where too few questions differ to draw from, Tango's with the sums of what was gained and lost, counted in steps of
    the largest difference seen: of all differences up to that with these sums, whole steps spread most, so that it errs
    on the wide side. Where none was seen a step is a whole question.
    """
    if apart(differences) >= FEWEST_APART:
        return bca(differences, seed)
    step = max(map(abs, differences)) or 1.0
    gained, lost = sum(d for d in differences if d > 0) / step, -sum(d for d in differences if d < 0) / step
    low, high = tango(gained, lost, len(differences))
    return low * step, high * step


def _sign_flips(differences: Sequence[float], seed: int) -> tuple[float, float]:
    """Return the two-sided and the one-sided p-value (right above left) of a permutation test on signs.

    If the sides are alike, each question's difference is as likely the other way round, so all signs are equally likely
    (Fisher 1935, The Design of Experiments, section 21; Ernst 2004, Stat. Sci. 19): the p-value is the share of sign
    patterns with a sum as far out. Flipping signs leaves the sum of squares alone, so that it is the test of the
    studentised mean too, and holds in large samples where the means are equal but the differences lopsided (Janssen
    1999, Math. Methods Stat. 8). Patterns are drawn, and the observed one counts as drawn (Phipson and Smyth 2010,
    Stat. Appl. Genet. Mol. Biol. 9), so that the p-value is never too small; with few differences all are taken.
    """
    import numpy as np

    sizes, counts = np.unique([abs(value) for value in differences if value != 0], return_counts=True)
    differing, observed = int(counts.sum()), sum(differences)
    if differing == 0:
        return 1.0, 1.0
    is_complete = 2**differing <= _FLIPS
    sums = _all_sums(sizes, counts) if is_complete else _drawn_sums(sizes, counts, seed)
    extra, slack = 0 if is_complete else 1, 10.0**-_DECIMALS * len(differences)
    above = int((sums >= observed - slack).sum())
    beyond = int((np.abs(sums) >= abs(observed) - slack).sum())
    return (beyond + extra) / (len(sums) + extra), (above + extra) / (len(sums) + extra)


def _all_sums(sizes: "NDArray[np.float64]", counts: "NDArray[np.int64]") -> "NDArray[np.float64]":
    """Return the sum of every pattern of signs."""
    import numpy as np

    sums = np.zeros(1)
    for size in np.repeat(sizes, counts):
        sums = np.concatenate([sums + size, sums - size])
    return sums


def _drawn_sums(sizes: "NDArray[np.float64]", counts: "NDArray[np.int64]", seed: int) -> "NDArray[np.float64]":
    """Return the sums of drawn patterns of signs; of equal sizes only how many are positive matters, a binomial."""
    import numpy as np

    random, rows = np.random.default_rng(seed), max(1, _CHUNK // len(sizes))
    lots = [min(rows, _FLIPS - start) for start in range(0, _FLIPS, rows)]
    drawn = [(2 * random.binomial(counts, 0.5, (lot, len(sizes))) - counts) @ sizes for lot in lots]
    return np.concatenate(drawn)


def _binomial(fixed: int, broken: int, alternative: Literal["two-sided", "greater"]) -> float:
    """Return the exact p-value of so many fixed of all questions where the sides differ; 1 where there are none."""
    if fixed + broken == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(fixed, fixed + broken, 0.5, alternative=alternative).pvalue)


def _is_right_or_wrong(left: Sequence[float], right: Sequence[float]) -> bool:
    return all(value in (0, 1) for side in (left, right) for value in side)


def _differences(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Return right less left, rounded, so that what is equal counts as equal."""
    if len(left) == 0 or len(left) != len(right):
        raise ValueError(f"a paired comparison needs two scores a question, not {len(left)} and {len(right)}")
    if not all(isfinite(value) and 0 <= value <= 1 for side in (left, right) for value in side):
        raise ValueError("a score is not in 0..1")
    return [round(after - before, _DECIMALS) + 0.0 for before, after in zip(left, right, strict=True)]
