"""Evaluations that are asked as another one was: its questions, its prompt, its reading, as many answers."""

import json

import pytest

import ratchet
from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.service.evaluations import as_asked, evaluate, find_evaluation

from .small_evaluations import few, request

PROMPT = "Add each pair, then multiply."


def test_what_compare_refuses_can_be_asked_alike_and_is_compared_then():
    few()
    first = evaluate(request(changes={"system_prompt": PROMPT, "max_answer_tokens": "24", "read": "answer_tag"}))
    other = evaluate(request(changes={"seed": "3"}))
    with pytest.raises(Conflict, match=f"--like {first.id}, or --like {other.id}"):
        ratchet.compare(first, other)
    alike = ratchet.evaluate("tiny", like=first)
    assert alike.setup == first.setup
    assert ratchet.compare(first, alike).comparisons[0].questions == 8


def test_the_questions_and_the_number_of_answers_are_those_of_the_other():
    few()
    first = evaluate(request(answers=3, only=(2, 5)))
    alike = evaluate(as_asked(request(benchmark="", changes={"seed": "1"}), first.id))
    assert (alike.benchmark, alike.answers_per_question, alike.scores.questions) == ("few", 3, 2)
    assert alike.questions_sha256 == first.questions_sha256


def test_on_the_command_line(ratchet_command):
    few()
    first = evaluate(request(changes={"system_prompt": PROMPT}))
    code, out, err = ratchet_command("eval", "start", "tiny", "--like", first.id, "--name", "again", "--json")
    assert code == 0, err
    assert find_evaluation(json.loads(out.splitlines()[-1])["id"]).setup == first.setup


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ((), 2, "--benchmark"),
        (("-b", "few", "--like", "e260101-000000-abcd"), 2, "--like"),
        (("--like", "e260101-000000-abcd"), 3, "e260101-000000-abcd"),
        (("--like", "e260101-000000-abcd", "--answers", "2"), 2, "--answers does not go with --like"),
    ],
)
def test_what_cannot_be_asked_alike_is_refused(ratchet_command, given, code, words):
    found, _, err = ratchet_command("eval", "start", "tiny", *given)
    assert found == code
    assert words in err


def test_python_takes_a_benchmark_or_an_evaluation():
    with pytest.raises(InvalidSetting, match="Give a benchmark, or an evaluation"):
        ratchet.evaluate("tiny")
    with pytest.raises(NotFound):
        ratchet.evaluate("tiny", like="e260101-000000-abcd")
