"""The time limit: when a round may start, and when the one under way is given up.

The clock counts active seconds from the worker's start, model loading included, over all resumes of a run; time
between a kill and the resume is not counted. Knows seconds alone: no signals, no rounds' contents.
"""

from collections.abc import Callable
from dataclasses import dataclass

# A run stops this long before its limit, to leave time for packaging: so many seconds, or this share of the limit.
_CLOSING_SECONDS, _CLOSING_SHARE = 180.0, 1 / 20
# A round must be expected to end this long before the stop: so many seconds, or this share of the limit.
_MARGIN_SECONDS, _MARGIN_SHARE = 120.0, 1 / 30
# The next round may take this much longer than the slowest so far.
_ROUND_ALLOWANCE = 1.25


@dataclass
class TimeBudget:
    """A time limit, or none.

    Attributes:
        limit_seconds: The limit, None for none.
        now: A clock in seconds that never goes back.
        used_before: Active seconds of earlier sessions of the same run.
        slowest_round: Seconds of the slowest finished round, None before the first.
    """

    limit_seconds: float | None
    now: Callable[[], float]
    used_before: float = 0.0
    slowest_round: float | None = None

    def __post_init__(self) -> None:
        self._started = self.now()

    @property
    def elapsed(self) -> float:
        """Active seconds so far."""
        return self.used_before + self.now() - self._started

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
