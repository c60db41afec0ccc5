"""Settings of an OpenAI-compatible endpoint. Its key is no setting, only the name of the variable that holds it."""

import json
import re
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, JsonValue, field_validator, model_validator

from ratchet.config.base import Settings, setting

# Fields of a request that are Ratchet's to fill in, and those that can at most be left out.
_OWN_FIELDS = ("model", "messages", "n", "stream", "stream_options", "max_tokens", "max_completion_tokens")
_LEAVABLE_FIELDS = ("temperature", "top_p", "seed")


# Names of fields that hold a key, and texts that are one whatever their name.
_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:api[_-]?key|authorization|credentials?|passw(?:or)?d|secret|(?:access|auth|bearer)[_-]?token)s?(?:[_-]|$)",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(r"(?:Bearer\s+|\bsk-|\bhf_|\bghp_|\bAKIA)[\w-]{12,}", re.IGNORECASE)


def secret_field(content: Any, name: str = "") -> str | None:
    """The name of the first extra field, at any depth, that holds what looks like a key; None if there is none."""
    if isinstance(content, dict):
        named = (
            key if _SECRET_NAME.search(key) and value else secret_field(value, key) for key, value in content.items()
        )
        return next(filter(None, named), None)
    if isinstance(content, list):
        return next(filter(None, (secret_field(one, name) for one in content)), None)
    return (name or "a text") if isinstance(content, str) and _SECRET_TEXT.search(content) else None


class EndpointSettings(Settings):
    """An endpoint with a model, how many requests it gets, and what its tokens cost."""

    # What is refused may hold a password or a key.
    model_config = ConfigDict(hide_input_in_errors=True)

    url: str = setting(
        ...,
        max_length=2000,
        label="Endpoint address",
        help="Base URL of the API, usually ending in /v1, such as http://localhost:8000/v1; Ratchet calls "
        "/chat/completions below it.",
    )
    model: str = setting(
        ..., min_length=1, max_length=500, label="Endpoint model", help="The model's name as the endpoint knows it."
    )
    api_key_env: str | None = setting(
        None,
        pattern=r"^[A-Z_][A-Z0-9_]{0,63}$",
        label="Key variable",
        help="Environment variable that holds the endpoint's key, such as OPENAI_API_KEY, in capitals; never the key "
        "itself. Empty: no key is sent.",
    )
    concurrency: int = setting(
        4, span=(1, 64), label="Requests at once", unit="requests", help="Max concurrent requests."
    )
    timeout_seconds: float = setting(
        120.0,
        span=(0.01, 3600),
        label="Time limit per request",
        unit="seconds",
        help="A request that is not fully answered after this time is cancelled and sent again.",
    )
    attempts: int = setting(
        5,
        span=(1, 20),
        label="Attempts",
        unit="attempts",
        help="Max attempts per request when it times out, the connection breaks or the server fails.",
    )
    rate_limit_minutes: float = setting(
        15.0,
        gt=0,
        le=1440,
        label="Rate limit patience",
        unit="minutes",
        help="How long to wait for a rate limit while no request gets through.",
    )
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = setting(
        "max_tokens",
        label="Max tokens field",
        help="The endpoint's field for max answer tokens; newer OpenAI models accept only max_completion_tokens.",
    )
    extra_body: dict[str, JsonValue] = setting(
        {},
        label="Extra fields",
        help="Sent with every request, such as {reasoning_effort: low}; null leaves out temperature, top_p or seed for "
        "a model that rejects them.",
    )
    price_per_million_prompt_tokens: float | None = setting(
        None,
        span=(0, 1_000_000),
        label="Price of prompt tokens",
        help="What a million prompt tokens cost, in the currency below. Without prices no cost is shown.",
    )
    price_per_million_answer_tokens: float | None = setting(
        None,
        span=(0, 1_000_000),
        label="Price of answer tokens",
        help="What a million answer tokens cost, in the currency below.",
    )
    currency: str = setting(
        "USD",
        pattern=r"^[^\s\d]{1,8}$",
        label="Currency",
        help="Unit of prices and costs, such as USD or EUR; nothing is converted.",
    )

    @field_validator("url")
    @classmethod
    def _plain_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ValueError(
                "Endpoint address is not a valid address. Give one such as http://localhost:8000/v1."
            ) from None
        # First, since none of the other sentences may repeat an address with a password in it.
        if "@" in url:
            raise ValueError(
                "Endpoint address contains a user or password. Remove them, and set Key variable (api_key_env) to the "
                "name of the variable that holds the key."
            )
        if parts.scheme not in ("http", "https") or not host or not url.isascii() or any(c <= " " for c in url):
            raise ValueError(
                "Endpoint address must begin with http:// or https:// and name a host, such as "
                "http://localhost:8000/v1."
            )
        if parts.query or parts.fragment or "?" in url or "#" in url:
            raise ValueError("Endpoint address has a part after ? or #, which is not sent. Remove it.")
        address = url.rstrip("/")
        if address.endswith(("/chat/completions", "/completions", "/models")) or not urlsplit(address).path:
            raise ValueError(
                "Endpoint address must be where the API begins, usually with /v1 at the end, such as "
                "http://localhost:8000/v1."
            )
        return address

    @field_validator("extra_body")
    @classmethod
    def _only_extra(cls, extra: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(extra, allow_nan=False)
        except ValueError:
            raise ValueError("Extra fields contain a number that is not finite. Remove it.") from None
        for name in _OWN_FIELDS:
            if name in extra:
                raise ValueError(f"Extra fields contain {name}, which Ratchet sets itself. Remove it.")
        for name in _LEAVABLE_FIELDS:
            if extra.get(name) is not None:
                raise ValueError(
                    f"Extra fields set {name}, which the evaluation sets. Remove it, or set null so that it is not "
                    "sent."
                )
        return extra

    @model_validator(mode="after")
    def _both_prices(self) -> Self:
        prompt, answer = self.price_per_million_prompt_tokens, self.price_per_million_answer_tokens
        if (prompt is None) != (answer is None):
            raise ValueError(
                "Only one of Price of prompt tokens and Price of answer tokens is given, so the cost is not known. "
                "Give both, 0 for what is free."
            )
        return self
