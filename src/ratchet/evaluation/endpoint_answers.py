"""What an evaluation records of an endpoint's answers: what their tokens cost, and whose a failure is.

What is not known is not counted as nothing.
"""

from collections.abc import Sequence

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.evaluation.evaluation import Cost, QuestionResult

# Before a kind in the record of an answer: verifiers have kinds of the same names, such as time.
_OF_ENDPOINT = "endpoint "


def endpoint_failure(kind: str) -> str:
    """Name of an endpoint's failure in the record of an answer."""
    return _OF_ENDPOINT + kind


def is_of_endpoint(failure: str) -> bool:
    """Whether a failure, as the record of an answer names it, is the endpoint's and not the verifier's."""
    return failure.startswith(_OF_ENDPOINT)


def cost_of(settings: EndpointSettings, prompt_tokens: int | None, answer_tokens: int | None) -> Cost | None:
    """Return what so many tokens cost; without an amount where no price was given, None where they are not known."""
    if prompt_tokens is None or answer_tokens is None:
        return None
    amount = None
    prompt_price, answer_price = settings.price_per_million_prompt_tokens, settings.price_per_million_answer_tokens
    if prompt_price is not None and answer_price is not None:
        amount = (prompt_tokens * prompt_price + answer_tokens * answer_price) / 1_000_000
    return Cost(prompt_tokens=prompt_tokens, answer_tokens=answer_tokens, amount=amount, currency=settings.currency)


def cost_of_questions(settings: EndpointSettings, questions: Sequence[QuestionResult]) -> Cost | None:
    """Return what the answers to some questions cost. Each answer is a request, so each pays for the prompt.

    A failed answer without a count of tokens is left out: nobody knows whether it is paid for.

    Returns:
        None where the endpoint does not say how many tokens an answer or its prompt took, or counted none at all.
    """
    prompt_tokens = answer_tokens = counted = 0
    for question in questions:
        for answer in question.answers:
            if answer.tokens is None and answer.outcome == "failed":
                continue
            if answer.tokens is None or question.prompt_tokens is None:
                return None
            prompt_tokens += question.prompt_tokens
            answer_tokens += answer.tokens
            counted += 1
    return cost_of(settings, prompt_tokens, answer_tokens) if counted else None
