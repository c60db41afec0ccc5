"""What can go wrong with a request, sorted: what fails one answer, what is waited for, what ends an evaluation.

Nothing that a server says of a fault is handed on but its status and names of fields: a message may quote the prompt.
"""

import email.utils
import re
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.endpoint.connection import TooLong
from ratchet.endpoint.endpoint_requests import EndpointFailure
from ratchet.errors import InvalidSetting, ModelUnavailable, RatchetError, SamplerFailed

if TYPE_CHECKING:
    import httpx2
    from openai import APIStatusError

FaultKind = EndpointFailure | Literal["key", "address", "model", "credit", "rate_limit"]
# Names of fields and of kinds of faults, as max_tokens or messages[0].content: letters that no key consists of.
_NAME = re.compile(r"[a-z][a-z_]{0,47}(?:\[[0-9]{1,4}\])?(?:\.[a-z_]{1,48})?")
_OF_STATUS: dict[int, FaultKind] = {
    401: "key",
    402: "credit",
    403: "key",
    404: "model",
    408: "time",
    409: "server",
    429: "rate_limit",
}


@dataclass(frozen=True)
class Fault:
    """What went wrong with a request after all its attempts.

    ``status`` is what the server answered with, None where it did not; ``names`` are those it gave, such as "code";
    ``wait_seconds`` is how long it asks to be left alone, None where it does not say.
    """

    kind: FaultKind
    status: int | None = None
    names: tuple[str, ...] = ()
    wait_seconds: float | None = None

    @property
    def where(self) -> str:
        """The status and the names in brackets, "" where there are none."""
        if self.status is None:
            return ""
        return f" (status {', '.join([str(self.status), *self.names])})"


async def outcome(asked: "Awaitable[httpx2.Response]") -> "httpx2.Response | Fault":
    """The reply to a request, or what went wrong."""
    from openai import OpenAIError

    try:
        return await asked
    except (OpenAIError, TooLong, UnicodeError) as error:
        return _sorted(error)


def _sorted(error: Exception) -> Fault:
    import httpx2
    from openai import APIStatusError, APITimeoutError

    if isinstance(error, APIStatusError):
        return _of_status(error)
    if isinstance(error, APITimeoutError):
        return Fault("connection" if isinstance(error.__cause__, httpx2.ConnectTimeout) else "time")
    if isinstance(error, TooLong):
        return Fault("too_large")
    # Half of a surrogate pair in a prompt: there is no way to send it.
    return Fault("bad_request" if isinstance(error, UnicodeError) else "connection")


def _of_status(error: "APIStatusError") -> Fault:
    status = error.status_code
    given = dict.fromkeys(str(name) for name in (error.code, error.type, error.param) if name)
    names = tuple(name for name in given if _NAME.fullmatch(name))
    kind = _OF_STATUS.get(status)
    if kind is None:
        kind = "address" if status < 400 else "bad_request" if status < 500 else "server"
    if "insufficient_quota" in names:
        kind = "credit"
    return Fault(kind, status, names, retry_after(error.response.headers.get("retry-after")))


def retry_after(header: str | None) -> float | None:
    """Read Retry-After (RFC 9110, section 10.2.3): seconds, which some give with a fraction, or a date."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        parsed = email.utils.parsedate_tz(header)
        if parsed is None:
            return None
        try:
            seconds = email.utils.mktime_tz(parsed) - time.time()
        except (ValueError, OverflowError):  # a date that no calendar has
            return None
    return seconds if 0 < seconds < float("inf") else None


def error_of(settings: EndpointSettings, fault: Fault) -> RatchetError:
    """The error that ends an evaluation, or keeps it from starting."""
    where, url = fault.where, settings.url
    if fault.kind == "key":
        return InvalidSetting(_key_in_words(settings, where), "endpoint.api_key_env")
    if fault.kind == "address":
        return InvalidSetting(
            f"The endpoint at {url} redirects requests{where}; redirects are not followed. Set Endpoint address to "
            "the address that it redirects to.",
            "endpoint.url",
        )
    if fault.kind == "bad_request":
        return InvalidSetting(
            f"The endpoint at {url} rejects the request{where}. Check Endpoint model, Max tokens field "
            "(max_tokens_field) and Extra fields (extra_body) against what the model takes.",
            "endpoint.extra_body",
        )
    if fault.kind == "credit":
        return SamplerFailed(f"The endpoint at {url} is out of credit{where}. Add credit, then resume.")
    if fault.kind == "model":
        return ModelUnavailable(
            f"The endpoint at {url} has no model {settings.model}, or no chat completions at this address{where}. "
            "Check Endpoint model and Endpoint address."
        )
    what, remedy = FAULT_WORDS[fault.kind]
    message = f"The endpoint at {url} {what}{where}. {remedy}"
    if fault.kind in ("unreadable", "too_large"):
        return InvalidSetting(message, "endpoint.url")
    return ModelUnavailable(message)


def _key_in_words(settings: EndpointSettings, where: str) -> str:
    if settings.api_key_env is None:
        return (
            f"The endpoint at {settings.url} requires a key{where}. Set Key variable (api_key_env) to the name of the "
            "environment variable that holds it."
        )
    return (
        f"The endpoint at {settings.url} rejects the key in the variable {settings.api_key_env}{where}. Check "
        "the key, and that it may use this model."
    )


# What happened, and what to do.
FAULT_WORDS: dict[FaultKind, tuple[str, str]] = {
    "connection": ("cannot be reached", "Check that it runs, and Endpoint address."),
    "time": (
        "does not answer in time",
        "Raise Time limit per request (timeout_seconds), or lower Requests at once (concurrency).",
    ),
    "server": ("fails", "See its log for the cause, and resume when it works again."),
    "unreadable": ("does not answer with chat completions", "Check Endpoint address."),
    "too_large": ("sends far more than an answer", "Check Endpoint address."),
    "rate_limit": ("limits its rate", "Resume later, or lower Requests at once (concurrency)."),
}
