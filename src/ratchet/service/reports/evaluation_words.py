"""How evaluations and comparisons are put into words, the same on a terminal and on a page. Numbers come as they are.

Texts of models and of users are made harmless (``shown.visible``) by whoever shows them, not here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.evaluation.benchmark import ACCURACY, ANSWERED, FORMAT
from ratchet.evaluation.comparison import Comparison, PairedTest, SideBySide, Verdict
from ratchet.evaluation.evaluation import AnswerGroup, Evaluation, GivenAnswer, QuestionResult, Score, SubjectKind
from ratchet.run.display import counted
from ratchet.verifiers import METRICS

GROUP_TITLES: dict[AnswerGroup, str] = {
    "right": "right",
    "partly": "partly right",
    "wrong": "wrong",
    "wrong_format": "unparseable",
    "cut_off": "cut off",
    "refusal": "refused",
    "failed": "failed to grade",
}
GROUP_MEANINGS: dict[AnswerGroup, str] = {
    "right": "full credit",
    "partly": "some credit, not all",
    "wrong": "could be read, and is not the expected answer",
    "wrong_format": "nothing in it that could be checked",
    "cut_off": "reached the longest answer before it ended",
    "refusal": "says that it will not answer",
    "failed": "no answer came, or its check broke: nothing is known of it",
}
VERDICT_TITLES: dict[Verdict, str] = {
    "better": "better",
    "worse": "worse",
    "within_noise": "within the noise",
    "withheld": "no verdict",
}
KIND_TITLES: dict[SubjectKind, str] = {
    "base": "base model",
    "adapter": "adapter on a base model",
    "merged": "merged model",
    "endpoint": "endpoint",
}
INTERVAL_MEANING = (
    "The 95 % interval says how far the score may be off because only these questions were asked: of 100 such "
    "intervals about 95 hold the score on all questions of the kind."
)
NOISE_MEANING = (
    "Within the noise means: two equally good models would show a difference this large too often for it to count, "
    "merely by which questions were asked."
)
TEST_MEANINGS: dict[PairedTest, str] = {
    "mcnemar": "McNemar's exact test, which looks at the questions that only one of the two sides has right",
    "bootstrap": "a paired permutation test, which swaps the two sides of questions at random and looks how often the "
    "difference gets as large; its interval draws the questions again many times",
}
_PASS_AT = "pass@"


def ways_of_asking(evaluations: Sequence[Evaluation]) -> tuple[list[str], list[str]]:
    """Return for each evaluation of one benchmark which way it was asked in, and a sentence for each further way.

    Ways are called A, B and so on, in the order in which they come. Scores of different ways do not compare.
    """
    setups: list[dict[str, Any]] = []
    ways = []
    for one in evaluations:
        if one.setup not in setups:
            setups.append(one.setup)
        ways.append(_letters(setups.index(one.setup)))
    return ways, [
        f"{_letters(place)} was asked in another way than A, so their scores do not compare; they differ in "
        f"{', '.join(_different_parts(setups[0], setup))}."
        for place, setup in enumerate(setups[1:], start=1)
    ]


def _different_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name.lower() for name in {**one, **other} if one.get(name) != other.get(name)]


def _letters(place: int) -> str:
    """Return the name of the way at a place: A to Z, then AA, AB and so on."""
    before = _letters(place // 26 - 1) if place >= 26 else ""
    return before + chr(ord("A") + place % 26)


def percent(share: float) -> str:
    """Return a share of 0..1 as people read it."""
    return f"{share:.1%}"


def points(difference: float) -> str:
    """Return a difference of shares in percentage points, with its sign; "0.0" where it rounds to nothing."""
    rounded = round(100 * difference, 1)
    return f"{rounded:+.1f}" if rounded else "0.0"


def chance(p_value: float) -> str:
    """Say how often two equally good models would differ as much, by the p-value of a test."""
    if p_value < 0.001:
        return "less than once in 1,000 times"
    return f"{counted(round(1000 * p_value), 'time')} in 1,000"


def interval(score: Score) -> str:
    """Return the interval of a score."""
    return f"{percent(score.low)} to {percent(score.high)}"


def column_title(name: str) -> str:
    """Return how a score column is called."""
    return name.replace("_", " ")


def column_meaning(name: str, *, partly: bool) -> str:
    """Say what a score column counts; ``partly``: whether answers got credit for parts."""
    if name.startswith(_PASS_AT):
        return f"questions with a right answer among {name.removeprefix(_PASS_AT)}"
    if name == ACCURACY:
        return "mean score of the answers, with credit for parts" if partly else "answers that are right"
    own = {
        FORMAT: "answers in the form that was asked for",
        ANSWERED: "answers that ended by themselves and are not empty",
    }
    # No two kinds of verifier call different measures by the same name.
    parts = {part: text for metrics in METRICS.values() for part, text in metrics.items()}
    meaning = own.get(name) or parts.get(name, "reported by the verifier").rstrip(".")
    return meaning[0].lower() + meaning[1:]


def outcome(answer: GivenAnswer) -> str:
    """Say what became of an answer, and how its check failed where it did."""
    title = GROUP_TITLES[answer.group]
    if answer.group == "partly":
        title += f", {percent(answer.correctness)}"
    return f"{title} ({answer.failure})" if answer.failure else title


def name_of(evaluation: Evaluation) -> str:
    """Return how people call an evaluation."""
    return evaluation.name or evaluation.subject.name


def how_asked(evaluation: Evaluation) -> str:
    """Say how many answers each question got."""
    number = evaluation.answers_per_question
    if number > 1:
        return f"{number} sampled answers a question"
    is_greedy = evaluation.setup.get("Sampling", "greedy") == "greedy"
    return "one greedy answer a question" if is_greedy else "one answer a question, sampled as the endpoint does"


def when(written_at: str) -> str:
    """Return a time of a record (ISO 8601, UTC) to the minute."""
    return written_at[:16].replace("T", " ")


def last_turn(question: QuestionResult) -> str:
    """Return what the user asked last."""
    turns = [turn["content"] for turn in question.prompt if turn["role"] == "user"]
    return turns[-1] if turns else question.prompt[-1]["content"]


def group_lines(evaluation: Evaluation) -> list[tuple[AnswerGroup, int, float]]:
    """Return group, answers and share of each group that has any; right, wrong and unparseable always."""
    scores = evaluation.scores
    if scores is None:
        return []
    always = ("right", "wrong", "wrong_format")
    return [
        (group, scores.groups.get(group, 0), scores.groups.get(group, 0) / scores.answers)
        for group in GROUP_TITLES
        if group in always or scores.groups.get(group, 0)
    ]


def main_score(evaluation: Evaluation) -> Score:
    """Return the score that an evaluation with scores goes by."""
    assert evaluation.scores is not None
    return evaluation.scores.column(evaluation.main_column) or evaluation.scores.columns[0]


def ranked(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return those with scores, the best first, of equal ones the earlier."""
    made = [one for one in evaluations if one.scores is not None]
    return sorted(made, key=lambda one: (-main_score(one).value, one.created_at))


