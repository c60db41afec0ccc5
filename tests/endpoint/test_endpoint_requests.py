"""What is sent to an endpoint, and how what it sends is read: fields by hand, and anything at all without raising."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.endpoint import EndpointRequest, extra_sent, sampling_sent
from ratchet.endpoint.endpoint_requests import body_of
from ratchet.endpoint.response_reading import Reading, read_completion, read_models

from .server import completion

QUESTION = ({"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 2?"})


def settings_of(**fields):
    return EndpointSettings(url="http://localhost:8000/v1", model="small", **fields)


def read(message, finish="stop", **fields):
    choice = {"message": {"role": "assistant", **message}, "finish_reason": finish}
    return read_completion(json.dumps({"choices": [choice], **fields}).encode())


def test_a_greedy_request_sends_neither_seed_nor_top_p():
    body = body_of(settings_of(), EndpointRequest(1, QUESTION, 64), 0)
    assert body == {"model": "small", "messages": list(QUESTION), "max_tokens": 64, "temperature": 0.0}


def test_a_sampled_request_has_a_seed_of_its_own_for_each_answer():
    request = EndpointRequest(3, QUESTION, 64, answers=3, temperature=0.7, top_p=0.9, seed=5)
    bodies = [body_of(settings_of(), request, number) for number in range(3)]
    assert {(body["temperature"], body["top_p"]) for body in bodies} == {(0.7, 0.9)}
    seeds = [body["seed"] for body in bodies]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert [body_of(settings_of(), request, number)["seed"] for number in range(3)] == seeds


def test_extra_fields_are_added_and_null_leaves_a_field_out():
    settings = settings_of(
        extra_body={"reasoning_effort": "low", "temperature": None, "seed": None},
        max_tokens_field="max_completion_tokens",
    )
    body = body_of(settings, EndpointRequest(1, QUESTION, 64, temperature=1.0), 0)
    assert body == {
        "model": "small",
        "messages": list(QUESTION),
        "max_completion_tokens": 64,
        "top_p": 1.0,
        "reasoning_effort": "low",
    }


GREEDY = EndpointRequest(1, QUESTION, 64)
SAMPLED = EndpointRequest(1, QUESTION, 64, answers=2, temperature=0.7, top_p=0.9, seed=5)
OWN = "the endpoint's own"
ALL_SENT = {"temperature": 0.7, "top_p": 0.9, "top_k": OWN, "seed": 5}
ALL_LEFT_OUT = {"temperature": None, "top_p": None, "seed": None}


@pytest.mark.parametrize(
    ("request_", "extra_body", "sampling", "extra"),
    [
        (GREEDY, {}, "greedy", {}),
        (GREEDY, {"temperature": None}, OWN, {}),
        (GREEDY, {"top_p": None, "seed": None}, "greedy", {}),  # neither is sent with a greedy request
        (GREEDY, {"reasoning_effort": "low"}, "greedy", {"reasoning_effort": "low"}),
        (GREEDY, {"temperature": None, "top_k": 5}, OWN, {"top_k": 5}),
        (GREEDY, {"reasoning_effort": None}, "greedy", {}),  # sent as little as without it
        (SAMPLED, {}, ALL_SENT, {}),
        (SAMPLED, ALL_LEFT_OUT, dict.fromkeys(ALL_SENT, OWN), {}),
        (SAMPLED, {"top_k": 5, "min_p": 0.1}, {**ALL_SENT, "top_k": 5}, {"min_p": 0.1}),
    ],
)
def test_what_is_told_of_the_way_of_asking_is_what_is_sent(request_, extra_body, sampling, extra):
    settings = settings_of(extra_body=extra_body)
    assert sampling_sent(settings, request_) == sampling
    assert extra_sent(settings, request_) == extra


@pytest.mark.parametrize(
    ("message", "finish", "text"),
    [
        ({"content": "4"}, "stop", "4"),
        ({"content": None}, "stop", ""),
        ({"content": ""}, "stop", ""),
        ({}, "stop", ""),
        ({"content": None, "refusal": "I cannot."}, "stop", "I cannot."),
        ({"content": [{"type": "text", "text": "4"}, {"type": "image"}, {"type": "text", "text": "2"}]}, "stop", "42"),
        ({"content": "4", "reasoning_content": "two and two"}, "stop", "<think>two and two</think>\n4"),
        ({"content": "4", "reasoning": "two and two"}, "stop", "<think>two and two</think>\n4"),
        ({"content": "4", "reasoning_content": None}, "stop", "4"),
        ({"content": "<think>two</think>4", "reasoning_content": "two"}, "stop", "<think>two</think>4"),
        ({"content": None, "reasoning_content": "two and"}, "length", "<think>two and"),
        ({"content": None, "reasoning_content": "two and"}, "stop", "<think>two and</think>\n"),
    ],
)
def test_the_text_of_an_answer(message, finish, text):
    found = read(message, finish)
    assert (found.text, found.finish, found.failure) == (text, finish, None)


def test_tokens_that_are_not_told_are_unknown_and_not_zero():
    assert read({"content": "4"}) == Reading("4", "stop", None, None)
    assert read({"content": "4"}, usage=None) == Reading("4", "stop", None, None)
    assert read({"content": "4"}, usage={"prompt_tokens": 0, "completion_tokens": 2}) == Reading("4", "stop", 0, 2)
    huge = {"prompt_tokens": 10**300, "completion_tokens": 10**9 + 1}
    assert read({"content": "4"}, usage=huge) == Reading("4", "stop", None, None)
    odd = {"prompt_tokens": True, "completion_tokens": -1}
    assert read({"content": "4"}, usage=odd) == Reading("4", "stop", None, None)


def test_an_answer_that_was_withheld_is_a_failure_whose_tokens_count():
    found = read({"content": "4"}, "content_filter", usage={"prompt_tokens": 5, "completion_tokens": 1})
    assert found == Reading("", "stop", 5, 1, failure="filtered")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b'{"choices": []}',
        b'{"choices": [null]}',
        b'{"choices": {"0": 1}}',
        b'{"choices": [{"message": "4"}]}',
        b'{"error": {"message": "no"}}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_completion_is_unreadable(content):
    assert read_completion(content) == Reading(failure="unreadable")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "usage", "text", "data", "id", "finish_reason"]), inner
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_reading_never_raises(content):
    sent = json.dumps(content).encode()
    assert isinstance(read_completion(sent).text, str)
    assert read_models(sent) is None or all(isinstance(name, str) for name in read_models(sent))


def test_a_list_of_models():
    assert read_models(b'{"data": [{"id": "a"}, {"id": 3}, "b", {"id": "c"}]}') == ["a", "c"]
    assert read_models(b'{"models": []}') is None
    assert read_models(json.dumps(completion()).encode()) is None


def test_texts_are_in_no_repr():
    assert "2 + 2" not in repr(EndpointRequest(1, QUESTION, 64))
    assert "forty-two" not in repr(Reading("forty-two"))
