"""The trend test: worked by hand, against scipy, its rate of false alarms, and the windows of the tile."""

import random
from itertools import permutations
from math import comb, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from ratchet.stats import exceeds, mann_kendall, trend

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


def points(values, start=1):
    return list(enumerate(values, start=start))


def test_a_small_series_by_hand():
    # 1 2 4 3: pairs that rise 5, that fall 1. Of the 24 orders of four, those with |S| >= 4: S = 6 one, S = 4 three,
    # and as many on the other side: 8 of 24.
    score, p_value = mann_kendall([1, 2, 4, 3])
    assert (score, p_value) == (4, pytest.approx(8 / 24))


def test_a_series_with_ties_by_hand():
    # 1 1 2 2 3 3: S = 12; variance (6*5*17 - 3 * 2*1*9) / 18 = (510 - 54) / 18 = 25.333; z = 11 / 5.0332 = 2.18548
    score, p_value = mann_kendall([1, 1, 2, 2, 3, 3])
    assert score == 12
    assert p_value == pytest.approx(0.02885, abs=1e-5)


@given(st.permutations(range(6)))
def test_without_ties_it_is_the_share_of_all_orders_that_are_as_far_out(order):
    score, p_value = mann_kendall(order)
    farther = sum(abs(mann_kendall_score(other)) >= abs(score) for other in permutations(range(6)))
    assert p_value == pytest.approx(farther / 720)


def mann_kendall_score(values):
    return sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])


@given(st.lists(st.integers(0, 5).map(float), min_size=6, max_size=60))
def test_ties_make_it_kendalls_tau_b_with_a_continuity_correction(values):
    score, p_value = mann_kendall(values)
    oracle = kendalltau(range(len(values)), values, method="asymptotic")
    if len(set(values)) == 1:
        assert p_value == 1
    elif len(set(values)) < len(values):
        # The oracle has no correction: ours is never more certain, and goes the same way.
        assert p_value >= oracle.pvalue - 1e-12
        assert (score > 0) == (oracle.statistic > 0)
        assert (score < 0) == (oracle.statistic < 0)


@given(st.lists(FINITE, min_size=6, max_size=80, unique=True))
def test_without_ties_it_agrees_with_scipy(values):
    # Above 50 values it is an approximation, which is good to half a percent.
    oracle = kendalltau(range(len(values)), values, method="exact").pvalue
    assert mann_kendall(values)[1] == pytest.approx(oracle, abs=1e-9 if len(values) <= 50 else 0.005)


@given(st.lists(FINITE, min_size=6, max_size=60))
def test_turned_around_rising_is_falling(values):
    turned = {"rising": "falling", "falling": "rising", "flat": "flat"}
    assert trend(points([-value for value in values])).direction == turned[trend(points(values)).direction]


@given(st.lists(FINITE, min_size=6, max_size=60, unique=True).map(sorted))
def test_what_only_rises_is_rising(values):
    found = trend(points(values))
    assert found.direction == "rising"
    assert found.peak_round == len(values)


@given(FINITE, st.integers(6, 40))
def test_what_stays_the_same_is_flat(value, count):
    found = trend(points([value] * count))
    assert (found.direction, found.p_value, found.peak_round) == ("flat", 1.0, 1)


@pytest.mark.parametrize("count", [6, 10, 20, 50])
@pytest.mark.parametrize("levels", [None, 5])
def test_noise_is_called_a_trend_as_rarely_as_it_says(count, levels):
    # 2,000 curves of noise; exact tests of few values cannot use up all of 5 %, none may pass it by more than chance:
    # 5 % and three standard deviations of 0.49 %.
    draw = random.Random(count)

    def value():
        return draw.random() if levels is None else draw.randrange(levels) / levels

    called = sum(trend(points([value() for _ in range(count)])).direction != "flat" for _ in range(2000))
    assert called / 2000 <= 0.065
    assert called / 2000 >= 0.01


def test_five_points_are_too_early():
    assert trend(points([1, 2, 3, 4, 5])) is None
    assert trend(points([1, 2, 3, 4, 5, 6])) is not None


def test_the_windows_are_a_fifth_and_three_at_least():
    six = trend(points([0, 3, 6, 9, 12, 15]))
    assert (six.early, six.late, six.change) == (3, 12, 9)
    twenty = trend(points([float(value) for value in range(20)]))  # four of twenty: 0..3 and 16..19
    assert (twenty.early, twenty.late, twenty.change) == (1.5, 17.5, 16)
    assert (twenty.first, twenty.last) == (0, 19)


def test_the_peak_is_named_by_its_round_the_first_of_equals():
    found = trend([(2, 0.1), (4, 0.9), (6, 0.2), (8, 0.9), (10, 0.3), (12, 0.1)])
    assert (found.peak, found.peak_round) == (0.9, 4)


@given(st.integers(0, 30), st.integers(1, 30), st.sampled_from([0.03, 0.5, 0.2]))
def test_a_share_is_above_a_limit_as_the_binomial_says(hits, more, share):
    total = hits + more
    tail = sum(comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(hits, total + 1))
    if not isclose(tail, 0.01, rel_tol=1e-9):
        assert exceeds(hits, total, share, 0.01) == (hits > share * total and tail < 0.01)


def test_nothing_counted_exceeds_nothing():
    assert not exceeds(0, 0, 0.03, 0.01)
