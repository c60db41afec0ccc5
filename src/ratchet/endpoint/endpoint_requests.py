"""Requests to an endpoint and its answers as plain data, and a request's fields as they are sent."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.run.records import FinishReason, Message

# Why there is no answer: not in time; no connection, or a broken one; a fault of the server; a request that it refused,
# as too long for the model; an answer that its filter withheld; a reply that is no completion; one far too long.
EndpointFailure = Literal["time", "connection", "server", "bad_request", "filtered", "unreadable", "too_large"]
# Recorded for a field that is not sent.
ENDPOINTS_OWN = "the endpoint's own"
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k")


@dataclass(frozen=True)
class EndpointRequest:
    """A question with its prompt and sampling. A ``temperature`` of 0 is greedy: ``top_p`` and ``seed`` have no effect.

    ``question`` is the number that the answers come back under; nothing is made of it.
    """

    question: int
    messages: Sequence[Message] = field(repr=False)
    max_answer_tokens: int
    answers: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class EndpointAnswer:
    """One answer, or why there is none.

    Attributes:
        question: The request's number.
        answer: Which of the question's answers, from 0 on.
        text: What the model wrote, reasoning that came apart as ``<think>...</think>`` before it; "" for a failure.
        finish: "length" where it was cut off.
        prompt_tokens: As the endpoint counts them; None where it does not say.
        answer_tokens: The same for the answer, reasoning included.
        seconds: From the request that was answered to its last byte; of a failure from the first request on.
        failure: Why there is no answer, None where there is one.
    """

    question: int
    answer: int
    text: str = field(repr=False)
    finish: FinishReason
    prompt_tokens: int | None
    answer_tokens: int | None
    seconds: float
    failure: EndpointFailure | None


def body_of(settings: EndpointSettings, request: EndpointRequest, answer: int) -> dict[str, Any]:
    """Fields of a request for one answer. Few servers support ``n``, so each answer is a request of its own."""
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": [{"role": turn["role"], "content": turn["content"]} for turn in request.messages],
        settings.max_tokens_field: request.max_answer_tokens,
        "temperature": request.temperature,
    }
    if request.temperature > 0:
        body |= {"top_p": request.top_p, "seed": _own_seed(request, answer)}
    body |= settings.extra_body
    left_out = [name for name, value in settings.extra_body.items() if value is None]
    return {name: value for name, value in body.items() if name not in left_out}


def sampling_sent(settings: EndpointSettings, request: EndpointRequest) -> str | dict[str, Any]:
    """Sampling that a request sets, as recorded by an evaluation: greedy, or field by field."""
    body = body_of(settings, request, 0)
    if request.temperature == 0:
        return "greedy" if "temperature" in body else ENDPOINTS_OWN
    seed = request.seed if "seed" in body else ENDPOINTS_OWN
    return {**{name: body.get(name, ENDPOINTS_OWN) for name in _SAMPLING_FIELDS}, "seed": seed}


def extra_sent(settings: EndpointSettings, request: EndpointRequest) -> dict[str, Any]:
    """Extra fields of a request that ``sampling_sent`` does not contain."""
    recorded = () if request.temperature == 0 else _SAMPLING_FIELDS
    body = body_of(settings, request, 0)
    return {name: body[name] for name in settings.extra_body if name in body and name not in recorded}


def _own_seed(request: EndpointRequest, answer: int) -> int:
    """Seed (31 bits) of one answer: with a shared one, all answers to a question would be the same."""
    digest = hashlib.sha256(f"{request.seed}/{request.question}/{answer}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
