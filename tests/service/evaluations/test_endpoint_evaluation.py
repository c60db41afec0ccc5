"""Evaluations of an endpoint, end to end over a real server on this machine: asked, graded, paid for, gone on with."""

import json
import subprocess
import sys
import threading

import pytest

import ratchet
from ratchet import worker
from ratchet.config import EndpointSettings
from ratchet.datasets import benchmark_folders
from ratchet.errors import Conflict, InvalidSetting, ModelUnavailable, SamplerFailed
from ratchet.run.run_folder import RunFolder
from ratchet.service.evaluations import benchmarks, evaluation_catalogue
from ratchet.service.evaluations.evaluation_catalogue import find_evaluation, questions_of
from ratchet.service.evaluations.evaluation_setup import Request, put_together
from ratchet.service.evaluations.evaluations import evaluate, request_like, resume_evaluation
from ratchet.worker import Listener

from ...endpoint.server import KEY, Endpoint, Reply, completion, fault
from ...small_evaluations import apart_from_times, few, files_of, made, request, until
from ...small_runs import journal

PRICES = {"price_per_million_prompt_tokens": 2.0, "price_per_million_answer_tokens": 10.0, "currency": "EUR"}


class Scholar(Endpoint):
    """Answers Math Pairs problems right, but those that ``wrong`` or ``odd`` say otherwise of, by number."""

    def __init__(self):
        super().__init__()
        self.numbers, self.truths = {}, {}
        self.wrong, self.odd = set(), lambda number, asked: None
        self.answer = self.reply

    def learn(self, benchmark="few"):
        _, prompts = benchmark_folders.read(benchmarks.find_benchmark(benchmark).content_hash)
        self.numbers = {one.messages[-1]["content"]: one.id for one in prompts}
        self.truths = {one.id: one.ground_truth for one in prompts}

    def number(self, asked):
        return self.numbers[asked.body["messages"][-1]["content"]]

    def reply(self, asked):
        number = self.number(asked)
        odd = self.odd(number, asked)
        if odd is not None:
            return odd
        return Reply(completion("-1" if number in self.wrong else self.truths[number]))


@pytest.fixture
def scholar():
    server = Scholar()
    yield server
    server.close()


def asking(scholar, benchmark="few", answers=1, **settings):
    endpoint = EndpointSettings(url=scholar.url, model="small", **settings)
    return Request("", benchmark, endpoint=endpoint, answers=answers)


def everything_in(folder):
    return {file: file.read_bytes() for file in folder.path.rglob("*") if file.is_file()}


def failed_at(folder):
    [end] = [event for event in journal(folder) if event["event"] == "ended"]
    return end


def test_an_endpoint_answers_and_its_tokens_are_paid_for(scholar):
    few()
    scholar.learn()
    scholar.wrong = {2, 5}
    evaluation = evaluate(asking(scholar, **PRICES))
    subject = evaluation.subject
    assert (subject.kind, subject.name, subject.model, subject.identity) == ("endpoint", "small", "small", scholar.url)
    assert evaluation.status == "completed"
    main = evaluation.scores.columns[0]
    assert (main.name, main.value, main.of) == ("accuracy", 6 / 8, 8)
    assert evaluation.scores.groups["right"] == 6
    assert evaluation.scores.groups["wrong"] == 2
    questions = questions_of(evaluation.id)
    assert [one.question for one in questions if one.correctness < 1] == [2, 5]
    assert [one.question for one in questions] == list(range(1, 9))
    assert all((one.prompt_tokens, one.answers[0].tokens) == (7, 3) for one in questions)
    cost = evaluation.scores.cost
    assert (cost.prompt_tokens, cost.answer_tokens, cost.currency) == (56, 24, "EUR")
    assert cost.amount == pytest.approx((56 * 2 + 24 * 10) / 1e6)
    assert len(scholar.chats) == 8
    assert {asked.body["temperature"] for asked in scholar.chats} == {0.0}
    assert scholar.most_at_once <= 4


def test_without_a_price_there_is_no_amount_and_without_counts_no_cost(scholar):
    few()
    scholar.learn()
    assert evaluate(asking(scholar)).scores.cost.amount is None
    scholar.odd = lambda number, asked: Reply(completion(scholar.truths[number], usage=None))
    scores = evaluate(asking(scholar, **PRICES)).scores
    assert (scores.cost, scores.mean_tokens, scores.columns[0].value) == (None, None, 1.0)


