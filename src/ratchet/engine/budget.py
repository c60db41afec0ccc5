"""The time limit and the cost cap: when a round may start, and when the one under way is given up.

At a price per hour a cost cap is a time limit: of the two the nearer one counts, with the same margins. The clock
counts active seconds from the worker's start, model loading included, over all resumes of a run; time between a kill
and the resume is not counted. Knows seconds alone: no signals, no rounds' contents.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from ratchet.config import LimitSettings
from ratchet.errors import StopReason

# A run stops this long before its limit, to leave time for packaging: so many seconds, or this share of the limit.
_CLOSING_SECONDS, _CLOSING_SHARE = 180.0, 1 / 20
# A round must be expected to end this long before the stop: so many seconds, or this share of the limit.
_MARGIN_SECONDS, _MARGIN_SHARE = 120.0, 1 / 30
# The next round may take this much longer than the slowest so far.
_ROUND_ALLOWANCE = 1.25


@dataclass
class TimeBudget:
    """A time limit, or none."""

    limit_seconds: float | None  # the limit, None for none
    now: Callable[[], float]  # a clock in seconds that never goes back
    used_before: float = 0.0  # active seconds of earlier sessions of the same run
    slowest_round: float | None = None  # seconds of the slowest finished round, None before the first
    reason: StopReason = "time_limit"  # what the limit is: that of time, or that of cost
    price_per_hour: float | None = None  # what an hour costs, None where no price is known

    @classmethod
    def of(cls, limits: LimitSettings, now: Callable[[], float]) -> Self:
        """Return the budget that a run's settings allow."""
        bounds: list[tuple[float, StopReason]] = []
        if limits.time_hours is not None:
            bounds.append((limits.time_hours * 3600, "time_limit"))
        if limits.cost_cap is not None and limits.price_per_hour is not None:
            bounds.append((limits.cost_cap / limits.price_per_hour * 3600, "cost_limit"))
        if not bounds:
            return cls(None, now, price_per_hour=limits.price_per_hour)
        seconds, reason = min(bounds, key=lambda bound: bound[0])
        return cls(seconds, now, reason=reason, price_per_hour=limits.price_per_hour)

    def __post_init__(self) -> None:
        self._started = self.now()

    @property
    def elapsed(self) -> float:
        """Active seconds so far."""
        return self.used_before + self.now() - self._started

    @property
    def cost(self) -> float | None:
        """What the run has cost so far; None where no price is known."""
        return None if self.price_per_hour is None else round(self.elapsed / 3600 * self.price_per_hour, 6)

    @property
    def stop_at(self) -> float | None:
        """Active seconds at which training stops: the limit less the time kept for closing."""
        if self.limit_seconds is None:
            return None
        return self.limit_seconds - min(_CLOSING_SECONDS, self.limit_seconds * _CLOSING_SHARE)

    @property
    def is_over(self) -> bool:
        """Whether a round under way must be given up now."""
        return self.stop_at is not None and self.elapsed >= self.stop_at

    @property
    def allows_a_round(self) -> bool:
        """Whether another round is expected to end in time. Always true before the first: nothing is known yet."""
        if self.stop_at is None or self.limit_seconds is None or self.slowest_round is None:
            return True
        margin = min(_MARGIN_SECONDS, self.limit_seconds * _MARGIN_SHARE)
        return self.elapsed + _ROUND_ALLOWANCE * self.slowest_round + margin <= self.stop_at

    def record_round(self, seconds: float) -> None:
        """Remember how long a finished round took."""
        self.slowest_round = max(seconds, self.slowest_round or 0.0)


def is_too_short(limit_seconds: float, seconds: float, round_seconds: float) -> bool:
    """Whether a limit ends a run of so many seconds before its last round, whose rounds take so long."""
    budget = TimeBudget(limit_seconds, lambda: 0.0, used_before=max(0.0, seconds - round_seconds))
    budget.record_round(round_seconds)
    return not budget.allows_a_round
