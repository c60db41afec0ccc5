"""One cheap look at an endpoint before an evaluation starts: is it there, does it take the key, has it the model."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.endpoint.background import in_background
from ratchet.endpoint.connection import connect
from ratchet.endpoint.endpoint_requests import EndpointRequest, body_of
from ratchet.endpoint.request_faults import Fault, error_of, outcome
from ratchet.endpoint.response_reading import read_completion, read_models
from ratchet.errors import ModelUnavailable, RatchetError

if TYPE_CHECKING:
    import httpx2

_ATTEMPTS = 2
# Models that reason refuse a limit that leaves no room for any answer.
_QUESTION = EndpointRequest(0, ({"role": "user", "content": "Answer with yes."},), max_answer_tokens=16)
_NAMES_SHOWN = 5


def _go_on() -> None:
    """Give up at nothing."""


def probe(settings: EndpointSettings, key: str | None, check: Callable[[], None] = _go_on) -> None:
    """Check that the endpoint can be used.

    Its list of models is enough where the model is in it; otherwise, since such a list may be missing or may know a
    model by another name, it is asked one short question. A rate limit is no reason to refuse. ``check`` is called
    every tenth of a second and raises to give up.

    Raises:
        InvalidSetting: it wants another key, another address, or takes no request like ours.
        ModelUnavailable: it cannot be reached, fails, or does not know the model.
        SamplerFailed: its credit is spent.
    """
    list(in_background(lambda _: _probe(settings, key), check))


async def _probe(settings: EndpointSettings, key: str | None) -> None:
    import httpx2

    patient = settings.model_copy(update={"attempts": min(settings.attempts, _ATTEMPTS)})
    async with connect(patient, key) as connection:
        listed = await outcome(connection.get("/models", cast_to=httpx2.Response))
        if isinstance(listed, Fault):
            names = None
            if listed.kind in ("connection", "address") or listed.status == 401:
                raise error_of(settings, listed)
        else:
            names = read_models(listed.content)
            if settings.model in (names or ()):
                return
        body = body_of(settings, _QUESTION, 0)
        answered = await outcome(connection.post("/chat/completions", cast_to=httpx2.Response, body=body))
    fault = answered if isinstance(answered, Fault) else _fault_in(answered)
    if fault is not None and fault.kind != "rate_limit":
        raise _with_names(error_of(settings, fault), fault, names)


def _fault_in(answered: "httpx2.Response") -> Fault | None:
    failure = read_completion(answered.content).failure
    return Fault(failure, answered.status_code) if failure == "unreadable" else None


def _with_names(error: RatchetError, fault: Fault, names: list[str] | None) -> RatchetError:
    """Add to what is said of an unknown model which ones there are."""
    if fault.kind != "model" or not names:
        return error
    shown = ", ".join(name[:80] for name in names[:_NAMES_SHOWN] if name.isprintable())
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ModelUnavailable(f"{error} It lists {shown}{more}.")
