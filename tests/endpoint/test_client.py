"""Asking a real server on this machine: every answer comes once whatever it does, and secrets stay where they are.

The server is ``server.py``: HTTP over a socket, told by each test how to behave.
"""

import gc
import gzip
import json
import logging
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import closing
from itertools import pairwise

import pytest

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.endpoint import EndpointClient, EndpointRequest, connection, read_key
from ratchet.endpoint.pacing import FailureTracker, RateLimit
from ratchet.endpoint.request_faults import retry_after
from ratchet.errors import InvalidSetting, ModelUnavailable, SamplerFailed

from .server import ANSWER, KEY, PROMPT, Reply, completion, fault

SOON = {"Retry-After": "0.01"}


def settings_of(endpoint, **fields):
    return EndpointSettings(**{"url": endpoint.url, "model": "small", "timeout_seconds": 5.0, "attempts": 1, **fields})


def question(number, **fields):
    messages = ({"role": "user", "content": f"{PROMPT} {number}"},)
    return EndpointRequest(**{"question": number, "messages": messages, "max_answer_tokens": 64, **fields})


def number_in(asked):
    return int(asked.body["messages"][0]["content"].rsplit(" ", 1)[1])


def go_on():
    pass


def answers_of(endpoint, count=1, *, key=KEY, check=go_on, client=None, answers=1, **fields):
    client = client or EndpointClient(settings_of(endpoint, **fields), key)
    requests = [question(number, answers=answers) for number in range(1, count + 1)]
    with closing(client.answer_all(requests, check)) as found:
        return list(found)


def failures_of(endpoint, count=1, **fields):
    return [answer.failure for answer in answers_of(endpoint, count, **fields)]


def test_every_answer_of_every_question_comes_once(endpoint):
    endpoint.answer = lambda asked: Reply(completion(f"{ANSWER} to {number_in(asked)}"))
    found = answers_of(endpoint, 40, answers=3, concurrency=7)
    assert sorted((one.question, one.answer) for one in found) == [(q, a) for q in range(1, 41) for a in range(3)]
    assert all(one.text == f"{ANSWER} to {one.question}" for one in found)
    assert {(one.finish, one.prompt_tokens, one.answer_tokens, one.failure) for one in found} == {("stop", 7, 3, None)}
    assert len(endpoint.chats) == 120


def test_headers_of_any_bytes_change_no_answer(endpoint):
    endpoint.answer = lambda asked: Reply(completion(), headers={"Server": "caf\u00e9", "X-Any": "\u00ff\u0080"})
    assert [answer.text for answer in answers_of(endpoint, 3)] == [ANSWER] * 3


def test_no_question_is_no_request(endpoint):
    assert answers_of(endpoint, 0) == []
    assert endpoint.asked == []


def test_an_endpoint_is_sent_what_it_needs_and_no_more(endpoint, monkeypatch):
    # Variables that the library reads for its own service.
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_WEBHOOK_SECRET"):
        monkeypatch.setenv(name, "of-another-service")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: of-another-service\nX-Other: of-another-service")
    for key, sent in ((KEY, f"Bearer {KEY}"), (None, None)):
        assert failures_of(endpoint, key=key) == [None]
        headers = {name.lower(): value for name, value in endpoint.asked[-1].headers.items()}
        assert headers.pop("authorization", None) == sent
        assert set(headers) == {"host", "accept", "content-type", "user-agent", "accept-encoding", "content-length"}
        assert "of-another-service" not in str(headers)
    assert endpoint.asked[-1].body == {
        "model": "small",
        "messages": [{"role": "user", "content": f"{PROMPT} 1"}],
        "max_tokens": 64,
        "temperature": 0.0,
    }


def test_no_more_requests_than_wanted_are_under_way(endpoint):
    endpoint.answer = lambda asked: Reply(completion(), seconds=0.02)
    answers_of(endpoint, 30, concurrency=3)
    assert endpoint.most_at_once == 3


def test_requests_go_on_while_answers_are_graded(endpoint):
    client = EndpointClient(settings_of(endpoint, concurrency=2), None)
    with closing(client.answer_all([question(number) for number in range(10)], go_on)) as found:
        next(found)
        while len(endpoint.chats) < 10:  # nobody takes an answer
            time.sleep(0.01)
        assert len(list(found)) == 9


def test_an_answer_that_was_cut_off_is_known(endpoint):
    endpoint.answer = lambda asked: Reply(completion("half", finish="length", usage=None))
    (found,) = answers_of(endpoint)
    assert (found.text, found.finish, found.prompt_tokens, found.answer_tokens) == ("half", "length", None, None)


