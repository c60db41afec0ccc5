"""Evaluations that are set up like another one: its questions, prompt, verifier settings and number of answers."""

import json
from dataclasses import replace

import pytest

import ratchet
from ratchet import worker
from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.run.run_folder import RunFolder
from ratchet.service.evaluations.evaluation_catalogue import find_evaluation
from ratchet.service.evaluations.evaluation_setup import Request, put_together
from ratchet.service.evaluations.evaluations import evaluate, request_like

from ...small_evaluations import few, files_of, made, request
from ...small_runs import small

PROMPT = "Add each pair, then multiply."


def test_what_compare_refuses_can_be_set_up_alike_and_is_compared_then():
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
    alike = evaluate(request_like(request(benchmark="", changes={"seed": "1"}), first.id))
    assert (alike.benchmark, alike.answers_per_question, alike.scores.questions) == ("few", 3, 2)
    assert alike.questions_sha256 == first.questions_sha256


def setup_of(asked):
    return put_together(asked)[1].setup


def test_the_quantization_is_part_of_the_set_up():
    few()
    plain, quantized = setup_of(request()), setup_of(request(changes={"quantization": "4bit"}))
    assert "Quantization" not in plain  # so it was before it was a part
    assert quantized == {**plain, "Quantization": "4bit"}


def test_evaluations_under_another_quantization_are_not_compared_and_can_be_set_up_alike():
    few()
    plain = evaluate(request())
    quantized = evaluate(request(changes={"quantization": "8bit"}))
    with pytest.raises(Conflict, match="Quantization: none on the left, 8bit on the right"):
        ratchet.compare(plain, quantized)
    alike = ratchet.evaluate("tiny", like=quantized)
    assert alike.setup == quantized.setup
    assert ratchet.compare(quantized, alike).comparisons[0].main.difference == 0
    assert setup_of(request_like(Request("tiny", ""), plain.id)) == plain.setup
    own = Request("tiny", "", changes={"quantization": "none"})
    assert setup_of(request_like(own, quantized.id)) == plain.setup


def test_an_adapter_and_its_base_are_evaluated_under_the_quantization_of_its_run(tmp_path):
    few()
    run = RunFolder.create(small(rounds=1, max_answer_tokens=24, quantization="8bit"), tmp_path / "run")
    worker.run(run)
    adapter, start = Request(str(run.path), "few"), Request(str(run.path), "few", of_start=True)
    assert setup_of(adapter) == setup_of(start)
    assert setup_of(adapter)["Quantization"] == "8bit"
    base = made(replace(start, name="base")).run_id
    assert setup_of(request_like(Request("tiny", ""), base)) == setup_of(adapter)
    assert put_together(request_like(adapter, base))[1].notes == ()
    plain = made(request())
    asked = put_together(request_like(adapter, plain.run_id))[1]
    assert asked.setup == files_of(plain).spec().setup
    assert asked.notes == (
        "The adapter was trained with quantization 8bit and is evaluated with none, so its answers may differ from those "
        "in training.",
    )


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
def test_what_cannot_be_set_up_alike_is_refused(ratchet_command, given, code, words):
    found, _, err = ratchet_command("eval", "start", "tiny", *given)
    assert found == code
    assert words in err


def test_python_takes_a_benchmark_or_an_evaluation():
    with pytest.raises(InvalidSetting, match="Give a benchmark, or an evaluation"):
        ratchet.evaluate("tiny")
    with pytest.raises(NotFound):
        ratchet.evaluate("tiny", like="e260101-000000-abcd")
