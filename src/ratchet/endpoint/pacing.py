"""When to pause for a rate limit, and when to give up on an endpoint."""

import asyncio
import time
from collections import Counter

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.endpoint.endpoint_requests import EndpointFailure
from ratchet.endpoint.request_faults import FAULT_WORDS, Fault, error_of
from ratchet.errors import SamplerFailed


class RateLimit:
    """When the next request may be sent. Used in one event loop at a time.

    A limit holds for all requests, so that all of them wait once one has met it. Where the endpoint does not say how
    long, each pause is twice the one before.
    """

    FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._since: float | None = None
        self._until = 0.0
        self._pause = self.FIRST_PAUSE_SECONDS

    @property
    def seconds_left(self) -> float:
        """Seconds that the pause still lasts, at most 0 when it is over."""
        return self._until - time.monotonic()

    async def passed(self) -> None:
        """Wait until the pause is over."""
        while (left := self.seconds_left) > 0:
            await asyncio.sleep(left)

    def lifted(self) -> None:
        """Note that a request got through."""
        self._since = None
        self._pause = self.FIRST_PAUSE_SECONDS

    def met(self, wait_seconds: float | None) -> None:
        """Note that a request met the limit; ``wait_seconds`` is how long the endpoint asks to wait.

        Raises:
            SamplerFailed: no request got through for too long, or none would.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
        left = self._since + self._settings.rate_limit_minutes * 60 - now
        if left <= 0 or (wait_seconds is not None and wait_seconds > left):
            raise SamplerFailed(self._in_words(now - self._since, wait_seconds))
        if wait_seconds is not None:
            self._until = max(self._until, now + wait_seconds)
        elif now >= self._until:  # not one of several that were sent before the pause began
            self._until = now + min(self._pause, left)
            self._pause = min(2 * self._pause, self.LONGEST_PAUSE_SECONDS)

    def _in_words(self, waited: float, wait_seconds: float | None) -> str:
        wish = "" if wait_seconds is None else f"; it asks to wait {wait_seconds:.0f} seconds more"
        return (
            f"The endpoint at {self._settings.url} has let no request through for {waited:.0f} seconds (status 429)"
            f"{wish}. Rate limit patience is {self._settings.rate_limit_minutes:g} minutes. Resume later, lower "
            "Requests at once (concurrency), or raise Rate limit patience (rate_limit_minutes)."
        )


class FailureTracker:
    """Failures of an endpoint so far, and whether to give up. Used in one thread at a time."""

    # Requests under way may all meet the same short outage; this many failures in a row are more than that.
    GIVE_UP_AFTER = 10

    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = settings
        self._has_answered = False
        self._in_a_row: list[EndpointFailure] = []
        self._refused = 0

    def answered(self) -> None:
        """Note an answer."""
        self._has_answered = True
        self._in_a_row = []

    def failed(self, fault: Fault) -> EndpointFailure:
        """Note a fault; return the kind of the answer's failure.

        Raises:
            RatchetError: it would be the same for all other questions, or has been for many in a row.
        """
        kind = fault.kind
        if kind == "key" and fault.status == 403 and self._has_answered:
            kind = "bad_request"  # some services refuse single prompts so
        if kind == "key" or kind == "address" or kind == "model" or kind == "credit" or kind == "rate_limit":
            raise error_of(self._settings, fault)
        if kind == "bad_request":
            self._in_a_row = []
            self._refused += 1
            if not self._has_answered and self._refused >= self.GIVE_UP_AFTER:
                raise error_of(self._settings, fault)
            return kind
        self._in_a_row.append(kind)
        if len(self._in_a_row) >= self.GIVE_UP_AFTER:
            raise self._gave_up(fault)
        return kind

    def _gave_up(self, fault: Fault) -> SamplerFailed:
        commonest = Counter(self._in_a_row).most_common(1)[0][0]
        what, remedy = FAULT_WORDS[commonest]
        where = fault.where if fault.kind == commonest else ""
        return SamplerFailed(
            f"The last {len(self._in_a_row)} requests to the endpoint at {self._settings.url} all failed: it {what}"
            f"{where}. {remedy}"
        )