def test_several_answers_are_sampled_each_by_a_request_with_a_seed_of_its_own(scholar):
    few()
    scholar.learn()
    scholar.odd = lambda number, asked: None if asked.number % 2 else Reply(completion("-1"))
    evaluation = evaluate(asking(scholar, answers=4, concurrency=8))
    assert (evaluation.scores.answers, len(scholar.chats)) == (32, 32)
    assert evaluation.scores.columns[0].value == 0.5
    assert evaluation.scores.pass_at[-1].value == 1.0
    assert len({(scholar.number(asked), asked.body["seed"]) for asked in scholar.chats}) == 32
    assert evaluation.scores.cost.prompt_tokens == 32 * 7  # each answer is a request that pays for the prompt


def test_it_is_asked_with_the_benchmarks_usual_prompt_or_what_takes_its_place(scholar):
    few()
    scholar.learn()
    evaluate(asking(scholar))
    usual = benchmarks.find_benchmark("few").spec.usual.system_prompt
    assert {asked.body["messages"][0]["content"] for asked in scholar.chats} == {usual}
    scholar.asked.clear()
    changes = {"system_prompt": "", "max_answer_tokens": "40"}
    evaluation = evaluate(Request("mine", "few", endpoint=asking(scholar).endpoint, changes=changes))
    assert {
        len(asked.body["messages"]) - 2 * len(evaluation.setup["Few-shot examples"]) for asked in scholar.chats
    } == {1}
    assert {asked.body["max_tokens"] for asked in scholar.chats} == {40}
    assert evaluation.subject.name == "mine"


def test_two_endpoints_are_compared_question_by_question(scholar):
    few()
    scholar.learn()
    scholar.wrong = {1, 2, 3, 4, 5, 6, 7}
    before = evaluate(asking(scholar))
    scholar.wrong = set()
    after = evaluate(asking(scholar))
    table, _ = evaluation_catalogue.compare_evaluations([f"before={before.id}", f"after={after.id}"])
    main = table.comparisons[0].main
    assert (main.fixed, main.broken, main.verdict) == ([1, 2, 3, 4, 5, 6, 7], [], "better")


# --- what must be the same for a comparison ---------------------------------------------------------------------------

OWN = "the endpoint's own"


def asked_by(scholar, extra=None, answers=1, **fields):
    endpoint = EndpointSettings(url=scholar.url, model="small", extra_body=extra or {})
    return Request("", "few", endpoint=endpoint, answers=answers, **fields)


def spec_of(asked):
    return put_together(asked)[1]


def test_an_endpoint_and_a_model_here_that_are_asked_alike_compare(scholar):
    few()
    scholar.learn()
    changes = {"system_prompt": "", "max_answer_tokens": "32"}
    here, there = evaluate(request()), evaluate(asked_by(scholar, changes=changes))
    assert here.setup == there.setup
    assert ratchet.compare(here, there).comparisons[0].questions == 8


def test_evaluations_from_before_there_were_these_parts_compare(scholar):
    """So was the setup of every evaluation that is kept by then: neither quantization nor extra fields."""
    few()
    names = ["System prompt", "Few-shot examples", "Chat template options", "Verifier", "Format", "Max answer tokens"]
    names += ["Answers per question", "Sampling"]
    assert list(spec_of(request()).setup) == list(spec_of(asked_by(scholar)).setup) == names


def test_extra_fields_and_what_is_left_out_are_in_the_setup_and_told_where_they_differ(scholar):
    few()
    scholar.learn()
    plain = evaluate(asked_by(scholar))
    reasoning = evaluate(asked_by(scholar, {"reasoning_effort": "low", "temperature": None}))
    assert {"temperature" in one.body for one in scholar.chats[8:]} == {False}
    assert reasoning.setup["Sampling"] == OWN
    assert reasoning.setup["Extra fields"] == {"reasoning_effort": "low"}
    with pytest.raises(Conflict, match=rf"Extra fields: none on the left.*Sampling: greedy on the left, {OWN}"):
        ratchet.compare(plain, reasoning)


