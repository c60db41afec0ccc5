"""Two sides on the same questions: the difference of their means, its 95 % interval and its test, question by question.

Left out: what is concluded from it, see ``comparison.py``; several seeds, see ``across_seeds.py``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ratchet.stats.intervals import FEWEST_OFF_MODE, Z, bca, off_mode

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
    ``broken`` those on which it scores lower. The interval holds 0 where ``p_value`` is 0.05 or more, and only there.
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
    differences, ``_Flips``, and the BCa bootstrap over questions.

    Test and interval never say different things. Where the test finds nothing, the interval is widened to 0, by which
    it only covers more. Where the test of partial credit finds a difference and the interval holds 0, which it may with
    few questions that differ, the end beyond 0 is moved to the smallest difference that the same test does not refuse.

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
        flips = _Flips.of(differences, seed)
        p_value = flips.p_value()
        low, high = _interval(differences, seed)
        if p_value < ALPHA and low <= 0 <= high:
            low, high = (flips.nearest(), high) if sum(differences) > 0 else (low, -flips.turned().nearest())
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


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number, in the same order (Holm 1979, Scand. J. Statist. 6, 65-70)."""
    corrected, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = least
    return corrected


def one_sided_p(left: Sequence[float], right: Sequence[float], seed: int = 0) -> float:
    """Probability of seeing the right side so far above the left one if it is not better.

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
        return _Flips.of(differences, seed).one_sided()
    return _binomial(sum(value > 0 for value in differences), sum(value < 0 for value in differences), "greater")


def tango(fixed: float, broken: float, total: int) -> tuple[float, float]:
    """Score interval of a difference of paired shares (Tango 1998, Stat. Med. 17, 891-908).

    Its ends are the differences d at which ``(fixed - broken - n d) / sqrt(n (2 q + d (1 - d)))`` is 1.96 and -1.96,
    where q is the most likely share of broken questions if the difference is d, the root of a quadratic. Its width is
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
    """Where a falling function passes a limit between two points, by halving."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > limit else (low, middle)
    return (low + high) / 2


def _interval(differences: Sequence[float], seed: int) -> tuple[float, float]:
    """Bootstrap interval of a mean difference.

    Where too few questions differ to draw from, Tango's with the sums of what was gained and lost, counted in steps of
    the largest difference seen: of all differences up to that with these sums, whole steps spread most, so that it errs
    on the wide side. Where none was seen a step is a whole question.
    """
    if off_mode(differences) >= FEWEST_OFF_MODE:
        return bca(differences, seed)
    step = max(map(abs, differences)) or 1.0
    gained, lost = sum(d for d in differences if d > 0) / step, -sum(d for d in differences if d < 0) / step
    low, high = tango(gained, lost, len(differences))
    return low * step, high * step


class _Flips(NamedTuple):
    """A permutation test on the signs of differences.

    If the sides are alike, each question's difference is as likely the other way round, so all signs are equally likely
    (Fisher 1935, The Design of Experiments, section 21; Ernst 2004, Stat. Sci. 19): the p-value is the share of sign
    patterns with a sum as far out. Flipping signs leaves the sum of squares alone, so that it is the test of the
    studentised mean too, and holds in large samples where the means are equal but the differences lopsided (Janssen
    1999, Math. Methods Stat. 8). Patterns are drawn, and the observed one counts as drawn (Phipson and Smyth 2010,
    Stat. Appl. Genet. Mol. Biol. 9), so that the p-value is never too small; with few differences all are taken.

    Attributes:
        sums: (N,) Of the differences that a pattern flips; flipped, the sum of all is ``total`` less twice that.
        sizes: (N,) How many differences that are not 0 it flips.
        total: Sum of all differences.
        differing: How many are not 0.
        same: How many are 0.
        is_complete: Whether these are all patterns, each once.
    """

    sums: "NDArray[np.float64]"
    sizes: "NDArray[np.int64]"
    total: float
    differing: int
    same: int
    is_complete: bool

    @classmethod
    def of(cls, differences: Sequence[float], seed: int) -> "_Flips":
        """Take or draw the patterns for these differences."""
        import numpy as np

        values, counts = np.unique([value for value in differences if value != 0], return_counts=True)
        differing = int(counts.sum())
        is_complete = 2**differing <= _FLIPS
        sums, sizes = _all_patterns(values, counts) if is_complete else _drawn_patterns(values, counts, seed)
        return cls(sums, sizes, sum(differences), differing, len(differences) - differing, is_complete)

    def p_value(self) -> float:
        """Two-sided p-value."""
        import numpy as np

        return self._share(np.abs(self.total - 2 * self.sums) >= abs(self.total) - self._slack)

    def one_sided(self) -> float:
        """P-value against the right side being no better."""
        return self._share(self.total - 2 * self.sums >= self.total - self._slack)

    def nearest(self) -> float:
        """Smallest difference that the test does not reject, where it rejects 0 and the mean is above it.

        Less a difference d, all differences count, also those of 0, and the flipped pattern lies as far out where the
        mean of the flipped differences is at most d. So its p-value rises with d, from ``p_value`` at 0 (Hartigan 1969,
        JASA 64, 1303-1317: means of random subsets are typical values).
        """
        low, high = 0.0, self.total / (self.differing + self.same)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._p_value_at(middle) >= ALPHA else (middle, high)
        return high

    def turned(self) -> "_Flips":
        """The test with its sides swapped."""
        return self._replace(sums=-self.sums, total=-self.total)

    def _p_value_at(self, difference: float) -> float:
        """Two-sided p-value of a difference above 0 and below the mean.

        Each pattern counts with what it leaves too, as in both tails of ``p_value``.
        """
        from scipy.special import bdtrc

        def as_far(sums: "NDArray[np.float64]", sizes: "NDArray[np.int64]") -> "NDArray[np.float64]":
            """Probability that so many of the equal ones are flipped as the mean needs to be this small."""
            import numpy as np

            needed = np.ceil((sums - self._slack) / difference) - sizes
            several = np.clip(needed, 1, self.same + 1)  # bdtrc is of more than so many
            some: NDArray[np.float64] = np.where(needed <= 0, 1.0, bdtrc(several - 1, self.same, 0.5))
            return some

        tails = as_far(self.sums, self.sizes) + as_far(self.total - self.sums, self.differing - self.sizes)
        return self._share(tails)

    def _share(self, patterns: "NDArray[Any]") -> float:
        extra = 0 if self.is_complete else 1
        return float((patterns.sum() + extra) / (len(self.sums) + extra))

    @property
    def _slack(self) -> float:
        """What sums of the same numbers in another order may differ by."""
        return 10.0**-_DECIMALS * (self.differing + self.same)


def _all_patterns(
    values: "NDArray[np.float64]", counts: "NDArray[np.int64]"
) -> "tuple[NDArray[np.float64], NDArray[np.int64]]":
    """Sum and size of every subset of the differences."""
    import numpy as np

    sums, sizes = np.zeros(1), np.zeros(1, dtype=np.int64)
    for value in np.repeat(values, counts):
        sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    return sums, sizes


def _drawn_patterns(
    values: "NDArray[np.float64]", counts: "NDArray[np.int64]", seed: int
) -> "tuple[NDArray[np.float64], NDArray[np.int64]]":
    """Sum and size of drawn subsets; of equal differences only how many are in it matters, a binomial."""
    import numpy as np

    random, rows = np.random.default_rng(seed), max(1, _CHUNK // len(values))
    lots = [min(rows, _FLIPS - start) for start in range(0, _FLIPS, rows)]
    drawn = [random.binomial(counts, 0.5, (lot, len(values))) for lot in lots]
    return np.concatenate([lot @ values for lot in drawn]), np.concatenate([lot.sum(axis=1) for lot in drawn])


def _binomial(fixed: int, broken: int, alternative: Literal["two-sided", "greater"]) -> float:
    """Exact p-value of so many fixed of all questions where the sides differ; 1 where there are none."""
    if fixed + broken == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(fixed, fixed + broken, 0.5, alternative=alternative).pvalue)


def _is_right_or_wrong(left: Sequence[float], right: Sequence[float]) -> bool:
    return all(value in (0, 1) for side in (left, right) for value in side)


def _differences(left: Sequence[float], right: Sequence[float]) -> list[float]:
    """Right less left, rounded, so that what is equal counts as equal."""
    if len(left) == 0 or len(left) != len(right):
        raise ValueError(f"a paired comparison needs two scores a question, not {len(left)} and {len(right)}")
    if not all(isfinite(value) and 0 <= value <= 1 for side in (left, right) for value in side):
        raise ValueError("a score is not in 0..1")
    return [round(after - before, _DECIMALS) + 0.0 for before, after in zip(left, right, strict=True)]
