"""Score columns with intervals, pass@k, bands, counts and cost of one evaluation, and whether it allows a verdict.

Knows no model and no verifier: answers are graded when they come. What is not known is not counted as nothing.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from ratchet.config.endpoint_settings import EndpointSettings
from ratchet.evaluation.bands import bands_by_difficulty
from ratchet.evaluation.benchmark import ANSWERED
from ratchet.evaluation.evaluation import ANSWER_GROUPS, BandScore, Cost, EvaluationScores, QuestionResult, Score
from ratchet.evaluation.groups import ROUNDING
from ratchet.run.display import counted
from ratchet.run.records import OUTCOMES, Outcome
from ratchet.run.report_card import PARSE_FAILURE_WARNING
from ratchet.stats import bootstrap_mean, pass_at_k, wilson

# Of the answers that were not cut off: where more failed, the score says more of that than of the model.
MOST_FAILED = 0.1
# Of all answers: more that are cut off point to max answer tokens rather than to the model.
CUT_OFF_WARNING = 0.1
# Before a kind in the record of an answer: verifiers have kinds of the same names, such as time.
_OF_ENDPOINT = "endpoint "


def scores_of(
    questions: Sequence[QuestionResult],
    columns: Sequence[str],
    *,
    seconds: float,
    cost: Cost | None = None,
    withheld: str = "",
    notes: Sequence[str] = (),
) -> EvaluationScores:
    """What an evaluation found.

    A question counts once: its score is the mean over its answers. Intervals are over questions, as if other ones of
    their kind were asked.

    Args:
        questions: All of them, each with an answer at least.
        columns: Score columns, the main one first: accuracy, format, answered, or parts of the verifier's grade.
        seconds: Wall-clock seconds that answering took.
        cost: Of an endpoint with a price.
        withheld: Why no verdict can be given whatever the answers are, a sentence; "" where one can.
        notes: Further sentences worth reading beside the scores.

    Raises:
        ValueError: no question, or one without an answer; no column.
    """
    if not questions or not columns or not all(question.answers for question in questions):
        raise ValueError("scores need a column, and questions that all have answers")
    answers = [answer for question in questions for answer in question.answers]
    outcomes = Counter(answer.outcome for answer in answers)
    groups = Counter(answer.group for answer in answers)
    could_be = _could_be(questions, columns[0]) if outcomes["failed"] else None
    failures = dict(Counter(answer.failure or "failed" for answer in answers if answer.outcome == "failed"))
    of_verifier = sum(count for kind, count in failures.items() if not is_of_endpoint(kind))
    given = outcomes["graded"] + outcomes["unparseable"] + of_verifier
    tokens = [answer.tokens for answer in answers if answer.tokens is not None]
    return EvaluationScores(
        columns=[score_of(column, questions) for column in columns],
        pass_at=_pass_at(questions),
        bands=_bands(questions, columns[0]),
        groups={group: groups[group] for group in ANSWER_GROUPS},
        outcomes={outcome: outcomes[outcome] for outcome in OUTCOMES},
        failures=failures,
        failed_share=of_verifier / given if given else 0.0,
        could_be=could_be,
        withheld=" ".join(filter(None, (withheld, _withheld(failures, outcomes, columns[0], could_be)))),
        warnings=[*notes, *_warnings(outcomes, len(answers)), *_uncounted(len(tokens), len(answers), cost)],
        questions=len(questions),
        answers=len(answers),
        mean_tokens=fmean(tokens) if tokens else None,
        median_seconds=median(answer.seconds for answer in answers),
        seconds=seconds,
        cost=cost,
    )


def score_of(column: str, questions: Sequence[QuestionResult]) -> Score:
    """A column's mean over questions with its 95 % interval.

    Wilson's where each question has one answer that is right or wrong, else the bootstrap over questions.
    """
    values = [question.score(column) for question in questions]
    is_share = all(len(question.answers) == 1 for question in questions) and set(values) <= {0.0, 1.0}
    return _score(column, values, is_share=is_share)


def _score(name: str, values: Sequence[float], *, is_share: bool) -> Score:
    interval = wilson(sum(values), len(values)) if is_share else bootstrap_mean(values)
    return Score(
        name=name,
        value=fmean(values),
        low=interval.low,
        high=interval.high,
        method=interval.method,
        of=len(values),
    )


def _pass_at(questions: Sequence[QuestionResult]) -> list[Score]:
    """pass@1, 2, 4 and so on, and pass@n, of the n answers that each question has at least; none of one."""
    most = min(len(question.answers) for question in questions)
    if most < 2:
        return []
    numbers = sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})
    counts = [
        (len(question.answers), sum(answer.correctness >= 1 - ROUNDING for answer in question.answers))
        for question in questions
    ]
    return [_score(f"pass@{k}", [pass_at_k(n, c, k) for n, c in counts], is_share=False) for k in numbers]


def _bands(questions: Sequence[QuestionResult], column: str) -> list[BandScore]:
    bands = bands_by_difficulty([question.difficulty for question in questions])
    return [
        BandScore(band=name, score=score_of(column, [questions[place] for place in places])) for name, places in bands
    ]


def _could_be(questions: Sequence[QuestionResult], column: str) -> tuple[float, float] | None:
    """A column's value with failed answers wrong, and with them right; None where failing moves nothing."""
    if column == ANSWERED:
        return None

    def mean(failed: float) -> float:
        return fmean(
            fmean(failed if answer.outcome == "failed" else answer.score(column) for answer in question.answers)
            for question in questions
        )

    return mean(0.0), mean(1.0)


