"""The verdict across seeds: by hand, its words, and how often its interval holds the truth of other seeds."""

import numpy as np
import pytest

from ratchet.stats import across_seeds, judge_seeds


def scored(fixed, broken, total=200):
    """A side that fixes the first questions and breaks the last ones of a base that has the latter half right."""
    base = [0.0] * (total // 2) + [1.0] * (total - total // 2)
    after = [1.0] * fixed + base[fixed : total - broken] + [0.0] * broken
    return base, after


def test_the_interval_by_hand():
    # Two seeds, two questions, differences 1 0 and 0 1: seeds' means 1/2 and 1/2, questions' means alike, residuals
    # +-1/2. Neither seeds nor questions have a variance of their own, so what is left is the floor (z / (2 + z^2))^2
    # with the t of one degree of freedom, 12.706: 12.706 * 1.95996 / 5.84146 = 4.263.
    found = across_seeds._half_width(np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert found == pytest.approx(4.263, abs=1e-3)
    # Differences 1 1 and 0 0: only the seeds vary, by 1/2: variance of the mean 1/4, and the floor.
    found = across_seeds._half_width(np.array([[1.0, 1.0], [0.0, 0.0]]))
    assert found == pytest.approx((12.706**2 / 4 + 4.263**2) ** 0.5, rel=1e-3)
    # Differences 1 0 and 1 0: only the questions vary, by 1/2, as much as to divide by 2.
    found = across_seeds._half_width(np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert found == pytest.approx(12.706 * 0.5, rel=1e-3)


def test_seeds_that_all_gain_alike_are_learning():
    found = judge_seeds({0: scored(30, 2), 1: scored(34, 3), 2: scored(32, 2)})
    assert found.verdict == "learning"
    assert found.gains == pytest.approx({0: 0.14, 1: 0.155, 2: 0.15})
    assert found.mean == pytest.approx(0.445 / 3)
    assert 0 < found.low < found.mean < found.high
    assert found.questions == 200
    assert found.sentence.startswith("It learns: over 3 seeds the gain was 14.8 points on average (95 % interval ")
    assert found.sentence.endswith("seed by seed 14.0, 15.5, 15.0.")


def test_one_seed_that_gains_and_two_that_do_not_are_luck():
    found = judge_seeds({0: scored(40, 2), 1: scored(3, 4), 2: scored(5, 5)})
    assert found.verdict == "luck"
    assert found.low < 0 < found.high
    assert found.p_values[0] < 0.001 < 0.05 < found.p_values[1]
    assert "It depends on the seed" in found.sentence


def test_gains_that_differ_wildly_are_luck_though_all_are_gains():
    assert judge_seeds({0: scored(90, 0), 1: scored(15, 0), 2: scored(40, 0)}).verdict == "luck"


def test_a_proven_mean_is_no_learning_where_a_seed_did_not_gain():
    seeds = {seed: scored(8, 1) for seed in range(9)} | {9: scored(1, 1)}
    found = judge_seeds(seeds)
    assert found.low > 0
    assert min(found.p_values.values()) > 0.03  # no seed proves anything by itself
    assert found.verdict == "luck"


def test_small_gains_are_no_gain():
    found = judge_seeds({0: scored(6, 4), 1: scored(5, 6), 2: scored(8, 5)})
    assert found.verdict == "no_gain"
    assert "within the noise" in found.sentence


def test_a_gain_of_one_seed_in_many_counts_only_if_it_is_more_than_many_tries_give():
    # 11 fixed and 2 broken: p = 0.022 alone, more than 0.05 among three.
    seeds = {0: scored(11, 2), 1: scored(4, 4), 2: scored(3, 4)}
    assert judge_seeds(seeds).p_values[0] == pytest.approx(0.0225, abs=1e-3)
    assert judge_seeds(seeds).verdict == "no_gain"


def test_seeds_that_all_lose_are_worse():
    found = judge_seeds({0: scored(2, 30), 1: scored(3, 34), 2: scored(2, 32)})
    assert found.verdict == "worse"
    assert found.high < 0
    assert found.sentence.startswith("Training made it worse")


def test_adapters_that_change_nothing_are_no_certainty():
    found = judge_seeds({0: scored(0, 0), 1: scored(0, 0)})
    assert found.verdict == "no_gain"
    assert found.high - found.low > 0.03


def test_partial_credit_goes_the_same_way():
    dice = np.random.default_rng(0)
    base = dice.beta(1, 2, 300)
    seeds = {seed: (list(base), list(np.clip(base + dice.normal(0.1, 0.2, 300), 0, 1))) for seed in range(3)}
    assert judge_seeds(seeds).verdict == "learning"


def test_one_seed_is_refused_and_so_are_different_questions():
    with pytest.raises(ValueError, match="give two or more"):
        judge_seeds({0: scored(3, 1)})
    with pytest.raises(ValueError, match="same questions"):
        judge_seeds({0: scored(3, 1), 1: scored(3, 1, total=100)})
    with pytest.raises(ValueError, match="same questions"):
        judge_seeds({0: scored(3, 1), 1: (scored(3, 1)[0], [1.0])})


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_about_95_of_100_intervals_hold_the_mean_of_all_seeds_and_questions(seeds, spread):
    # Pass probabilities of Beta(1/2, 1/2), which a seed moves by 5 points on average, more or less by its spread.
    dice, questions = np.random.default_rng(3), 200
    chance, shift = dice.beta(0.5, 0.5, 1_000_000), dice.normal(0.05, spread, 1_000_000)
    truth = (np.clip(chance + shift, 0, 1) - chance).mean()
    held = 0
    for _ in range(600):
        chance = dice.beta(0.5, 0.5, questions)
        base = dice.random(questions) < chance
        moved = np.clip(chance + dice.normal(0.05, spread, (seeds, 1)), 0, 1)
        differences = (dice.random((seeds, questions)) < moved).astype(float) - base
        held += abs(differences.mean() - truth) <= across_seeds._half_width(differences)
    assert held / 600 >= 0.93
