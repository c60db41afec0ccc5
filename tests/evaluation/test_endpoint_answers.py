"""What tokens cost, worked by hand; what is not known stays unknown."""

import pytest

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.evaluation.evaluation import Cost, GivenAnswer, QuestionResult
from ratchet.evaluation.scores import cost_of, cost_of_questions, endpoint_failure, is_of_endpoint

PRICED = EndpointSettings(
    url="http://localhost:8000/v1",
    model="small",
    price_per_million_prompt_tokens=0.5,
    price_per_million_answer_tokens=2.0,
    currency="EUR",
)
FREE = EndpointSettings(url="http://localhost:8000/v1", model="small")


def answer(tokens, outcome="graded"):
    return GivenAnswer(
        text="",
        correctness=0.0,
        reward=0.0,
        format=0.0,
        outcome=outcome,
        tokens=tokens,
        seconds=1.0,
        group="failed" if outcome == "failed" else "wrong",
    )


def question(prompt_tokens, *answers):
    return QuestionResult(question=1, prompt=[], ground_truth="", prompt_tokens=prompt_tokens, answers=list(answers))


def test_a_cost_worked_by_hand():
    # 3,000,000 x 0.50 + 250,000 x 2.00, a million each: 1.50 + 0.50
    assert cost_of(PRICED, 3_000_000, 250_000) == Cost(
        prompt_tokens=3_000_000, answer_tokens=250_000, amount=2.0, currency="EUR"
    )


def test_without_prices_tokens_are_known_and_no_amount():
    assert cost_of(FREE, 10, 20) == Cost(prompt_tokens=10, answer_tokens=20, amount=None, currency="USD")


@pytest.mark.parametrize("tokens", [(None, 5), (5, None), (None, None)])
def test_unknown_tokens_have_no_cost(tokens):
    assert cost_of(PRICED, *tokens) is None


def test_every_answer_pays_for_its_prompt():
    found = cost_of_questions(PRICED, [question(100, answer(10), answer(30)), question(50, answer(5))])
    assert (found.prompt_tokens, found.answer_tokens) == (250, 45)  # 2 x 100 + 50; 10 + 30 + 5
    assert found.amount == pytest.approx((250 * 0.5 + 45 * 2.0) / 1e6)


def test_answers_that_never_came_are_left_out_and_those_that_were_not_counted_are_not_guessed():
    found = cost_of_questions(
        PRICED, [question(100, answer(10), answer(None, "failed")), question(None, answer(None, "failed"))]
    )
    assert (found.prompt_tokens, found.answer_tokens) == (100, 10)
    assert cost_of_questions(PRICED, [question(100, answer(10), answer(8, "failed"))]).answer_tokens == 18
    assert cost_of_questions(PRICED, [question(100, answer(10)), question(100, answer(None))]) is None
    assert cost_of_questions(PRICED, [question(None, answer(10))]) is None


def test_where_no_answer_was_counted_the_cost_is_not_nothing_but_unknown():
    failed = [question(None, answer(None, "failed")), question(100, answer(None, "failed"))]
    assert cost_of_questions(PRICED, failed) is None
    assert cost_of_questions(FREE, failed) is None
    assert cost_of_questions(PRICED, [*failed, question(0, answer(0))]).amount == 0.0  # counted: it took nothing


def test_a_failure_of_the_endpoint_is_told_from_one_of_the_verifier():
    assert is_of_endpoint(endpoint_failure("time"))
    assert not is_of_endpoint("time")