def test_an_endpoint_that_is_asked_like_another_one_is_sent_its_extra_fields(scholar):
    few()
    scholar.learn()
    first = evaluate(asked_by(scholar, {"reasoning_effort": "low"}))
    bare = Request("", "", endpoint=EndpointSettings(url=scholar.url, model="other"))
    assert spec_of(request_like(bare, first.id)).setup == first.setup
    its_own = asked_by(scholar, {"reasoning_effort": "high"})
    assert spec_of(request_like(its_own, first.id)).setup["Extra fields"] == {"reasoning_effort": "high"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"top_k": "5"}, r"Top-k is 5, which is not sent to endpoints\. Remove it\..*extra_body=\{top_k: 5\}"),
        (
            {"template_options": "{enable_thinking: false}"},
            "Chat template options are set, which are not sent to endpoints",
        ),
        ({"quantization": "4bit"}, "Quantization is 4bit, but an endpoint decides that itself"),
    ],
)
@pytest.mark.parametrize("answers", [1, 2])
def test_what_an_endpoint_is_not_sent_is_refused(scholar, changes, words, answers):
    few()
    with pytest.raises(InvalidSetting, match=words):
        evaluate(asked_by(scholar, answers=answers, changes=changes))
    assert evaluation_catalogue.list_evaluations() == []


def test_a_key_among_the_extra_fields_is_refused_and_not_repeated(scholar):
    few()
    with pytest.raises(InvalidSetting, match="contain api_key, which looks like a key") as refused:
        put_together(asking(scholar, extra_body={"api_key": "hunter2"}))
    assert refused.value.field == "endpoint.extra_body"
    assert "hunter2" not in str(refused.value)


def test_what_is_off_may_be_said_to_be_off(scholar):
    few()
    assert spec_of(asked_by(scholar, changes={"top_k": "0", "quantization": "none"})) == spec_of(asked_by(scholar))


def test_what_comes_along_from_another_evaluation_and_is_not_sent_is_noted(scholar):
    few()
    scholar.learn()
    changes = {"top_k": "5", "template_options": "{enable_thinking: false}"}
    here = evaluate(request(answers=2, changes=changes))
    there = evaluate(request_like(asked_by(scholar), here.id))
    assert there.setup["Sampling"] == {"temperature": 1.0, "top_p": 1.0, "top_k": OWN, "seed": 0}
    assert there.setup["Chat template options"] == {}
    notes = " ".join(there.scores.warnings)
    assert "Top-k 5 of the other evaluation is not sent to an endpoint" in notes
    assert "Chat template options (enable_thinking) of the other evaluation are not sent" in notes
    with pytest.raises(Conflict, match=rf"Sampling, top_k: 5 on the left, {OWN} on the right"):
        ratchet.compare(here, there)
    like_the_endpoint = spec_of(request_like(request(changes=changes | {"top_k": "0"}), there.id))
    assert like_the_endpoint.setup["Sampling"]["top_k"] == 0


def test_a_top_k_that_an_endpoint_takes_compares_with_the_same_here(scholar):
    few()
    here = spec_of(request(answers=2, changes={"top_k": "5"}))
    there = spec_of(
        asked_by(scholar, {"top_k": 5}, answers=2, changes={"system_prompt": "", "max_answer_tokens": "32"})
    )
    assert here.setup == there.setup


# --- faults of an endpoint --------------------------------------------------------------------------------------------


def test_an_endpoint_of_which_no_answer_comes_has_no_cost(scholar):
    few()
    scholar.learn()
    scholar.odd = lambda number, asked: fault(400)
    scores = evaluate(asking(scholar, **PRICES)).scores
    assert (scores.failures, scores.cost, scores.warnings) == ({"endpoint bad_request": 8}, None, [])


