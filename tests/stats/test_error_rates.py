"""How often a verdict is wrong: false alarms of ``paired_test`` without a gain, and what it finds of a real one.

The model of questions. Each question has a probability p of being answered right, drawn from Beta(m s, (1 - m) s) with
mean m, the accuracy, and s = 1: most questions are nearly always or nearly never right. Base and other side answer
independently given p. Without a gain both have the same p; with one, the other side's p is raised so that its mean is
ten points higher. Worst case: every question has p = m, so that answers have nothing to do with each other.
"""

from functools import cache

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binomtest

from ratchet.stats import ALPHA, paired_test

from ..repeated import at_most

SAMPLES, MOST = 20_000, 0.035


def upper_bound(hits, total):
    return binomtest(hits, total).proportion_ci(0.90, "exact").high  # one-sided 95 %: Clopper-Pearson


def is_rare(hits, total, full):
    """Shown by a full simulation, not belied by a short one."""
    return upper_bound(hits, total) <= MOST if total == full else at_most(hits, total, MOST)


@cache
def is_better(fixed, broken, total):
    left, right = (
        [0.0] * fixed + [1.0] * broken + [0.0] * (total - fixed - broken),
        [1.0] * fixed + [0.0] * (total - fixed),
    )
    return (paired := paired_test(left, right)).p_value < ALPHA and paired.difference > 0


def better_rate(left, right):
    """How many of the samples, one a row of answers, are called better; every table is tested once."""
    tables = np.stack([(~left & right).sum(axis=1), (left & ~right).sum(axis=1)])
    found, counts = np.unique(tables, axis=1, return_counts=True)
    return sum(
        int(count) * is_better(int(fixed), int(broken), left.shape[1])
        for (fixed, broken), count in zip(found.T, counts, strict=True)
    )


@pytest.mark.parametrize("questions", [60, 400])
@pytest.mark.parametrize("accuracy", [0.05, 0.3, 0.5, 0.8, 0.95])
def test_false_better_without_a_gain(accuracy, questions):
    dice = np.random.default_rng(round(1000 * accuracy) + questions)
    hits = 0
    for _ in range(10):
        chance = dice.beta(accuracy, 1 - accuracy, (SAMPLES // 10, questions))
        hits += better_rate(dice.random(chance.shape) < chance, dice.random(chance.shape) < chance)
    assert upper_bound(hits, SAMPLES) <= MOST


@pytest.mark.slow
@pytest.mark.parametrize(("accuracy", "questions", "k"), [(0.1, 100, 4), (0.5, 100, 4), (0.9, 100, 8), (0.5, 25, 2)])
def test_false_better_without_a_gain_in_partial_credit(accuracy, questions, k, repeats):
    dice = np.random.default_rng(round(1000 * accuracy) + questions)
    hits, samples = 0, repeats(3000, 400)
    for seed in range(samples):
        chance = dice.beta(accuracy, 1 - accuracy, questions)
        left, right = (list(dice.binomial(k, chance) / k) for _ in range(2))
        paired = paired_test(left, right, seed)
        hits += paired.p_value < ALPHA and paired.difference > 0
    assert is_rare(hits, samples, 3000)


@pytest.mark.slow
@pytest.mark.parametrize(("questions", "differing", "k"), [(15, 0.4, 4), (25, 0.4, 8), (60, 0.12, 4), (200, 0.04, 4)])
def test_false_better_without_a_gain_where_few_questions_differ_in_partial_credit(questions, differing, k, repeats):
    dice = np.random.default_rng(questions)
    hits, samples = 0, repeats(4000, 400)
    for seed in range(samples):
        changed = np.where(dice.random(questions) < differing, dice.integers(1, k + 1, questions) / k, 0)
        is_up = dice.random(questions) < 0.5
        paired = paired_test(list(np.where(is_up, 0, changed)), list(np.where(is_up, changed, 0)), seed)
        hits += paired.p_value < ALPHA and paired.difference > 0
    assert is_rare(hits, samples, 4000)


@pytest.mark.slow
def test_false_better_where_the_means_are_equal_and_the_differences_lopsided(repeats):
    # Not what the sign flips assume: the other side loses a little on many questions and gains much on few.
    dice = np.random.default_rng(8)
    hits, samples = 0, repeats(3000, 400)
    for seed in range(samples):
        gains = np.where(dice.random(200) < 0.2, 0.4, -0.1)
        left = dice.uniform(0.2, 0.5, 200)
        paired = paired_test(list(left), list(left + gains), seed)
        hits += paired.p_value < ALPHA and paired.difference > 0
    assert is_rare(hits, samples, 3000)


def raised(chance, gain):
    """Raise probabilities on the logit scale by what raises their mean by the gain."""
    logit = np.log(chance) - np.log1p(-chance)
    by = brentq(lambda step: (1 / (1 + np.exp(-logit - step))).mean() - chance.mean() - gain, 0, 20)
    return 1 / (1 + np.exp(-logit - by))


@pytest.mark.parametrize("accuracy", [0.1, 0.3, 0.5, 0.7, 0.85])
def test_ten_points_are_found_on_400_questions(accuracy):
    dice = np.random.default_rng(round(1000 * accuracy))
    chance = np.clip(dice.beta(accuracy, 1 - accuracy, (4000, 400)), 1e-9, 1 - 1e-9)
    hits = better_rate(dice.random(chance.shape) < chance, dice.random(chance.shape) < raised(chance, 0.1))
    assert binomtest(hits, 4000).proportion_ci(0.90, "exact").low >= 0.8


def test_ten_points_on_400_questions_in_the_worst_case(repeats):
    # Independent answers at 50 and 60 %: the exact power is 79.2 %.
    dice = np.random.default_rng(1)
    samples = repeats(20_000, 8_000)
    hits = better_rate(dice.random((samples, 400)) < 0.5, dice.random((samples, 400)) < 0.6)
    assert hits / samples == pytest.approx(0.792, abs=0.012)
