"""The look at an endpoint before an evaluation: one cheap request or two, and what stands in the way in words."""

import socket
from contextlib import closing

import pytest

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.endpoint import probe
from ratchet.errors import InvalidSetting, ModelUnavailable, SamplerFailed

from .server import KEY, Reply, completion, fault


def look(endpoint, **fields):
    given = {"url": endpoint.url, "model": "small", "timeout_seconds": 5.0, "attempts": 1, **fields}
    probe(EndpointSettings(**given), KEY)


def paths(endpoint):
    return [asked.path.removeprefix("/v1") for asked in endpoint.asked]


def test_a_model_in_the_list_is_enough(endpoint):
    look(endpoint)
    assert paths(endpoint) == ["/models"]
    assert endpoint.asked[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "models",
    [Reply({}, 404), Reply({}, 405), fault(403), Reply(b"<html>"), Reply({"data": [{"id": "other"}]}), fault(500)],
    ids=["404", "405", "403", "html", "other", "500"],
)
def test_otherwise_one_short_question_decides(endpoint, models):
    endpoint.models = models
    look(endpoint, max_tokens_field="max_completion_tokens", extra_body={"temperature": None, "top_k": 1})
    assert paths(endpoint) == ["/models", "/chat/completions"]
    assert endpoint.chats[0].body == {
        "model": "small",
        "messages": [{"role": "user", "content": "Answer with yes."}],
        "max_completion_tokens": 16,
        "top_k": 1,
    }


def test_an_unknown_model_is_named_beside_those_there_are(endpoint):
    endpoint.models = Reply({"data": [{"id": f"model-{number}"} for number in range(7)]})
    endpoint.answer = lambda asked: fault(404)
    with pytest.raises(ModelUnavailable, match=r"no model small.*It lists model-0, .*, model-4 and 2 more\."):
        look(endpoint)


def test_a_wrong_key_is_refused_at_the_list(endpoint):
    endpoint.models = fault(401)
    with pytest.raises(InvalidSetting, match="status 401") as refused:
        look(endpoint)
    assert refused.value.field == "endpoint.api_key_env"
    assert KEY not in str(refused.value)
    assert paths(endpoint) == ["/models"]


@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        (fault(401), InvalidSetting, "requires a key"),
        (
            fault(400, code="unsupported_parameter", param="max_tokens"),
            InvalidSetting,
            "unsupported_parameter, max_tok",
        ),
        (fault(503), ModelUnavailable, r"fails \(status 503\)"),
        (fault(402), SamplerFailed, "out of credit"),
        (Reply(b"<html>"), InvalidSetting, "does not answer with chat completions"),
        (Reply({}, 301, {"Location": "/"}), InvalidSetting, "redirects"),
        (Reply(completion(), seconds=30), ModelUnavailable, "does not answer in time"),
    ],
    ids=["401", "400", "503", "402", "html", "301", "late"],
)
def test_what_stands_in_the_way_is_said(endpoint, reply, error, says):
    endpoint.models = Reply({}, 404)
    endpoint.answer = lambda asked: reply
    with pytest.raises(error, match=says):
        look(endpoint, timeout_seconds=0.3 if reply.seconds else 5.0)


@pytest.mark.parametrize(
    "reply", [fault(429), Reply(completion("", finish="length")), Reply(completion(finish="content_filter"))]
)
def test_a_rate_limit_or_an_odd_answer_does_not_stand_in_the_way(endpoint, reply):
    endpoint.models = Reply({}, 404)
    endpoint.answer = lambda asked: reply
    look(endpoint)


def test_a_server_that_is_not_there_cannot_be_reached(endpoint):
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ModelUnavailable, match=r"at http://127\.0\.0\.1:\d+/v1 cannot be reached\. Check that it runs"):
        look(endpoint, url=url)


def test_a_look_can_be_given_up(endpoint):
    endpoint.models = Reply({}, seconds=30)

    def check():
        if endpoint.under_way:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        probe(EndpointSettings(url=endpoint.url, model="small"), KEY, check)
