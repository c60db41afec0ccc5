"""Intervals of shares and means, and pass@k: by hand, against SciPy and statsmodels, and how often they cover."""

import random
from itertools import combinations
from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap
from statsmodels.stats.proportion import proportion_confint

from ratchet.stats import bootstrap_mean, pass_at_k, shown_interval, shown_points, wilson

from ..repeated import at_least


def test_wilson_by_hand():
    # 8 of 10, z = 1.96: middle (0.8 + 0.19207) / 1.38415 = 0.71674; half 1.96 sqrt(0.016 + 0.0096036) / 1.38415 = 0.22658
    interval = wilson(8, 10)
    assert (interval.low, interval.high) == (pytest.approx(0.49016, abs=1e-4), pytest.approx(0.94331, abs=1e-4))


def test_wilson_agrees_with_statsmodels_and_scipy_on_200_tables():
    dice = random.Random(1)
    for _ in range(200):
        total = dice.randint(1, 2000)
        successes = dice.randint(0, total)
        interval = wilson(successes, total)
        assert (interval.low, interval.high) == pytest.approx(
            proportion_confint(successes, total, method="wilson"), abs=1e-12
        )
        oracle = binomtest(successes, total).proportion_ci(method="wilson")
        assert (interval.low, interval.high) == pytest.approx((oracle.low, oracle.high), abs=1e-12)


@pytest.mark.parametrize("successes", [0, 10])
def test_wilson_has_a_width_where_all_are_alike_and_touches_the_end(successes):
    interval = wilson(successes, 10)
    assert interval.high - interval.low == pytest.approx(1.959964**2 / (10 + 1.959964**2))
    assert (interval.low == 0) == (successes == 0)
    assert (interval.high == 1) == (successes == 10)


@pytest.mark.parametrize(("successes", "total"), [(0, 0), (-1, 3), (4, 3)])
def test_what_is_no_share_is_refused(successes, total):
    with pytest.raises(ValueError, match="is no share"):
        wilson(successes, total)


def test_the_bootstrap_agrees_with_scipys_bca():
    dice = np.random.default_rng(5)
    for count, k in [(25, 4), (60, 8), (200, 16), (400, 4)]:
        values = dice.binomial(k, dice.beta(0.6, 1.0, count)) / k
        ours = bootstrap_mean(list(values))
        oracle = bootstrap((values,), np.mean, n_resamples=10_000, method="BCa", rng=7).confidence_interval
        # Means of these values come in steps of 1 / (count * k): an end may fall on the next one.
        allowed = 0.03 * (oracle.high - oracle.low) + 1 / (count * k)
        assert ours.method == "bootstrap"
        assert (ours.low, ours.high) == pytest.approx((oracle.low, oracle.high), abs=allowed)


def test_bias_and_skew_are_corrected_as_much_as_by_scipy():
    # Ends of 30 short and skewed samples: one differs from scipy's by what was drawn, their mean by next to nothing.
    dice, apart = np.random.default_rng(6), []
    for _ in range(30):
        values = dice.random(20) ** 5
        ours = bootstrap_mean(list(values))
        oracle = bootstrap((values,), np.mean, n_resamples=10_000, method="BCa", rng=dice).confidence_interval
        apart.append([(ours.low - oracle.low), (ours.high - oracle.high)] / (oracle.high - oracle.low))
    assert np.abs(np.mean(apart, axis=0)).max() < 0.005


def test_the_bootstrap_of_a_large_even_sample_is_the_normal_interval():
    values = list(np.linspace(0.2, 0.8, 500))
    half = 1.959964 * sqrt(np.var(values, ddof=0) / 500)
    interval = bootstrap_mean(values)
    assert (interval.low, interval.high) == pytest.approx((0.5 - half, 0.5 + half), rel=0.01)


def test_skew_moves_the_bootstrap_towards_the_long_tail():
    values = [0.0] * 80 + [0.25] * 10 + [1.0] * 10
    interval = bootstrap_mean(values)
    mean = sum(values) / len(values)
    assert interval.high - mean > 1.1 * (mean - interval.low)


def test_the_same_values_give_the_same_interval_and_another_seed_nearly_the_same():
    values = [0.1, 0.5, 0.9, 0.3] * 20
    assert bootstrap_mean(values) == bootstrap_mean(values)
    one, other = bootstrap_mean(values), bootstrap_mean(values, seed=1)
    assert one != other
    assert one.low == pytest.approx(other.low, abs=0.006)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_values_that_are_all_equal_get_wilsons_width(value):
    interval = bootstrap_mean([value] * 40)
    assert interval == wilson(value * 40, 40)
    assert interval.high - interval.low > 0.08


def test_nine_values_off_the_rest_are_too_few_to_draw_from_and_ten_are_not():
    assert bootstrap_mean([1.0] * 191 + [0.5] * 9).method == "wilson"
    assert bootstrap_mean([1.0] * 190 + [0.5] * 10).method == "bootstrap"


@given(st.lists(st.sampled_from([0.0, 0.125, 0.5, 1.0]), min_size=1, max_size=60))
def test_an_interval_holds_its_mean_and_is_never_of_width_zero(values):
    interval = bootstrap_mean(values)
    assert 0 <= interval.low <= sum(values) / len(values) + 1e-12
    assert sum(values) / len(values) - 1e-12 <= interval.high <= 1
    assert interval.high > interval.low


@pytest.mark.parametrize("values", [[], [0.5, 1.1], [-0.1], [float("nan")]])
def test_what_is_no_score_is_refused(values):
    with pytest.raises(ValueError, match=r"values of 0\.\.1"):
        bootstrap_mean(values)


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("count", [25, 120])
def test_about_95_of_100_intervals_hold_the_truth(count, accuracy, repeats):
    # Questions with pass probabilities of Beta(m, 1 - m), four answers each.
    dice = np.random.default_rng(11)
    held = 0
    samples = repeats(250, 80)
    for _ in range(samples):
        values = dice.binomial(4, dice.beta(accuracy, 1 - accuracy, count)) / 4
        interval = bootstrap_mean(list(values))
        held += interval.low <= accuracy <= interval.high
    assert 0.91 <= held / samples <= 1 if samples == 250 else at_least(held, samples, 0.93)


def test_pass_at_k_is_the_share_of_draws_with_a_right_answer():
    for n, c, k in [(4, 1, 2), (6, 2, 3), (5, 0, 2), (5, 5, 1), (7, 3, 5)]:
        draws = list(combinations(range(n), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(min(draw) < c for draw in draws) / len(draws))


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_its_formula_in_whole_numbers(numbers):
    n, c, k = numbers
    assert pass_at_k(n, c, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k), abs=1e-12)
    assert pass_at_k(n, c, 1) == pytest.approx(c / n)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5)])
def test_pass_at_k_refuses_more_answers_than_there_are(n, c, k):
    with pytest.raises(ValueError, match="cannot be estimated"):
        pass_at_k(n, c, k)


def test_points_and_intervals_are_worded_alike():
    assert shown_points(0.0823) == "8.2"
    assert shown_points(-0.0001) == "0.0"
    assert shown_interval(-0.004, 0.1) == "95 % interval -0.4 to 10.0"