def test_latency_is_that_of_the_request_that_was_answered(endpoint):
    endpoint.answer = lambda asked: (
        fault(500, headers={"Retry-After": "0.4"}) if asked.number == 1 else Reply(completion(), seconds=0.1)
    )
    started = time.perf_counter()
    (found,) = answers_of(endpoint, attempts=2)
    assert 0.1 <= found.seconds <= time.perf_counter() - started - 0.4


@pytest.mark.parametrize("status", [500, 502, 503, 529, 408, 409])
def test_a_fault_of_the_server_is_tried_again(endpoint, status):
    endpoint.answer = lambda asked: fault(status, headers=SOON) if asked.number < 3 else Reply(completion())
    (found,) = answers_of(endpoint, attempts=3)
    assert (found.text, found.failure) == (ANSWER, None)
    assert len(endpoint.chats) == 3


def test_a_broken_connection_is_tried_again(endpoint):
    endpoint.answer = lambda asked: Reply(None, breaks=True) if asked.number == 1 else Reply(completion())
    assert failures_of(endpoint, attempts=2) == [None]


@pytest.mark.parametrize(
    ("reply", "kind", "attempts"),
    [
        (fault(500, headers=SOON), "server", 3),
        (fault(503, headers=SOON), "server", 3),
        (fault(408, headers=SOON), "time", 3),
        (fault(400), "bad_request", 1),
        (fault(413), "bad_request", 1),
        (fault(422), "bad_request", 1),
        (Reply(b"<html>hello</html>", headers={"Content-Type": "text/html"}), "unreadable", 1),
        (Reply(b'{"choices": ['), "unreadable", 1),
        (Reply({"error": {"message": PROMPT}}), "unreadable", 1),
        (Reply(completion(finish="content_filter")), "filtered", 1),
        (Reply(None, breaks=True), "connection", None),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
def test_what_cannot_be_answered_fails_alone_and_with_its_kind(endpoint, reply, kind, attempts):
    endpoint.answer = lambda asked: reply if number_in(asked) == 2 else Reply(completion())
    found = answers_of(endpoint, 3, concurrency=1, attempts=3 if attempts else 1)
    assert [(one.question, one.failure) for one in found] == [(1, None), (2, kind), (3, None)]
    assert found[1].text == ""
    assert len(endpoint.chats) == 2 + (attempts or 1)


def test_a_request_that_hangs_is_given_up(endpoint):
    endpoint.answer = lambda asked: Reply(completion(), seconds=30)
    assert failures_of(endpoint, timeout_seconds=0.2, attempts=2) == ["time"]
    assert len(endpoint.chats) == 2


def test_a_request_that_hangs_once_is_sent_again(endpoint):
    endpoint.answer = lambda asked: Reply(completion(), seconds=30) if asked.number == 1 else Reply(completion())
    assert failures_of(endpoint, timeout_seconds=3.0, attempts=4) == [None]


def test_bytes_that_drip_do_not_stretch_the_time_limit(endpoint):
    endpoint.answer = lambda asked: Reply(completion(), drip_seconds=0.05)  # 10 s in all
    assert failures_of(endpoint, timeout_seconds=0.3) == ["time"]


def test_a_reply_far_too_long_is_not_read_to_its_end(endpoint, monkeypatch):
    monkeypatch.setattr(connection, "LONGEST_REPLY_BYTES", 100_000)
    endpoint.answer = lambda asked: Reply(b" " * 50_000_000 if number_in(asked) == 1 else completion())
    assert failures_of(endpoint, 2, concurrency=1) == ["too_large", None]
    while not endpoint.broken_off:  # the server finds out a little later
        time.sleep(0.01)


def test_a_prompt_that_cannot_be_sent_fails_alone(endpoint):
    broken = question(1, messages=({"role": "user", "content": "half a pair \ud83d"},))
    client = EndpointClient(settings_of(endpoint), None)
    found = list(client.answer_all([broken, question(2)], go_on))
    assert {one.question: one.failure for one in found} == {1: "bad_request", 2: None}


def test_a_reply_that_is_compressed_unasked_is_read(endpoint):
    body = gzip.compress(json.dumps(completion()).encode())
    endpoint.answer = lambda asked: Reply(body, headers={"Content-Encoding": "gzip"})
    assert [one.text for one in answers_of(endpoint)] == [ANSWER]


# Rate limits


def test_a_rate_limit_is_waited_for_and_fails_no_question(endpoint):
    endpoint.answer = lambda asked: (
        fault(429, headers={"Retry-After": "0.05"}) if asked.number < 4 else Reply(completion())
    )
    assert failures_of(endpoint, 5, concurrency=2) == [None] * 5
    assert len(endpoint.chats) == 20


def test_a_pause_that_the_endpoint_asks_for_holds_for_all_requests(endpoint):
    times = {}

    def answer(asked):
        times[number_in(asked), asked.number] = time.monotonic()
        if (number_in(asked), asked.number) == (1, 1):
            return fault(429, headers={"Retry-After": "1"})
        return Reply(completion(), seconds=0.3 if number_in(asked) == 2 else 0)  # under way when the pause begins

    endpoint.answer = answer
    assert failures_of(endpoint, 6, concurrency=2) == [None] * 6
    first = times.pop((1, 1))
    del times[2, 1]
    assert len(times) == 5
    assert all(later - first >= 1 for later in times.values())


def test_without_a_word_on_how_long_pauses_double(monkeypatch, endpoint):
    monkeypatch.setattr(RateLimit, "FIRST_PAUSE_SECONDS", 0.05)
    times = []

    def answer(asked):
        times.append(time.monotonic())
        return fault(429) if len(times) <= 3 else Reply(completion())

    endpoint.answer = answer
    assert failures_of(endpoint) == [None]
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[0] >= 0.05
    assert pauses[1] >= 0.1
    assert pauses[2] >= 0.2


def test_patience_with_a_rate_limit_ends(endpoint):
    endpoint.answer = lambda asked: fault(429, headers={"Retry-After": "0.02"})
    with pytest.raises(SamplerFailed, match=r"let no request through .* \(status 429\).*0\.005 minutes") as given_up:
        answers_of(endpoint, 3, rate_limit_minutes=0.005)
    assert "raise Rate limit patience" in str(given_up.value)


def test_patience_ends_also_where_the_endpoint_does_not_say_how_long(endpoint, monkeypatch):
    monkeypatch.setattr(RateLimit, "FIRST_PAUSE_SECONDS", 0.02)
    endpoint.answer = lambda asked: fault(429)
    with pytest.raises(SamplerFailed, match="let no request through"):
        answers_of(endpoint, rate_limit_minutes=0.002)


def test_patience_begins_anew_when_a_request_gets_through(endpoint):
    limit = RateLimit(settings_of(endpoint, rate_limit_minutes=0.001))  # 60 ms
    limit.met(0.01)
    time.sleep(0.1)
    limit.lifted()
    limit.met(0.01)
    time.sleep(0.1)
    with pytest.raises(SamplerFailed):
        limit.met(0.01)


def test_pauses_begin_anew_when_a_request_gets_through(endpoint):
    limit = RateLimit(settings_of(endpoint))
    for _ in range(4):
        limit._until = 0.0  # as if the pause were over
        limit.met(None)
    assert 4 < limit.seconds_left <= 8  # 1, 2, 4, 8
    limit.lifted()
    limit._until = 0.0
    limit.met(None)
    assert 0 < limit.seconds_left <= 1


def test_a_pause_longer_than_patience_is_not_begun(endpoint):
    endpoint.answer = lambda asked: fault(429, headers={"Retry-After": "3600"})
    with pytest.raises(SamplerFailed, match="asks to wait 3600 seconds more"):
        answers_of(endpoint)
    assert len(endpoint.chats) == 1


def test_a_date_is_read_as_a_pause():
    later = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 100))
    assert 95 < retry_after(later) <= 100
    assert retry_after("soon") is None
    assert retry_after("-1") is None
    assert retry_after("Tue, 99 Foo 99999 99:99:99 +9999") is None
    assert retry_after("nan") is None
    assert retry_after("inf") is None


