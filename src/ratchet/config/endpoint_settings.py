"""How an OpenAI-compatible endpoint is asked. Its key is no setting: only the name of the variable that holds it is."""

import json
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, JsonValue, field_validator, model_validator

from ratchet.config.base import Settings, setting

# Fields of a request that are Ratchet's to fill in, and those that can at most be left out.
_OWN_FIELDS = ("model", "messages", "n", "stream", "stream_options", "max_tokens", "max_completion_tokens")
_LEAVABLE_FIELDS = ("temperature", "top_p", "seed")


class EndpointSettings(Settings):
    """An endpoint with a model, how hard it is asked, and what its tokens cost."""

    # What is refused may hold a password or a key.
    model_config = ConfigDict(hide_input_in_errors=True)

    url: str = setting(
        ...,
        max_length=2000,
        label="Endpoint address",
        help="Where the endpoint's API begins, usually with /v1 at the end, such as http://localhost:8000/v1; "
        "Ratchet asks /chat/completions below it.",
    )
    model: str = setting(
        ..., min_length=1, max_length=500, label="Endpoint model", help="The model's name as the endpoint knows it."
    )
    api_key_env: str | None = setting(
        None,
        pattern=r"^[A-Z_][A-Z0-9_]{0,63}$",
        label="Key variable",
        help="Name of the environment variable that holds the endpoint's key, such as OPENAI_API_KEY, in capitals; "
        "never the key itself. Empty: no key is sent.",
    )
    concurrency: int = setting(
        4, ge=1, le=64, label="Requests at once", unit="requests", help="How many requests are under way at a time."
    )
    timeout_seconds: float = setting(
        120.0,
        ge=0.01,
        le=3600,
        label="Time limit per request",
        unit="seconds",
        help="A request that has not been answered in full after so long is given up and sent again.",
    )
    attempts: int = setting(
        5,
        ge=1,
        le=20,
        label="Attempts",
        unit="attempts",
        help="How often a request is sent in all when it is not answered in time, the connection breaks or the server "
        "fails.",
    )
    rate_limit_minutes: float = setting(
        15.0,
        gt=0,
        le=1440,
        label="Rate limit patience",
        unit="minutes",
        help="How long a rate limit is waited for while no request at all gets through.",
    )
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = setting(
        "max_tokens",
        label="Field of the longest answer",
        help="What the endpoint calls the limit on an answer's tokens; newer models of OpenAI take "
        "max_completion_tokens only.",
    )
    extra_body: dict[str, JsonValue] = setting(
        {},
        label="Extra fields",
        help="Sent with every request, such as {reasoning_effort: low}; null leaves out temperature, top_p or seed "
        "for a model that refuses them.",
    )
    price_per_million_prompt_tokens: float | None = setting(
        None,
        ge=0,
        le=1_000_000,
        label="Price of prompt tokens",
        help="What a million prompt tokens cost, in the currency below. Without prices no cost is shown anywhere.",
    )
    price_per_million_answer_tokens: float | None = setting(
        None,
        ge=0,
        le=1_000_000,
        label="Price of answer tokens",
        help="What a million tokens of answers cost, in the currency below.",
    )
    currency: str = setting(
        "USD",
        pattern=r"^[^\s\d]{1,8}$",
        label="Currency",
        help="What prices and costs are called, such as USD or EUR; nothing is converted.",
    )

    @field_validator("url")
    @classmethod
    def _plain_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ValueError("Endpoint address is no address. Give one such as http://localhost:8000/v1.") from None
        # First, since none of the other sentences may repeat an address with a password in it.
        if "@" in url:
            raise ValueError(
                "Endpoint address holds a user or password. Leave them out, and name the variable that holds the key "
                "as Key variable (api_key_env)."
            )
        if parts.scheme not in ("http", "https") or not host or not url.isascii() or any(c <= " " for c in url):
            raise ValueError(
                "Endpoint address must begin with http:// or https:// and name a host, such as "
                "http://localhost:8000/v1."
            )
        if parts.query or parts.fragment or "?" in url or "#" in url:
            raise ValueError("Endpoint address has a part after ? or #, which is not sent. Leave it out.")
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
            raise ValueError("Extra fields hold a number that is not finite. Leave it out.") from None
        for name in _OWN_FIELDS:
            if name in extra:
                raise ValueError(f"Extra fields hold {name}, which Ratchet sets itself. Leave it out.")
        for name in _LEAVABLE_FIELDS:
            if extra.get(name) is not None:
                raise ValueError(
                    f"Extra fields set {name}, which the evaluation sets. Leave it out, or give null so that it is "
                    "not sent."
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
