"""How evaluations and comparisons are put into words, the same on a terminal and on a page. Numbers come as they are.

Texts of models and of users are made harmless (``display.visible``) by whoever shows them, not here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.evaluation.benchmark import ACCURACY, ANSWERED, FORMAT
from ratchet.evaluation.comparison import Comparison, PairedTest, SideBySide, Verdict
from ratchet.evaluation.evaluation import AnswerGroup, Evaluation, GivenAnswer, QuestionResult, Score, SubjectKind
from ratchet.run.display import counted
from ratchet.verifiers import KINDS

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
    "wrong": "parsed, and not the expected answer",
    "wrong_format": "contains no answer that the verifier can parse",
    "cut_off": "reached max answer tokens before it stopped",
    "refusal": "says that it will not answer",
    "failed": "no answer came, or the verifier failed on it",
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
    "The 95 % interval shows how far the score may be off because only these questions were drawn: about 95 of 100 "
    "such intervals contain the score on all questions of the kind."
)
NOISE_MEANING = (
    "Within the noise means: two equally good models would often differ this much, only because of which questions "
    "were drawn."
)
TEST_MEANINGS: dict[PairedTest, str] = {
    "mcnemar": "McNemar's exact test on the questions that only one of the two sides has right",
    "bootstrap": "a paired permutation test, which swaps the two sides of questions at random and counts how often the "
    "difference gets as large; its interval resamples the questions (bootstrap)",
}
_PASS_AT = "pass@"


def setups_of(evaluations: Sequence[Evaluation]) -> tuple[list[str], list[str]]:
    """The set-up of each evaluation of one benchmark, as a letter, and a sentence for each set-up after the first.

    Set-ups are A, B and so on, in order of appearance. Scores of different set-ups do not compare.
    """
    setups: list[dict[str, Any]] = []
    letters = []
    for one in evaluations:
        if one.setup not in setups:
            setups.append(one.setup)
        letters.append(_letters(setups.index(one.setup)))
    return letters, [
        f"Set-up {_letters(place)} differs from A, so their scores do not compare: "
        f"{', '.join(_different_parts(setups[0], setup))}."
        for place, setup in enumerate(setups[1:], start=1)
    ]


def _different_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name.lower() for name in {**one, **other} if one.get(name) != other.get(name)]


def _letters(place: int) -> str:
    """Letters of the set-up at a place: A to Z, then AA, AB and so on."""
    before = _letters(place // 26 - 1) if place >= 26 else ""
    return before + chr(ord("A") + place % 26)


def percent(share: float) -> str:
    """A share of 0..1 in percent."""
    return f"{share:.1%}"


def points(difference: float) -> str:
    """A difference of shares in percentage points, with its sign; "0.0" where it rounds to nothing."""
    rounded = round(100 * difference, 1)
    return f"{rounded:+.1f}" if rounded else "0.0"


def chance(p_value: float) -> str:
    """How often two equally good models would differ as much, by the p-value of a test."""
    if p_value < 0.001:
        return "less than once in 1,000 times"
    return f"{counted(round(1000 * p_value), 'time')} in 1,000"


def interval(score: Score) -> str:
    """Interval of a score."""
    return f"{percent(score.low)} to {percent(score.high)}"


def column_title(name: str) -> str:
    """Title of a score column."""
    return name.replace("_", " ")


def column_meaning(name: str, *, partly: bool) -> str:
    """What a score column counts; ``partly``: whether answers got partial credit."""
    if name.startswith(_PASS_AT):
        return f"questions with a right answer among {name.removeprefix(_PASS_AT)}"
    if name == ACCURACY:
        return "mean score of the answers, with partial credit" if partly else "answers that are right"
    own = {
        FORMAT: "answers in the required format",
        ANSWERED: "answers that stopped on their own and are not empty",
    }
    # No two kinds of verifier call different measures by the same name.
    parts = {part: text for kind in KINDS.values() for part, text in kind.metrics.items()}
    meaning = own.get(name) or parts.get(name, "reported by the verifier").rstrip(".")
    return meaning[0].lower() + meaning[1:]


def outcome(answer: GivenAnswer) -> str:
    """Outcome of an answer, with the kind of its failure."""
    title = GROUP_TITLES[answer.group]
    if answer.group == "partly":
        title += f", {percent(answer.correctness)}"
    return f"{title} ({answer.failure})" if answer.failure else title


def name_of(evaluation: Evaluation) -> str:
    """Name of an evaluation."""
    return evaluation.name or evaluation.subject.name


def how_sampled(evaluation: Evaluation) -> str:
    """How many answers per question, and how they were sampled."""
    number = evaluation.answers_per_question
    if number > 1:
        return f"{number} sampled answers per question"
    is_greedy = evaluation.setup.get("Sampling", "greedy") == "greedy"
    return "one greedy answer per question" if is_greedy else "one answer per question, sampled as the endpoint does"


def when(written_at: str) -> str:
    """A time of a record (ISO 8601, UTC) to the minute."""
    return written_at[:16].replace("T", " ")


def last_turn(question: QuestionResult) -> str:
    """The last user turn of a prompt."""
    turns = [turn["content"] for turn in question.prompt if turn["role"] == "user"]
    return turns[-1] if turns else question.prompt[-1]["content"]


def group_lines(evaluation: Evaluation) -> list[tuple[AnswerGroup, int, float]]:
    """Group, answers and share of each group that has any; right, wrong and unparseable always."""
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
    """The main score of an evaluation that has scores."""
    assert evaluation.scores is not None
    return evaluation.scores.column(evaluation.main_column) or evaluation.scores.columns[0]


def ranked(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Those with scores, the best first, of equal ones the earlier."""
    made = [one for one in evaluations if one.scores is not None]
    return sorted(made, key=lambda one: (-main_score(one).value, one.created_at))


def has_partial_credit(evaluation: Evaluation) -> bool:
    """Whether some answer scored between wrong and right."""
    return evaluation.scores is not None and evaluation.scores.groups.get("partly", 0) > 0


def could_be(evaluation: Evaluation) -> str:
    """Range of the main score given the answers that could not be graded; "" where all were."""
    if evaluation.scores is None or evaluation.scores.could_be is None:
        return ""
    low, high = evaluation.scores.could_be
    return (
        f"{counted(evaluation.scores.groups.get('failed', 0), 'answer')} could not be graded: "
        f"{column_title(evaluation.main_column)} would be {percent(low)} if all of them were wrong, "
        f"{percent(high)} if all were right."
    )


def sides_of(comparison: Comparison, whole: SideBySide | None = None) -> tuple[str, str]:
    """Names of the two sides of a comparison: by the labels of the whole, else by their own names."""
    labels = {} if whole is None else dict(zip((one.id for one in whole.evaluations), whole.labels, strict=True))
    left, right = (labels.get(one.id, name_of(one)) for one in (comparison.left, comparison.right))
    return left, right


def bands_title(whole: SideBySide) -> str:
    """Title of the bands of a table of sides."""
    start = whole.evaluations[0].id
    by_start = any(one.bands_from == "left" for one in whole.comparisons if one.left.id == start)
    return f"By how {whole.labels[0]} did" if by_start else "By difficulty"


def in_order(whole: SideBySide) -> list[Comparison]:
    """Comparisons in order of interest: the last side against the one before it, then the rest.

    What was trained last is what the reader wants to know about, first of all against what it started from.
    """
    place = {one.id: number for number, one in enumerate(whole.evaluations)}

    def key(comparison: Comparison) -> tuple[int, int]:
        return (-place.get(comparison.right.id, 0), -place.get(comparison.left.id, 0))

    return sorted(whole.comparisons, key=key)