# What ends an evaluation


@pytest.mark.parametrize(
    ("reply", "error", "says", "field"),
    [
        (fault(401), InvalidSetting, r"key in the variable MY_KEY \(status 401\)", "endpoint.api_key_env"),
        (fault(403), InvalidSetting, r"key in the variable MY_KEY \(status 403\)", "endpoint.api_key_env"),
        (fault(404), ModelUnavailable, r"no model small.*\(status 404\).*Check Endpoint model", None),
        (fault(402), SamplerFailed, r"out of credit \(status 402\)", None),
        (
            fault(429, headers=SOON, type="insufficient_quota", code="insufficient_quota"),
            SamplerFailed,
            r"out of credit \(status 429, insufficient_quota\)",
            None,
        ),
        (
            Reply({}, 307, {"Location": "/v1/elsewhere"}),
            InvalidSetting,
            r"redirects requests \(status 307\)",
            "endpoint.url",
        ),
    ],
    ids=["401", "403", "404", "402", "quota", "redirect"],
)
def test_what_would_fail_every_question_ends_the_evaluation_at_once(endpoint, reply, error, says, field):
    endpoint.answer = lambda asked: reply
    with pytest.raises(error, match=says) as ended:
        answers_of(endpoint, 100, concurrency=2, attempts=5, api_key_env="MY_KEY")
    assert len(endpoint.chats) <= 4
    assert field is None or ended.value.field == field