def has_credit_for_parts(evaluation: Evaluation) -> bool:
    """Tell whether some answer scored between wrong and right."""
    return evaluation.scores is not None and evaluation.scores.groups.get("partly", 0) > 0


def could_be(evaluation: Evaluation) -> str:
    """Say between what the main score may lie since checks failed; "" where none did."""
    if evaluation.scores is None or evaluation.scores.could_be is None:
        return ""
    low, high = evaluation.scores.could_be
    return (
        f"{counted(evaluation.scores.groups.get('failed', 0), 'answer')} could not be graded: "
        f"{column_title(evaluation.main_column)} would be {percent(low)} if all of them were wrong, "
        f"{percent(high)} if all were right."
    )


def sides_of(comparison: Comparison, whole: SideBySide | None = None) -> tuple[str, str]:
    """Return how the two sides of a comparison are called: by the labels of the whole, else by their own names."""
    labels = {} if whole is None else dict(zip((one.id for one in whole.evaluations), whole.labels, strict=True))
    left, right = (labels.get(one.id, name_of(one)) for one in (comparison.left, comparison.right))
    return left, right


def bands_title(whole: SideBySide) -> str:
    """Say what the bands of a table of sides go by."""
    start = whole.evaluations[0].id
    by_start = any(one.bands_from == "left" for one in whole.comparisons if one.left.id == start)
    return f"By how {whole.labels[0]} did" if by_start else "By difficulty"


def in_order(whole: SideBySide) -> list[Comparison]:
    """Return comparisons in the order in which people ask: the last side against the one before it, then the rest.

    What was trained last is what the reader wants to know about, first of all against what it started from.
    """
    place = {one.id: number for number, one in enumerate(whole.evaluations)}

    def key(comparison: Comparison) -> tuple[int, int]:
        return (-place.get(comparison.right.id, 0), -place.get(comparison.left.id, 0))

    return sorted(whole.comparisons, key=key)
