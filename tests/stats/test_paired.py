"""Paired tests and intervals: by hand, against SciPy and statsmodels, against an oracle that knows no formula."""

import random
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import bootstrap, permutation_test
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from ratchet.stats import ALPHA, holm, one_sided_p, paired_test
from ratchet.stats.paired import _Flips, _interval, tango

from ..repeated import at_least


def sides(both, fixed, broken, neither):
    left = [1.0] * both + [0.0] * fixed + [1.0] * broken + [0.0] * neither
    right = [1.0] * both + [1.0] * fixed + [0.0] * broken + [0.0] * neither
    return left, right


def test_mcnemar_by_hand():
    # Eight questions differ, seven of them fixed: P(7 or 8 of 8) = 9 / 256, twice that for both sides.
    paired = paired_test(*sides(10, 7, 1, 12))
    assert paired.test == "mcnemar"
    assert paired.p_value == pytest.approx(18 / 256)
    assert paired.difference == pytest.approx(6 / 30)
    assert paired.fixed == tuple(range(10, 17))
    assert paired.broken == (17,)
    assert one_sided_p(*sides(10, 7, 1, 12)) == pytest.approx(9 / 256)


def test_mcnemar_agrees_with_statsmodels_on_200_tables():
    dice = random.Random(3)
    for _ in range(200):
        both, fixed, broken, neither = (dice.randint(0, dice.choice([5, 40, 150])) for _ in range(4))
        left, right = sides(both, fixed, broken, neither + 1)
        oracle = mcnemar([[both, broken], [fixed, neither + 1]], exact=True).pvalue if fixed + broken else 1.0
        assert paired_test(left, right).p_value == pytest.approx(oracle, abs=1e-12)


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_one_sided_p_is_the_tail_of_a_fair_coin(fixed, broken):
    tail = sum(comb(fixed + broken, heads) for heads in range(fixed, fixed + broken + 1)) / 2 ** (fixed + broken)
    assert one_sided_p(*sides(1, fixed, broken, 1)) == pytest.approx(tail)


def test_tangos_interval_of_the_airway_data():
    # Bentur et al. 2009 as tabulated by Fagerland, Lydersen and Laake 2014 (Stat. Med. 33): 21 children, 1 and 7 differ.
    assert tango(1, 7, 21) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_tangos_interval_is_where_a_score_test_turns_significant():
    # The oracle finds the likeliest table with a given difference by search, and knows none of the formulas.
    dice = random.Random(5)
    for _ in range(200):
        total = dice.randint(5, 300)
        fixed = dice.randint(0, total)
        broken = dice.randint(0, total - fixed)
        low, high = tango(fixed, broken, total)
        assert low < (fixed - broken) / total < high or (fixed - broken) / total in (-1, 1)
        for end in (low, high):
            if abs(end) < 1 - 1e-6:
                assert score_statistic(fixed, broken, total, end) == pytest.approx(1.959964, rel=2e-3)


def score_statistic(fixed, broken, total, difference):
    def unlikely(share):  # minus the log-likelihood of a share of broken questions
        cells = ((fixed, share + difference), (broken, share), (total - fixed - broken, 1 - 2 * share - difference))
        return -sum(count * np.log(max(p, 1e-300)) for count, p in cells if count)

    lowest, highest = max(0.0, -difference), (1 - difference) / 2
    share = minimize_scalar(unlikely, bounds=(lowest, highest), method="bounded", options={"xatol": 1e-12}).x
    return abs(fixed - broken - total * difference) / np.sqrt(total * (2 * share + difference - difference**2))


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 200))
def test_tangos_interval_turns_round_with_its_sides_and_has_a_width(fixed, broken, same):
    low, high = tango(fixed, broken, fixed + broken + same)
    assert tango(broken, fixed, fixed + broken + same) == pytest.approx((-high, -low), abs=1e-9)
    assert -1 <= low < high <= 1


def test_nothing_changed_is_no_certainty():
    paired = paired_test(*sides(50, 0, 0, 50))
    assert paired.p_value == 1
    assert (paired.low, paired.high) == pytest.approx((-0.03699, 0.03699), abs=1e-4)  # 3.8415 / 103.8415


@pytest.mark.slow
def test_test_and_interval_never_say_different_things(repeats):
    # Every table with up to 60 questions that differ, of 80 and of 2,000; of the latter in CI every seventh.
    widened = 0
    tables = [(80, *one) for one in product(range(31), range(31))]
    tables += [(2000, *one) for one in product(range(31), range(31))][:: repeats(1, 7)]
    for total, fixed, broken in tables:
        paired = paired_test(*sides(0, fixed, broken, total - fixed - broken))
        assert (paired.p_value < ALPHA) == (not paired.low <= 0 <= paired.high)
        widened += 0 in (paired.low, paired.high)
    assert widened > 0