def test_what_passes_is_asked_again_and_what_stays_is_a_failed_answer(scholar):
    few()
    scholar.learn()

    def odd(number, asked):
        if number == 1 and asked.number == 1:
            return fault(429, headers={"Retry-After": "0.01"})
        if number == 2 and asked.number == 1:
            return fault(500, headers={"Retry-After": "0.01"})
        if number == 3:
            return Reply(completion(), seconds=30)
        return fault(400) if number == 4 else None

    scholar.odd = odd
    evaluation = evaluate(asking(scholar, timeout_seconds=3.0, attempts=2))
    assert evaluation.status == "completed"
    by_number = {one.question: one.answers[0] for one in questions_of(evaluation.id)}
    assert {number for number, one in by_number.items() if one.outcome == "failed"} == {3, 4}
    assert (by_number[3].failure, by_number[4].failure) == ("endpoint time", "endpoint bad_request")
    scores = evaluation.scores
    failures = {"endpoint time": 1, "endpoint bad_request": 1}
    assert (scores.failures, scores.could_be) == (failures, (0.75, 1.0))
    assert scores.failed_share == 0.0  # of what the verifier was given
    assert "The endpoint failed on 2 of 8 answers" in scores.withheld
    assert "more than 10%" in scores.withheld
    assert "verifier" not in scores.withheld
    [warning] = scores.warnings
    assert "2 of 8 answers came without a token count" in warning


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (fault(401), InvalidSetting, "rejects the key in the variable TEST_KEY"),
        (fault(402), SamplerFailed, "is out of credit"),
        (fault(404), ModelUnavailable, "has no model small"),
    ],
)
def test_what_would_be_the_same_for_every_question_fails_the_evaluation(scholar, monkeypatch, reply, kind, words):
    few()
    scholar.learn()
    monkeypatch.setenv("TEST_KEY", KEY)
    scholar.odd = lambda number, asked: reply
    folder = made(asking(scholar, api_key_env="TEST_KEY"))
    with pytest.raises(kind, match=words):
        worker.run(folder)
    found = find_evaluation(folder.run_id)
    assert (found.status, found.scores, len(scholar.chats) <= 4) == ("failed", None, True)
    assert words in failed_at(folder)["message"]
    assert {name.lower(): value for name, value in scholar.chats[0].headers.items()}["authorization"] == f"Bearer {KEY}"
    assert all(KEY.encode() not in content for content in everything_in(folder).values())
    scholar.odd = lambda number, asked: None
    assert resume_evaluation(folder.run_id).scores.columns[0].value == 1.0
    assert all(KEY.encode() not in content for content in everything_in(folder).values())


def test_a_key_that_is_not_there_is_said_by_its_variable(scholar):
    few()
    with pytest.raises(InvalidSetting, match="NO_SUCH_KEY"):
        evaluate(asking(scholar, api_key_env="NO_SUCH_KEY"))
    assert scholar.asked == []


def test_an_endpoint_that_is_away_fails_the_evaluation_in_words(scholar):
    few()
    away = asking(scholar, attempts=1)
    scholar.close()
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        evaluate(away)
    [listed] = evaluation_catalogue.list_evaluations()
    assert listed.evaluation.status == "failed"


def test_after_a_kill_only_the_parts_that_are_missing_are_asked(scholar):
    few("many", 150)
    scholar.learn("many")
    scholar.wrong = set(range(1, 150, 3))

    class Killed(BaseException):
        pass

    def on_event(event):
        if event.event == "answered":
            raise Killed

    folder = made(asking(scholar, "many", concurrency=16))
    with pytest.raises(Killed):
        worker.run(folder, listeners=[Listener(on_event=on_event)])
    assert [one.question for one in questions_of(folder.run_id)] == list(range(1, 65))
    scholar.asked.clear()
    evaluation = resume_evaluation(folder.run_id)
    assert sorted(map(scholar.number, scholar.chats)) == list(range(65, 151))
    assert [one.question for one in questions_of(evaluation.id)] == list(range(1, 151))
    assert evaluation.scores.columns[0].value == 100 / 150
    assert evaluation.scores.cost.answer_tokens == 450


def test_an_evaluation_that_is_stopped_breaks_off_what_is_under_way(scholar):
    few("many", 150)
    scholar.learn("many")
    folder = made(asking(scholar, "many"))
    under_way = threading.Event()

    def odd(number, asked):
        if number <= 64:
            return None
        under_way.set()
        return Reply(completion(), seconds=60)

    def stop():
        under_way.wait(60)
        folder.ask_to_stop("test")

    scholar.odd = odd
    asker = threading.Thread(target=stop)
    asker.start()
    worker.run(folder)
    asker.join()
    found = find_evaluation(str(folder.path))
    assert "64 of 150 questions are answered and kept" in found.message
    assert found.status != "completed"
    scholar.odd = lambda number, asked: None
    assert resume_evaluation(folder.run_id).scores.questions == 150