def test_an_endpoint_that_wants_a_key_is_told_apart_from_one_that_refuses_it(endpoint):
    endpoint.answer = lambda asked: fault(401)
    with pytest.raises(InvalidSetting, match=r"requires a key \(status 401\)\. Set Key variable"):
        answers_of(endpoint, key=None)


def test_a_redirect_takes_neither_key_nor_prompt_elsewhere(endpoint, other_endpoint):
    endpoint.answer = lambda asked: Reply({}, 308, {"Location": f"{other_endpoint.url}/chat/completions"})
    with pytest.raises(InvalidSetting, match="redirects"):
        answers_of(endpoint)
    assert other_endpoint.asked == []


def test_a_single_prompt_that_is_forbidden_fails_alone_once_others_were_answered(endpoint):
    endpoint.answer = lambda asked: fault(403) if number_in(asked) == 2 else Reply(completion())
    assert failures_of(endpoint, 3, concurrency=1) == [None, "bad_request", None]


def test_a_server_that_has_gone_ends_the_evaluation(endpoint):
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    reports = []
    client = EndpointClient(settings_of(endpoint, url=url), None)
    with pytest.raises(
        SamplerFailed, match=r"last 10 requests .* all failed: it cannot be reached\. Check that it runs"
    ):
        reports.extend(client.answer_all([question(number) for number in range(1000)], go_on))


def test_a_server_that_always_fails_ends_the_evaluation_with_its_status(endpoint):
    endpoint.answer = lambda asked: fault(500)
    with pytest.raises(SamplerFailed, match=r"last 10 requests .* it fails \(status 500\)"):
        answers_of(endpoint, 1000)
    assert len(endpoint.chats) <= FailureTracker.GIVE_UP_AFTER + 4


def test_faults_that_are_not_in_a_row_end_nothing_and_faults_count_on_from_part_to_part(endpoint):
    endpoint.answer = lambda asked: Reply(completion()) if number_in(asked) == 9 else fault(500)
    client = EndpointClient(settings_of(endpoint, concurrency=1), None)
    assert [one.failure for one in answers_of(endpoint, 18, client=client)].count("server") == 17
    with pytest.raises(SamplerFailed):  # nine in a row before
        answers_of(endpoint, 1, client=client)


def test_an_endpoint_that_refuses_every_request_from_the_first_on_ends_the_evaluation(endpoint):
    names = {"code": "unsupported_parameter", "param": "max_tokens", "type": "invalid request"}
    endpoint.answer = lambda asked: fault(400, **names)
    with pytest.raises(InvalidSetting, match=r"\(status 400, unsupported_parameter, max_tokens\)"):
        answers_of(endpoint, 100, concurrency=1)
    assert len(endpoint.chats) == FailureTracker.GIVE_UP_AFTER


def test_questions_that_are_refused_after_an_answer_end_nothing(endpoint):
    endpoint.answer = lambda asked: Reply(completion()) if number_in(asked) == 1 else fault(400)
    assert failures_of(endpoint, 30, concurrency=1).count("bad_request") == 29


# Giving up


def test_giving_up_leaves_no_request_and_no_thread_behind(endpoint):
    endpoint.answer = lambda asked: Reply(completion(), seconds=30 if number_in(asked) > 4 else 0)

    def check():
        if len(endpoint.chats) == 8 and endpoint.under_way == 4:
            raise KeyboardInterrupt

    before = set(threading.enumerate())
    client = EndpointClient(settings_of(endpoint, concurrency=4, timeout_seconds=60), KEY)
    with pytest.raises(KeyboardInterrupt):
        list(client.answer_all([question(number) for number in range(1, 101)], check))
    left = {thread for thread in set(threading.enumerate()) - before if "process_request" not in thread.name}
    assert left == set()
    assert len(endpoint.chats) == 8
    endpoint.ended.set()  # the server writes to connections that are closed
    while endpoint.under_way:
        time.sleep(0.01)
    assert len(endpoint.chats) == 8
    gc.collect()  # an open socket would warn here, and warnings are errors