def partly_changed(dice, questions, differing, rising, k):
    """Scores in steps of 1/k; so large a share of the questions differ, and of these so many go up."""
    changes = np.where(dice.random(questions) < rising, 1, -1) * dice.integers(1, k + 1, questions) / k
    changes *= dice.random(questions) < differing
    left = np.where(changes > 0, 0.0, np.where(changes < 0, 1.0, 0.5))
    return list(left), list(left + changes)


def test_test_and_interval_agree_in_partial_credit_of_any_size():
    dice, found = np.random.default_rng(4), {"moved": 0, "better": 0, "worse": 0}
    for seed in range(1200):
        questions, k = int(dice.integers(2, 25)), int(dice.integers(2, 6))
        left, right = partly_changed(dice, questions, dice.choice([0.1, 0.3, 0.7, 1]), dice.random(), k)
        paired = paired_test(left, right, seed)
        assert (paired.p_value < ALPHA) == (not paired.low <= 0 <= paired.high)
        assert paired.low - 1e-12 <= paired.difference <= paired.high + 1e-12
        if paired.p_value < ALPHA and paired.test == "bootstrap":
            low, high = _interval(list(np.subtract(right, left)), seed)
            found["moved"] += low <= 0 <= high
            found["better" if paired.low > 0 else "worse"] += 1
    assert min(found.values()) > 12


@pytest.mark.parametrize(("differing", "hair"), [(8, 1e-6), (16, 0.02)], ids=["all patterns", "drawn patterns"])
def test_the_end_that_the_test_gives_is_where_the_test_turns(differing, hair):
    # Counted out over all sign patterns of the differences less one a hair below and above that end, zeros among them.
    dice, compared = np.random.default_rng(differing), 0
    signs = 1 - 2 * ((np.arange(2 ** (differing + 2))[:, None] >> np.arange(differing + 2)) & 1)
    while compared < 5:
        differences = [*map(float, dice.integers(-1, 5, differing) / 4), 0.0, 0.0]
        flips = _Flips.of(differences, 0)
        if flips.p_value() > 0.04 or flips.total < 0:
            continue
        compared += 1
        for step, is_refused in ((-hair, True), (hair, False)):
            moved = np.array(differences) - flips.nearest() - step
            assert (np.mean(np.abs(signs @ moved) >= abs(moved.sum()) - 1e-9) < ALPHA) == is_refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("questions", "differing", "rising"),
    [
        (15, 0.4, 0.5),
        (15, 0.4, 0.8),
        (15, 0.4, 0.95),
        (40, 0.15, 0.9),
        (100, 0.05, 0.9),
        (100, 0.05, 1),
        (300, 0.02, 0.9),
    ],
)
def test_coverage_of_partial_credit_where_few_questions_differ(questions, differing, rising, repeats):
    # The inverted test alone, both its ends, misses 5 to 13 % here, nearly all of it beyond the far end.
    dice, held, samples = np.random.default_rng(7), 0, repeats(2000, 300)
    truth = differing * (2 * rising - 1) * 5 / 8  # steps of 1/4 to 4/4, on average 5/8
    for seed in range(samples):
        paired = paired_test(*partly_changed(dice, questions, differing, rising, 4), seed)
        held += paired.low - 1e-12 <= truth <= paired.high + 1e-12
    assert held / samples >= 0.94 if samples == 2000 else at_least(held, samples, 0.94)


def test_coverage_of_tangos_interval():
    # Cached by table: 20,000 samples each, from few differing questions to many, both sides alike and not.
    dice = np.random.default_rng(2)
    for total, differing, gain in [
        (50, 0.1, 0.0),
        (100, 0.3, 0.2),
        (400, 0.1, 0.08),
        (400, 0.5, 0.1),
        (100, 0.9, 0.85),
    ]:
        shares = [(differing + gain) / 2, (differing - gain) / 2, 1 - differing]
        tables, counts = np.unique(dice.multinomial(total, shares, 20_000)[:, :2], axis=0, return_counts=True)
        ends = np.array([tango(int(fixed), int(broken), total) for fixed, broken in tables])
        held = (ends[:, 0] <= gain + 1e-12) & (gain - 1e-12 <= ends[:, 1])
        assert 0.94 <= (held * counts).sum() / 20_000 <= 0.975