def _withheld(
    failures: dict[str, int], outcomes: Counter[Outcome], column: str, could_be: tuple[float, float] | None
) -> str:
    failed, not_cut_off = outcomes["failed"], outcomes.total() - outcomes["cut_off"]
    if failed <= MOST_FAILED * not_cut_off:
        return ""
    of_endpoint = sum(count for kind, count in failures.items() if is_of_endpoint(kind))
    answers = counted(not_cut_off, "answer")
    if not of_endpoint:
        said, remedy = f"The verifier failed on {failed} of {answers} that it was given", "Fix the verifier"
    elif of_endpoint == failed:
        said = f"The endpoint failed on {failed} of {answers} that were not cut off"
        remedy = "Find the cause"
    else:
        said = (
            f"The endpoint failed on {of_endpoint} and the verifier on {failed - of_endpoint} of {answers} that were "
            "not cut off"
        )
        remedy = "Find the cause at the endpoint and fix the verifier"
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(failures.items()))
    moved = f" {column} is between {could_be[0]:.1%} and {could_be[1]:.1%}." if could_be else ""
    return (
        f"{said} ({kinds}), more than {MOST_FAILED:.0%}, so no verdict is given.{moved} {remedy}, then evaluate again."
    )


def _uncounted(counts: int, answers: int, cost: Cost | None) -> list[str]:
    """Which answers length and cost cover, where an endpoint counted the tokens of only some."""
    if counts in (0, answers):
        return []
    what = "the mean length is that of the others, and what they cost is not known"
    if cost is not None:
        is_priced = cost.amount is not None
        what = "mean length and cost are those of the others" if is_priced else "the mean length is that of the others"
    return [f"{answers - counts} of {counted(answers, 'answer')} came without a token count: {what}."]


def _warnings(outcomes: Counter[Outcome], answers: int) -> list[str]:
    unparseable, cut_off = outcomes["unparseable"], outcomes["cut_off"]
    warnings = []
    if unparseable > PARSE_FAILURE_WARNING * answers:
        warnings.append(
            f"{unparseable} of {counted(answers, 'answer')} are unparseable and count as 0; above "
            f"{PARSE_FAILURE_WARNING:.0%} the score measures the format as much as what the model knows."
        )
    if cut_off > CUT_OFF_WARNING * answers:
        warnings.append(
            f"{cut_off} of {counted(answers, 'answer')} were cut off at max answer tokens and count as 0. Raise "
            "Max answer tokens to see what the model knows."
        )
    return warnings


def endpoint_failure(kind: str) -> str:
    """Name of an endpoint's failure in the record of an answer."""
    return _OF_ENDPOINT + kind


def is_of_endpoint(failure: str) -> bool:
    """Whether a failure, as the record of an answer names it, is the endpoint's and not the verifier's."""
    return failure.startswith(_OF_ENDPOINT)


def cost_of(settings: EndpointSettings, prompt_tokens: int | None, answer_tokens: int | None) -> Cost | None:
    """What so many tokens cost; without an amount where no price was given, None where they are not known."""
    if prompt_tokens is None or answer_tokens is None:
        return None
    amount = None
    prompt_price, answer_price = settings.price_per_million_prompt_tokens, settings.price_per_million_answer_tokens
    if prompt_price is not None and answer_price is not None:
        amount = (prompt_tokens * prompt_price + answer_tokens * answer_price) / 1_000_000
    return Cost(prompt_tokens=prompt_tokens, answer_tokens=answer_tokens, amount=amount, currency=settings.currency)


def cost_of_questions(settings: EndpointSettings, questions: Sequence[QuestionResult]) -> Cost | None:
    """What the answers to some questions cost. Each answer is a request, so each pays for the prompt.

    A failed answer without a token count is left out: whether it is billed is unknown.

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
