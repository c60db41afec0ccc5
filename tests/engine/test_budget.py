"""The time limit with a clock of our own, worked by hand."""

import pytest

from ratchet.config import LimitSettings
from ratchet.engine.budget import TimeBudget


class Clock:
    """A clock that starts anywhere and is moved by hand."""

    def __init__(self):
        self.seconds = 12345.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


# limit   kept for closing min(180, limit/20)   stops at   margin of a round min(120, limit/30)
#   300                                    15        285                                     10
#  3600                                   180       3420                                    120
#  7200                              180, not 360   7020                           120, not 240
STOPS = [(300.0, 285.0, 10.0), (3600.0, 3420.0, 120.0), (7200.0, 7020.0, 120.0)]


@pytest.mark.parametrize(("limit", "stop", "margin"), STOPS)
def test_a_run_stops_early_enough_to_close(clock, limit, stop, margin):
    budget = TimeBudget(limit, clock)
    assert budget.stop_at == pytest.approx(stop)
    clock.seconds += stop - 0.01
    assert not budget.is_over
    clock.seconds += 0.02
    assert budget.is_over


@pytest.mark.parametrize(("limit", "stop", "margin"), STOPS)
def test_a_round_starts_only_if_a_quarter_more_than_the_slowest_fits_with_its_margin(clock, limit, stop, margin):
    budget = TimeBudget(limit, clock)
    budget.record_round(40.0)
    # elapsed + 1.25 * 40 + margin <= stop: at 5 minutes elapsed <= 285 - 50 - 10 = 225
    latest = stop - 50 - margin
    clock.seconds += latest - 0.01
    assert budget.allows_a_round
    clock.seconds += 0.02
    assert not budget.allows_a_round
    assert not budget.is_over


def test_a_run_is_over_at_the_very_second_it_stops(clock):
    budget = TimeBudget(300.0, clock)
    clock.seconds += 285.0
    assert budget.is_over


def test_the_last_start_of_a_five_minute_run_is_at_225_seconds(clock):
    budget = TimeBudget(300.0, clock, slowest_round=40.0)
    clock.seconds += 225.0
    assert budget.allows_a_round
    clock.seconds += 1.0
    assert not budget.allows_a_round


def test_the_slowest_round_counts_not_the_last(clock):
    budget = TimeBudget(300.0, clock)
    for seconds in (10.0, 60.0, 5.0):
        budget.record_round(seconds)
    assert budget.slowest_round == 60.0
    # 285 - 75 - 10 = 200
    clock.seconds += 200.5
    assert not budget.allows_a_round


def test_the_first_round_always_starts(clock):
    budget = TimeBudget(300.0, clock)
    clock.seconds += 299.0
    assert budget.allows_a_round
    assert budget.is_over  # which is asked within the round


def test_time_of_earlier_sessions_counts(clock):
    budget = TimeBudget(300.0, clock, used_before=200.0, slowest_round=40.0)
    clock.seconds += 24.9  # 224.9 in all
    assert budget.elapsed == pytest.approx(224.9)
    assert budget.allows_a_round
    clock.seconds += 0.2
    assert not budget.allows_a_round
    clock.seconds += 60.0
    assert budget.is_over


def test_time_of_earlier_sessions_may_become_known_later(clock):
    budget = TimeBudget(300.0, clock)
    clock.seconds += 10.0
    budget.used_before = 280.0
    assert budget.elapsed == pytest.approx(290.0)
    assert budget.is_over


def test_without_a_limit_nothing_is_ever_over(clock):
    budget = TimeBudget(None, clock)
    budget.record_round(1e6)
    clock.seconds += 1e9
    assert budget.stop_at is None
    assert budget.allows_a_round
    assert not budget.is_over
    assert budget.elapsed == pytest.approx(1e9)


# price  cap   hours: at 2 an hour a cap of 1 buys 1800 s, at 0.5 one of 2 buys 14400 s, more than the two hours' limit.
@pytest.mark.parametrize(
    ("price", "cap", "hours", "seconds", "reason"),
    [
        (2.0, 1.0, 2.0, 1800.0, "cost_limit"),
        (0.5, 2.0, 2.0, 7200.0, "time_limit"),
        (0.5, 2.0, None, 14400.0, "cost_limit"),
        (1.0, 2.0, 2.0, 7200.0, "time_limit"),
        (2.0, None, 2.0, 7200.0, "time_limit"),
        (None, None, None, None, "time_limit"),
    ],
)
def test_the_nearer_of_time_limit_and_cost_cap_counts(clock, price, cap, hours, seconds, reason):
    limits = LimitSettings(time_hours=hours, price_per_hour=price, cost_cap=cap)
    budget = TimeBudget.of(limits, clock)
    assert (budget.limit_seconds, budget.reason) == (seconds, reason)
    # The margins are those of a time limit of that length.
    assert budget.stop_at == TimeBudget(seconds, clock).stop_at


def test_cost_is_hours_times_price_over_all_sessions_and_unknown_without_a_price(clock):
    budget = TimeBudget.of(LimitSettings(price_per_hour=2.0), clock)
    budget.used_before = 1800.0
    clock.seconds += 900.0
    assert budget.cost == 1.5  # 2700 s = 0.75 h at 2
    assert TimeBudget.of(LimitSettings(), clock).cost is None