def partial(seed, count=60, k=4, lift=0.1):
    dice = np.random.default_rng(seed)
    chance = dice.beta(0.8, 0.8, count)
    return list(dice.binomial(k, chance) / k), list(dice.binomial(k, np.clip(chance + lift, 0, 1)) / k)


@pytest.mark.parametrize("seed", range(8))
def test_partial_credit_agrees_with_scipys_permutation_test(seed):
    left, right = partial(seed)
    differences = (np.subtract(right, left),)
    for alternative, ours in (("two-sided", paired_test(left, right).p_value), ("greater", one_sided_p(left, right))):
        oracle = permutation_test(
            differences,
            np.mean,
            permutation_type="samples",
            n_resamples=20_000,
            vectorized=True,
            alternative=alternative,
            rng=seed,
        )
        assert ours == pytest.approx(oracle.pvalue, abs=5 * np.sqrt(oracle.pvalue / 10_000) + 2e-4)


@pytest.mark.parametrize("seed", range(4))
def test_partial_credits_interval_agrees_with_scipys_bootstrap(seed):
    left, right = partial(seed, count=150, lift=0.3)
    paired = paired_test(left, right)
    oracle = bootstrap((np.subtract(right, left),), np.mean, n_resamples=10_000, rng=seed).confidence_interval
    assert paired.test == "bootstrap"
    assert paired.p_value < ALPHA
    assert (paired.low, paired.high) == pytest.approx((oracle.low, oracle.high), abs=0.03 * (oracle.high - oracle.low))


def test_few_differences_take_all_patterns_of_signs():
    # Differences .5 .25 .25: sums of +-.5 +-.25 +-.25 are 1, .5, .5, 0 and their opposites; |sum| >= 1 twice of 8.
    left, right = [0.5, 0.5, 0.5, 0.5], [1.0, 0.75, 0.75, 0.5]
    assert paired_test(left, right).p_value == pytest.approx(2 / 8)
    assert one_sided_p(left, right) == pytest.approx(1 / 8)
    assert one_sided_p(right, left) == 1


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 0.25, 0.75])), max_size=11))
def test_with_all_patterns_the_p_value_is_counted_out(pairs):
    left, right = [0.5, *(a for a, _ in pairs)], [0.5, *(b for _, b in pairs)]
    differences = [b - a for a, b in pairs]
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in product((1, -1), repeat=len(pairs))
    ]
    seen = sum(differences)
    assert paired_test(left, right).p_value == pytest.approx(sum(abs(s) >= abs(seen) - 1e-9 for s in sums) / len(sums))


def test_drawn_patterns_never_give_zero():
    assert one_sided_p([0.1] * 200, [0.9] * 200) == pytest.approx(1 / 10_001)
    assert paired_test([0.1] * 200, [0.9] * 200).p_value == pytest.approx(1 / 10_001)


@pytest.mark.parametrize("seed", range(3))
def test_partial_credit_turns_round_with_its_sides(seed):
    left, right = partial(seed)
    there, back = paired_test(left, right), paired_test(right, left)
    assert back.difference == pytest.approx(-there.difference)
    assert back.p_value == pytest.approx(there.p_value, abs=0.02)
    assert (there.fixed, there.broken) == (back.broken, back.fixed)


def test_rounding_is_no_difference():
    paired = paired_test([0.1 + 0.2, 0.5], [0.3, 0.5])
    assert (paired.difference, paired.fixed, paired.broken, paired.p_value) == (0, (), (), 1)
    assert paired.high - paired.low > 0.5


def test_partial_credit_with_few_differences_gets_the_wide_interval():
    # Gains of a half on six questions and of a quarter on two, of 100: as if 7 steps of a half had been gained.
    left, right = [0.5] * 100, [1.0] * 6 + [0.75] * 2 + [0.5] * 92
    low, high = tango(7, 0, 100)
    found = paired_test(left, right)
    assert found.p_value == pytest.approx(2 / 2**8)
    assert (found.low, found.high) == pytest.approx((low / 2, high / 2))
    assert found.low > 0


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [([], [], "two scores"), ([1], [1, 0], "two scores"), ([1.5], [0], "0..1"), ([float("nan")], [0], "0..1")],
)
def test_what_cannot_be_paired_is_refused(left, right, message):
    for test in (paired_test, one_sided_p):
        with pytest.raises(ValueError, match=message):
            test(left, right)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_p_values_of_several_comparisons_are_corrected_as_holm_has_it(p_values):
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1], abs=1e-12)
