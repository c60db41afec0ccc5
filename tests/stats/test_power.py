"""The planner: against counting every table, against drawn evaluations, and that its answers do what they say."""

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.stats import (
    ALPHA,
    expected_discordance,
    paired_test,
    power_of,
    questions_to_decide,
    questions_to_detect,
    smallest_gain,
)


@pytest.mark.parametrize(("gain", "discordance"), [(0.2, 0.3), (0.3, 0.3), (0.0, 0.5), (-0.2, 0.4), (0.5, 1.0)])
def test_power_is_the_weight_of_all_tables_that_the_test_finds(gain, discordance):
    questions, found = 30, 0.0
    up, down = (discordance + abs(gain)) / 2, (discordance - abs(gain)) / 2
    for fixed, broken in product(range(questions + 1), repeat=2):
        same = questions - fixed - broken
        if same < 0 or fixed <= broken:
            continue
        left, right = [0.0] * fixed + [1.0] * broken + [1.0] * same, [1.0] * fixed + [0.0] * broken + [1.0] * same
        if paired_test(left, right).p_value < ALPHA:
            ways = comb(questions, fixed) * comb(questions - fixed, broken)
            found += ways * up**fixed * down**broken * (1 - discordance) ** same
    assert power_of(questions, gain, discordance) == pytest.approx(found, abs=1e-9)


def test_without_a_gain_power_is_at_most_half_of_alpha():
    for questions in (10, 100, 1000, 20_000):
        assert power_of(questions, 0.0, 0.3) <= ALPHA / 2


def test_a_p_value_at_the_limit_finds_nothing():
    # Three of three fixed: p = 2 / 8, which is not below 0.25.
    assert power_of(3, 1.0, 1.0, alpha=0.25) == 0
    assert power_of(3, 1.0, 1.0, alpha=0.26) == pytest.approx(1)


def test_many_questions_are_summed_where_the_weight_is():
    # The normal approximation: n = (1.96 sqrt(d) + 0.8416 sqrt(d - g^2))^2 / g^2 (Connor 1987, Biometrics 43).
    discordance, gain = 0.2, 0.005
    needed = (1.959964 * discordance**0.5 + 0.841621 * (discordance - gain**2) ** 0.5) ** 2 / gain**2
    assert questions_to_detect(gain, discordance) == pytest.approx(needed, rel=0.01)


@pytest.mark.parametrize(("gain", "discordance"), [(0.1, 0.25), (0.05, 0.2), (0.3, 0.4), (0.02, 0.02)])
def test_the_number_of_questions_detects_and_a_tenth_fewer_does_not(gain, discordance):
    questions = questions_to_detect(gain, discordance)
    assert power_of(questions, gain, discordance) >= 0.8
    assert power_of(int(questions * 0.9), gain, discordance) < 0.8


def test_more_power_and_a_stricter_test_take_more_questions():
    usual = questions_to_detect(0.1, 0.25)
    assert questions_to_detect(0.1, 0.25, power=0.95) > usual
    assert questions_to_detect(0.1, 0.25, alpha=0.005) > usual
    assert questions_to_detect(-0.1, 0.25) == usual


def test_the_guess_of_the_discordance_by_hand():
    # 0.5 and 0.6: both right 0.3 + 0.5 sqrt(0.25 * 0.24) = 0.42247; they differ on 1.1 - 0.84495.
    assert expected_discordance(0.5, 0.1) == pytest.approx(0.25505, abs=1e-5)
    assert expected_discordance(0.5, 0.1, correlation=0) == pytest.approx(0.5)
    assert expected_discordance(0.0, 0.1) == pytest.approx(0.1)
    assert expected_discordance(0.5, 0.1, correlation=1) == pytest.approx(0.1, abs=0.01)


def test_the_guess_is_what_questions_of_beta_half_half_give():
    chance = np.random.default_rng(3).beta(0.5, 0.5, 400_000)
    dice = np.random.default_rng(4)
    left, right = dice.random(chance.size) < chance, dice.random(chance.size) < chance
    assert (left != right).mean() == pytest.approx(expected_discordance(0.5, 0.0), abs=0.003)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_guess_is_one_that_a_test_can_be_planned_with(base, other, correlation):
    discordance = expected_discordance(base, other - base, correlation)
    assert abs(base + (other - base) - base) - 1e-9 <= discordance <= 1 + 1e-9


def test_what_would_decide_is_more_than_there_was():
    assert questions_to_decide(0.03, 0.2, 200) == questions_to_detect(0.03, 0.2)
    assert questions_to_decide(0.3, 0.3, 5000) == 5001
    assert questions_to_decide(-0.03, 0.2, 200) == questions_to_decide(0.03, 0.2, 200)
    assert questions_to_decide(0.1, 0.02, 20) == questions_to_detect(0.1, 0.1)  # small steps of partial credit
    assert questions_to_decide(0.0, 0.2, 200) is None
    assert questions_to_decide(1e-6, 0.3, 200) is None  # more than any benchmark has


def test_the_smallest_gain_that_so_many_questions_detect():
    gain = smallest_gain(400, 0.5)
    assert power_of(400, gain, expected_discordance(0.5, gain)) >= 0.8
    assert power_of(400, gain - 0.001, expected_discordance(0.5, gain - 0.001)) < 0.8
    assert smallest_gain(60, 0.95) is None  # three questions are left to gain
    assert smallest_gain(4000, 0.5) < gain / 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: power_of(100, 0.3, 0.2), "does not go with"),
        (lambda: questions_to_detect(0.0, 0.2), "cannot be detected"),
        (lambda: questions_to_detect(1e-6, 0.5), "more than 100000000"),
        (lambda: expected_discordance(0.9, 0.2), "not both"),
    ],
)
def test_plans_that_cannot_be_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
