"""Asking an endpoint many questions: every answer comes once, as it is finished, or the reason why there is none."""

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.endpoint.background import in_background
from ratchet.endpoint.connection import connect
from ratchet.endpoint.endpoint_requests import EndpointAnswer, EndpointRequest, body_of
from ratchet.endpoint.pacing import FailureTracker, RateLimit
from ratchet.endpoint.request_faults import Fault, outcome
from ratchet.endpoint.response_reading import Reading, read_completion

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI


class EndpointClient:
    """An endpoint that answers questions. What it knows of the endpoint is kept from one call to the next.

    Args:
        settings: Address, limits and fields of requests.
        key: Its key, as ``read_key`` returns it. It is in no error, log or answer.
    """

    def __init__(self, settings: EndpointSettings, key: str | None) -> None:
        self._settings = settings
        self._key = key
        self._failures = FailureTracker(settings)
        self._limit = RateLimit(settings)

    def answer_all(self, requests: Sequence[EndpointRequest], check: Callable[[], None]) -> Generator[EndpointAnswer]:
        """Yield every answer of every request once, in the order in which they are finished.

        At most ``concurrency`` requests are under way at a time, also while whoever takes the answers is busy; none is
        left when the generator has ended, however it does. Close it when you leave early.

        Args:
            requests: In the order in which they are sent.
            check: Called every tenth of a second and before every answer; raises to give up.

        Raises:
            InvalidSetting: the endpoint takes no key of ours, or none of the requests.
            ModelUnavailable: it does not know the model.
            SamplerFailed: many requests in a row failed, a rate limit was not lifted in time, or the credit is spent.
        """
        waiting = iter([(request, number) for request in requests for number in range(request.answers)])
        crew = min(self._settings.concurrency, sum(request.answers for request in requests))

        async def work(report: Callable[[EndpointAnswer], None]) -> None:
            async with connect(self._settings, self._key) as connection, asyncio.TaskGroup() as group:
                for _ in range(crew):
                    group.create_task(self._serve(connection, waiting, report))

        yield from in_background(work, check)

    async def _serve(
        self,
        connection: "AsyncOpenAI",
        waiting: Iterator[tuple[EndpointRequest, int]],
        report: Callable[[EndpointAnswer], None],
    ) -> None:
        for request, number in waiting:
            report(await self._answer(connection, request, number))

    async def _answer(self, connection: "AsyncOpenAI", request: EndpointRequest, number: int) -> EndpointAnswer:
        started = perf_counter()
        found = await self._ask(connection, body_of(self._settings, request, number))
        if isinstance(found, Fault):
            reading, seconds = Reading(failure=self._failures.failed(found)), perf_counter() - started
        else:
            reading, seconds = read_completion(found.content), found.elapsed.total_seconds()
            if reading.failure == "unreadable":
                self._failures.failed(Fault(reading.failure, found.status_code))
            else:
                self._failures.answered()
        return EndpointAnswer(
            question=request.question,
            answer=number,
            text=reading.text,
            finish=reading.finish,
            prompt_tokens=reading.prompt_tokens,
            answer_tokens=reading.answer_tokens,
            seconds=seconds,
            failure=reading.failure,
        )

    async def _ask(self, connection: "AsyncOpenAI", body: dict[str, object]) -> "httpx2.Response | Fault":
        """Send a request until it meets no rate limit."""
        import httpx2

        while True:
            await self._limit.passed()
            found = await outcome(connection.post("/chat/completions", cast_to=httpx2.Response, body=body))
            if not isinstance(found, Fault) or found.kind != "rate_limit":
                self._limit.lifted()
                return found
            self._limit.met(found.wait_seconds)