def test_leaving_early_is_giving_up(endpoint):
    endpoint.answer = lambda asked: Reply(completion(), seconds=0 if number_in(asked) == 1 else 30)
    client = EndpointClient(settings_of(endpoint, timeout_seconds=60), None)
    found = client.answer_all([question(number) for number in range(1, 20)], go_on)
    assert next(found).question == 1
    found.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "ratchet-endpoint"]


def test_giving_up_while_a_rate_limit_is_waited_for_does_not_wait(endpoint):
    endpoint.answer = lambda asked: fault(429, headers={"Retry-After": "600"})

    def check():
        if endpoint.chats:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        answers_of(endpoint, check=check)


# Secrets and the network


@pytest.mark.parametrize(
    "reply",
    [
        Reply(completion()),
        fault(401, code=KEY, param=KEY, type=KEY),
        fault(400, code=KEY, param=PROMPT.lower(), type=PROMPT),
        fault(500),
        Reply(PROMPT.encode()),
        Reply(None, breaks=True),
        Reply(completion(), seconds=30),
        Reply({}, 302, {"Location": "http://127.0.0.1:9/v1"}),
        fault(429, headers={"Retry-After": "3600"}),
    ],
    ids=["fine", "401", "400", "500", "junk", "broken", "late", "redirect", "429"],
)
def test_key_prompt_and_answer_are_in_no_log_and_no_error(endpoint, reply, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):  # whatever levels libraries chose
        monkeypatch.setattr(logging.getLogger(name), "level", logging.DEBUG)
    endpoint.answer = lambda asked: reply
    client = EndpointClient(settings_of(endpoint, timeout_seconds=0.3, api_key_env="MY_KEY"), KEY)
    told = [repr(client), repr(question(1))]
    caught = None
    try:
        told += [repr(one) for one in client.answer_all([question(number) for number in range(12)], go_on)]
    except (InvalidSetting, SamplerFailed) as error:
        caught = error
        told += traceback.format_exception(error)
    assert caught is None or (caught.__cause__, caught.__context__) == (None, None)
    told += [f"{record.getMessage()} {record.args} {record.exc_info}" for record in caplog.records]
    assert any("httpcore" in record.name for record in caplog.records)
    for secret in (KEY, "onfidential"):
        assert secret not in "\n".join(told)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_an_endpoint_on_this_machine_is_not_asked_through_a_proxy(endpoint, other_endpoint, monkeypatch, variable):
    monkeypatch.setenv(variable, other_endpoint.url.removesuffix("/v1"))
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert failures_of(endpoint, 2) == [None, None]
    assert other_endpoint.asked == []


def test_an_endpoint_elsewhere_is_asked_through_the_proxy_of_the_environment(other_endpoint, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", other_endpoint.url.removesuffix("/v1"))
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ModelUnavailable, match="status 404"):
        answers_of(other_endpoint, url="http://models.example/v1")
    assert [asked.path for asked in other_endpoint.asked] == ["http://models.example/v1/chat/completions"]


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://localhost:1/v1", True),
        ("http://me.localhost/v1", True),
        ("http://127.9.9.9/v1", True),
        ("http://[::1]:80/v1", True),
        ("http://0.0.0.0:8000/v1", True),
        ("http://192.168.0.2/v1", False),
        ("https://localhost.example/v1", False),
        ("https://api.openai.com/v1", False),
    ],
)
def test_which_addresses_are_on_this_machine(url, here):
    assert connection.is_here(url) is here


def test_the_key_is_read_from_its_variable(endpoint, monkeypatch):
    settings = settings_of(endpoint, api_key_env="MY_KEY")
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    assert read_key(settings) == KEY
    assert read_key(settings_of(endpoint)) is None
    for held in ("", "  "):
        monkeypatch.setenv("MY_KEY", held)
        with pytest.raises(InvalidSetting, match="this environment variable is not set"):
            read_key(settings)
    for held in (f"{KEY}\n{KEY}", f"{KEY}é"):
        monkeypatch.setenv("MY_KEY", held)
        with pytest.raises(InvalidSetting, match="does not contain a valid key") as refused:
            read_key(settings)
        assert KEY not in "".join(traceback.format_exception(refused.value))


def test_nothing_of_the_library_is_loaded_before_a_request():
    code = (
        "import sys, ratchet.endpoint, ratchet.config.endpoint_settings\n"
        "print([name for name in ('openai', 'httpx2', 'anyio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
