"""The arithmetic from a trial to the full run: values worked by hand, and what must hold whatever was measured."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.engine.budget import TimeBudget, is_too_short
from ratchet.engine.estimate import (
    PassTimes,
    SamplerCall,
    Size,
    call_seconds,
    fixed_step_seconds,
    full_run,
    signal_share,
    steps,
)

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=40).map(tuple)
SECONDS = st.floats(0.01, 1000)
SIZE = Size(rounds=3, prompts=8, answers=2, validation=8, heldout=0, rows=4)


def passed(lengths=(2, 2, 2, 2), sampling=8.0, grading=1.0, update=6.0, groups=2, validated=(2, 2), validation=4.0):
    return PassTimes(SamplerCall(sampling, lengths), grading, update, groups, SamplerCall(validation, validated))


def test_answers_of_even_length_take_their_length_once_for_every_batch_that_they_fill():
    assert steps([5] * 8, rows=4) == 10
    assert steps([5] * 9, rows=4) == 15
    assert steps([5] * 3, rows=4) == 5


def test_a_place_that_falls_free_is_taken_by_the_next_answer():
    # 9 runs in the first place; 2, 3 and 4 follow one another in the second: 2 + 3 + 4.
    assert steps([9, 2, 3, 4], rows=2) == 9
    assert steps([2, 3, 4, 9], rows=2) == 12  # 2 then 4; 3 then 9


def test_the_fixed_cost_of_a_step_solves_two_equations_worked_by_hand():
    # 10 steps x 0.5 + 4 answers x 0.25 = 6; 10 x 0.5 + 16 x 0.25 = 9.
    small, large = SamplerCall(6.0, (10,) * 4), SamplerCall(9.0, (10,) * 16)
    assert fixed_step_seconds(small, large, rows=16) == pytest.approx(0.5)


def test_the_fixed_cost_stays_between_nothing_and_all_of_a_step():
    assert fixed_step_seconds(SamplerCall(100.0, (10,) * 4), SamplerCall(9.0, (10,) * 16), rows=16) == 0.9
    assert fixed_step_seconds(SamplerCall(0.1, (10,) * 4), SamplerCall(9.0, (10,) * 16), rows=16) == 0.0
    assert fixed_step_seconds(SamplerCall(6.0, (10,) * 4), SamplerCall(6.0, (10,) * 4), rows=16) == 0.0


def test_a_call_of_another_size_worked_by_hand():
    # 16 answers of 10 tokens in 16 places: 10 steps x 0.5 and 16 x 0.25. 64 answers: 40 x 0.5 + 64 x 0.25.
    assert call_seconds(SamplerCall(9.0, (10,) * 16), 64, rows=16, fixed=0.5) == pytest.approx(36.0)
    # One long answer leaves its batch nearly empty; further ones fill it: 100 + 3 x 10 = 130 places' steps in two
    # places is 100 steps, of eight answers 100 + 6 x 10 + ... = 200: twice the two long ones, one in each place.
    uneven = SamplerCall(100.0, (100, 10, 10, 10))
    assert steps(uneven.lengths, 2) == 100
    assert call_seconds(uneven, 4, rows=2, fixed=1.0) == pytest.approx(100.0)
    assert call_seconds(uneven, 8, rows=2, fixed=1.0) == pytest.approx(steps(uneven.lengths * 2, 2))


def test_the_full_run_worked_by_hand():
    # One size was measured, so nothing is known of a fixed cost: all is in proportion.
    small = passed()
    found = full_run(small, small, SIZE, signal=0.5, preparation=10.0, saving=0.25)
    assert found.sampling == 8.0 * 16 / 4
    assert found.grading == 1.0 * 16 / 4
    assert found.update == 6.0 * (8 * 0.5) / 2
    assert found.validation == 4.0 * 8 / 2
    assert found.heldout == 0.0
    # 10 + 16 + 0.25 + 3 x (32 + 4 + 12 + 16 + 0.25)
    assert found.total == pytest.approx(219.0)


def test_heldout_problems_are_scored_twice():
    found = full_run(passed(), passed(), replace(SIZE, heldout=4), signal=0.5, preparation=0.0, saving=0.0)
    assert found.heldout == 2 * 4.0 * 4 / 2


def test_groups_that_are_drawn_again_are_sampled_and_learned_from_as_often_as_they_are_worked_by_hand():
    # Half of the groups carry a signal: 8 prompts, then 4, then 2; 7 of 8 groups in the end.
    found = full_run(passed(), passed(), replace(SIZE, draws=3), signal=0.5, preparation=0.0, saving=0.0)
    assert found.sampling == 8.0 * (2 * (8 + 4 + 2)) / 4
    assert found.update == 6.0 * 7 / 2


def test_neither_all_nor_none_of_a_few_groups_is_taken_for_a_law():
    assert signal_share(0, 8) == 0.1
    assert signal_share(8, 8) == 0.9
    assert signal_share(3, 4) == pytest.approx(4 / 6)


@given(LENGTHS, st.integers(1, 8))
def test_steps_lie_between_what_the_places_need_and_twice_the_best(lengths, rows):
    """List scheduling is at most twice the optimum (Graham 1969), which is no less than either bound."""
    least = max(max(lengths), -(-sum(lengths) // rows))
    assert least <= steps(lengths, rows) <= 2 * least


@given(LENGTHS, LENGTHS, SECONDS, SECONDS, SECONDS, st.integers(1, 40))
def test_the_estimate_grows_with_rounds_prompts_and_validation(lengths, validated, sampling, update, validation, more):
    small = passed(lengths[:1], sampling / 2, 1.0, update / 2, 1, validated[:1], validation / 2)
    large = passed(lengths, sampling, 1.0, update, len(lengths), validated, validation)

    def seconds(size):
        found = full_run(small, large, size, signal=0.7, preparation=1.0, saving=0.1)
        assert min(found.sampling, found.update, found.validation, found.total) > 0
        return found.total

    base = seconds(SIZE)
    assert seconds(replace(SIZE, rounds=SIZE.rounds + more)) > base
    assert seconds(replace(SIZE, prompts=SIZE.prompts + more)) > base
    assert seconds(replace(SIZE, validation=SIZE.validation + more)) >= base
    assert seconds(replace(SIZE, heldout=more)) > base


@given(LENGTHS, SECONDS, st.floats(0, 10), st.integers(1, 8))
def test_a_call_of_the_measured_size_takes_what_was_measured(lengths, seconds, fixed, rows):
    measured = SamplerCall(seconds, lengths)
    assert call_seconds(measured, measured.answers, rows, fixed) == pytest.approx(seconds)


@given(st.floats(1, 1e6), st.floats(1, 1e5), st.integers(2, 1000))
def test_a_limit_that_is_long_enough_lets_the_last_round_of_even_rounds_start(preparation, a_round, rounds):
    total = preparation + rounds * a_round
    # As the run's own clock decides it: before the last round, all of the others are over.
    for limit in (total, total * 1.25, total * 2, total * 3):
        budget = TimeBudget(limit, lambda: 0.0, used_before=total - a_round)
        budget.record_round(a_round)
        assert is_too_short(limit, total, a_round) == (not budget.allows_a_round)
    assert is_too_short(total, total, a_round)
    assert not is_too_short(2 * total, total, a_round)
