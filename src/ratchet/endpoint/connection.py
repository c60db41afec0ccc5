"""The way to an endpoint: the ``openai`` library, with what it lacks. It builds, sends and repeats requests.

What is added, all of it where a request leaves: a time limit on the whole of a request and not only on the pause
between two bytes, a limit on what is read, no redirects, and only headers that an endpoint needs. The key joins a
request there, so that no object of the library, and with it no error of it, ever holds it; nor do variables of the
environment that the library reads for its own service reach an endpoint. Environment proxies are for other machines.
"""

import asyncio
import ipaddress
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.errors import InvalidSetting

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

# An answer of the longest kind (32,768 tokens with their reasoning) is well below a megabyte.
LONGEST_REPLY_BYTES = 16 * 1024 * 1024
# A machine that is there answers a call for a connection within this, whatever its model then takes.
_CONNECT_SECONDS = 10.0
_HEADERS = ("accept", "content-type", "user-agent")


class TooLong(Exception):
    """A reply is longer than any answer."""


def read_key(settings: EndpointSettings) -> str | None:
    """The endpoint's key from the environment, None where it needs none.

    Raises:
        InvalidSetting: the variable is not set, or what it holds cannot be sent.
    """
    name = settings.api_key_env
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise InvalidSetting(
            f"Key variable (api_key_env) is {name}, but this environment variable is not set. Set it to the endpoint's "
            "key where Ratchet is started.",
            "endpoint.api_key_env",
        )
    if not (key.isascii() and key.isprintable()):
        raise InvalidSetting(
            f"The variable {name} does not contain a valid key: it has line breaks or characters that cannot be sent. "
            "Set it to the endpoint's key alone.",
            "endpoint.api_key_env",
        )
    return key


def connect(settings: EndpointSettings, key: str | None) -> "AsyncOpenAI":
    """A client of the library for an endpoint, to be used and closed inside one event loop.

    What it sends raises errors of the library or ``TooLong``. Rate limits are not waited for in there: they hold for
    all requests at once.
    """
    import httpx2
    from openai import AsyncOpenAI

    class Guarded(httpx2.AsyncClient):
        async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            options |= {"stream": True, "follow_redirects": False}
            try:
                async with asyncio.timeout(settings.timeout_seconds):
                    response = await super().send(_leaving(request, key), **options)
                    try:
                        content = await _content(response)
                    finally:
                        await response.aclose()
            except TimeoutError:
                raise httpx2.ReadTimeout("not answered in full in time", request=request) from None
            return _whole(response, request, content)

    waits = httpx2.Timeout(settings.timeout_seconds, connect=min(settings.timeout_seconds, _CONNECT_SECONDS))
    limits = httpx2.Limits(max_connections=settings.concurrency)
    sender = Guarded(timeout=waits, limits=limits, trust_env=not is_here(settings.url))
    return AsyncOpenAI(
        api_key="sent by Guarded",
        base_url=settings.url,
        max_retries=settings.attempts - 1,
        timeout=waits,
        http_client=sender,
    )


def is_here(url: str) -> bool:
    """Whether an address is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _leaving(request: "httpx2.Request", key: str | None) -> "httpx2.Request":
    """The request as it is sent: with the key, and without what the library reveals of this machine."""
    import httpx2

    headers = {name: request.headers[name] for name in _HEADERS if name in request.headers}
    # A small reply must not become a large one in memory here.
    headers["accept-encoding"] = "identity"
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return httpx2.Request(
        request.method, request.url, headers=headers, content=request.content, extensions=request.extensions
    )


async def _content(response: "httpx2.Response") -> bytes:
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > LONGEST_REPLY_BYTES:
            raise TooLong
    return bytes(content)


def _whole(response: "httpx2.Response", request: "httpx2.Request", content: bytes) -> "httpx2.Response":
    """The reply as read, belonging to the request without the key."""
    import httpx2

    # As bytes: a server may send more than ASCII.
    left_out = {b"content-encoding", b"content-length", b"transfer-encoding"}
    if response.status_code == 429:  # see ``connect``
        left_out.add(b"x-should-retry")
    headers = [(name, value) for name, value in response.headers.raw if name.lower() not in left_out]
    if response.status_code == 429:
        headers.append((b"x-should-retry", b"false"))
    whole = httpx2.Response(response.status_code, headers=headers, content=content, request=request)
    whole.elapsed = response.elapsed
    return whole
