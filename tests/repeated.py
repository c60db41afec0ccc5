"""What is repeated: all of it by ``make test-long``, so much of it in CI that nothing goes unseen."""

from itertools import product

import pytest
from scipy.stats import binomtest

_DOUBT = 0.01


def matrix(*axes, ci):
    """Every combination of rows of parameters as ``pytest.param``; those that ``ci`` refuses are marked ``long``.

    A row is a tuple of parameters, or one parameter alone. ``ci`` is called with all parameters of a combination.
    """
    rows = [sum((one if isinstance(one, tuple) else (one,) for one in chosen), ()) for chosen in product(*axes)]
    return [pytest.param(*row, marks=() if ci(*row) else pytest.mark.long) for row in rows]


# How often something happens in a simulation: shown by all repetitions, not belied by few.


def at_most(hits, samples, share):
    """Whether so many hits do not belie a true share of at most so much: few repetitions can show no more."""
    return binomtest(hits, samples, share, alternative="greater").pvalue > _DOUBT


def at_least(hits, samples, share):
    """Whether so many hits do not belie a true share of at least so much."""
    return binomtest(hits, samples, share, alternative="less").pvalue > _DOUBT