@pytest.mark.slow
def test_a_worker_process_that_is_killed_is_gone_on_with(scholar):
    few("many", 150)
    scholar.learn("many")
    whole = evaluate(asking(scholar, "many", concurrency=16))
    folder = made(asking(scholar, "many", concurrency=16))
    scholar.odd = lambda number, asked: Reply(completion(), seconds=60) if number > 128 else None
    command = [sys.executable, "-m", "ratchet.worker", str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        until(lambda: files_of(folder).parts_done() == 2 or process.poll() is not None)
        process.kill()
    scholar.odd = lambda number, asked: None
    scholar.asked.clear()
    again = resume_evaluation(folder.run_id)
    assert sorted(map(scholar.number, scholar.chats)) == list(range(129, 151))
    assert apart_from_times(questions_of(again.id)) == apart_from_times(questions_of(whole.id))


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_command_line_asks_an_endpoint(scholar, ratchet_command, monkeypatch):
    few()
    scholar.learn()
    scholar.wrong = {3}
    monkeypatch.setenv("TEST_KEY", KEY)
    further = ["concurrency=8", "api_key_env=TEST_KEY", *(f"{name}={value}" for name, value in PRICES.items())]
    options = [word for one in further for word in ("--endpoint-setting", one)]
    code, out, err = ratchet_command(
        "eval", "start", "theirs", "-b", "few", "--endpoint", scholar.url, "--endpoint-model", "small", *options,
        "--json",
    )  # fmt: skip
    assert code == 0, err
    told = json.loads(out.splitlines()[-1])
    assert (told["subject"]["name"], told["status"]) == ("theirs", "completed")
    assert told["scores"]["columns"][0]["value"] == 7 / 8
    assert told["scores"]["cost"]["amount"] == pytest.approx((56 * 2 + 24 * 10) / 1e6)
    code, shown, _ = ratchet_command("eval", "show", told["id"])
    assert code == 0
    assert "EUR" in shown
    assert KEY not in out + err + shown
    assert all(KEY.encode() not in content for content in everything_in(RunFolder.at(told["folder"])).values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--endpoint", "URL"], "--endpoint-model"),
        (["--endpoint-model", "small"], "go with --endpoint URL"),
        (["tiny", "--endpoint-setting", "concurrency=8"], "go with --endpoint URL"),
        (["--endpoint", "URL", "--endpoint-model", "small", "--endpoint-setting", "concurrency"], "KEY=VALUE"),
        (["--endpoint", "URL", "--endpoint-model", "small", "--endpoint-setting", "speed=8"], "speed"),
        (["--endpoint", "URL", "--endpoint-model", "small", "--endpoint-setting", "concurrency=x"], "Requests at once"),
        (["--endpoint", "URL", "--endpoint-model", "small", "--endpoint-setting", "concurrency=65"], "at once"),
        (["--endpoint", "ftp://x/v1", "--endpoint-model", "small"], "http://"),
        (["--endpoint", "http://me:secret@x/v1", "--endpoint-model", "small"], "user or password"),
        ([], "Name what to evaluate"),
    ],
)
def test_what_the_command_line_cannot_ask_is_said(scholar, ratchet_command, arguments, words):
    few()
    given = [scholar.url if word == "URL" else word for word in arguments]
    code, out, err = ratchet_command("eval", "start", "-b", "few", *given, "--json")
    assert (code, words in err) == (2, True), err
    assert "secret" not in err + out
    assert json.loads(out.splitlines()[-1])["error"]["message"]
    assert scholar.asked == []
    assert evaluation_catalogue.list_evaluations() == []


def test_the_command_line_says_that_a_key_is_wrong_and_ends_as_the_fault_asks(scholar, ratchet_command, monkeypatch):
    few()
    scholar.learn()
    monkeypatch.setenv("TEST_KEY", KEY)
    scholar.models = fault(401)
    code, out, err = ratchet_command(
        "eval", "start", "-b", "few", "--endpoint", scholar.url, "--endpoint-model", "small",
        "--endpoint-setting", "api_key_env=TEST_KEY", "--json",
    )  # fmt: skip
    assert (code, "rejects the key in the variable TEST_KEY" in err, KEY in out + err) == (2, True, False), err
    assert json.loads(out.splitlines()[-1])["error"]["code"]
    [listed] = evaluation_catalogue.list_evaluations()
    assert (listed.evaluation.status, "TEST_KEY" in listed.evaluation.message) == ("failed", True)
