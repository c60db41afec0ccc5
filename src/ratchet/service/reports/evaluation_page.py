"""An evaluation, and several side by side, as HTML pages that need nothing else; ``pages.py`` says what that takes.

Answers, prompts and references are the user's and a model's: they are shown as text and as nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.evaluation.comparison import Comparison, Difference, SideBySide, Verdict
from ratchet.evaluation.evaluation import AnswerGroup, Evaluation, GivenAnswer, QuestionResult
from ratchet.run.display import listed, shown_seconds
from ratchet.service.reports import evaluation_words as words
from ratchet.service.reports.evaluation_plots import (
    band_rows,
    difference_rows,
    draw_bands,
    draw_differences,
    draw_scores,
    score_rows,
)
from ratchet.service.reports.pages import PAGE, render, settings_text, svg, written

# A page stays one that a browser opens at once.
MOST_QUESTIONS = 200
_MOST_EXAMPLES, _MOST_NUMBERS = 5, 30
# Of an answer that could not be graded nothing is known, so it is not shown as a wrong one.
_TONES: dict[AnswerGroup, str] = {"right": "good", "partly": "partly", "failed": "partly"}
_VERDICT_TONES: dict[Verdict, str] = {"better": "good", "worse": "bad", "within_noise": "plain", "withheld": "warn"}


def evaluation_page(evaluation: Evaluation, questions: Sequence[QuestionResult]) -> str:
    """An evaluation as a page.

    Args:
        evaluation: With or without scores.
        questions: Those answered so far; the page holds ``MOST_QUESTIONS`` of them at most, failures first.
    """
    scores = evaluation.scores
    fields: dict[str, Any] = {"main": None, "meanings": {}, "chart": "", "band_chart": ""}
    if scores is not None:
        named = [*scores.columns, *scores.pass_at]
        rows = score_rows([(words.column_title(one.name), one) for one in named], by_side=False)
        bands = score_rows([(one.band, one.score) for one in scores.bands], by_side=False)
        fields = {
            "main": words.main_score(evaluation),
            "meanings": _meanings([one.name for one in named], partly=words.has_partial_credit(evaluation)),
            "chart": svg(
                draw_scores(rows, PAGE), "Scores with their 95 % intervals; the numbers are in the table below"
            ),
            "band_chart": bands
            and svg(draw_scores(bands, PAGE), "Scores by difficulty with 95 % intervals; the numbers are in the table"),
        }
    shown = _failures_first(questions)[:MOST_QUESTIONS]
    return render(
        "evaluation_page",
        evaluation=evaluation,
        scores=scores,
        name=words.name_of(evaluation),
        sampled=words.how_sampled(evaluation),
        could_be=words.could_be(evaluation),
        interval_meaning=words.INTERVAL_MEANING,
        groups=[
            (words.GROUP_TITLES[group], number, share, words.GROUP_MEANINGS[group])
            for group, number, share in words.group_lines(evaluation)
        ],
        rows=[_Row.of(one) for one in shown],
        shown_words=_shown_words(questions, shown),
        tones=_tones(),
        outcome=words.outcome,
        made=_made(evaluation),
        setup=_setup(evaluation),
        **fields,
    )


def comparison_page(whole: SideBySide, questions_by_side: Sequence[Sequence[QuestionResult]]) -> str:
    """Evaluations side by side as a page, the verdict first.

    Args:
        whole: Two sides or more, all with scores.
        questions_by_side: The questions of each side, in the order of ``whole.labels``.
    """
    first = whole.evaluations[0]
    main = first.main_column
    comparisons = words.in_order(whole)
    partly = any(words.has_partial_credit(one) for one in whole.evaluations)
    answers = dict(zip((one.id for one in whole.evaluations), questions_by_side, strict=True))
    sides = score_rows(list(zip(whole.labels, whole.columns[main], strict=True)), by_side=True)
    bands = band_rows(whole.bands)
    return render(
        "comparison_page",
        whole=whole,
        benchmark=first.benchmark,
        main=main,
        questions=whole.columns[main][0].of,
        sampled=words.how_sampled(first),
        partly=partly,
        meanings=_meanings(list(whole.columns), partly=partly),
        interval_meaning=words.INTERVAL_MEANING,
        noise_meaning=words.NOISE_MEANING,
        tests=" and ".join(dict.fromkeys(words.TEST_MEANINGS[one.main.test] for one in comparisons)),
        verdicts=[_Shown.of(one, whole, answers) for one in comparisons],
        notes=list(dict.fromkeys([*whole.notes, *(note for one in comparisons for note in one.notes)])),
        bands_title=words.bands_title(whole),
        sides_chart=svg(
            draw_scores(sides, PAGE, own_colours=True),
            "Scores of all sides with 95 % intervals; the numbers are in the table below",
        ),
        differences_chart=svg(
            draw_differences(difference_rows(comparisons, whole), PAGE),
            "Differences with 95 % intervals; the numbers are in the table below",
        ),
        bands_chart=bands
        and svg(
            draw_bands(bands, whole.labels, PAGE),
            "Scores of all sides by band with 95 % intervals; the numbers are in the table below",
        ),
        tones=_tones(),
        outcome=words.outcome,
        models=[
            (label, "\n".join(f"{name}: {value}" for name, value in _subject(one)))
            for label, one in zip(whole.labels, whole.evaluations, strict=True)
        ],
        setup=_setup(first),
    )


@dataclass(frozen=True)
class _Row:
    """A question as a row of the table. ``tokens`` and ``seconds`` are means over its answers."""

    number: int
    prompt: str
    expected: str
    first: GivenAnswer
    others: list[GivenAnswer]
    outcome: str
    tone: str
    tokens: str
    seconds: float

    @classmethod
    def of(cls, question: QuestionResult) -> "_Row":
        answers = question.answers
        counted = [answer.tokens for answer in answers if answer.tokens is not None]
        right = sum(answer.group == "right" for answer in answers)
        several = len(answers) > 1
        return cls(
            number=question.question,
            prompt=words.last_turn(question),
            expected=question.ground_truth,
            first=answers[0],
            others=answers[1:],
            outcome=f"{right} of {len(answers)} right" if several else words.outcome(answers[0]),
            tone=("good" if right == len(answers) else "partly" if right else "bad") if several else _tone(answers[0]),
            tokens=f"{sum(counted) / len(counted):,.0f}" if counted else "?",
            seconds=sum(answer.seconds for answer in answers) / len(answers),
        )


@dataclass(frozen=True)
class _Example:
    """A question with both answers; ``sides`` holds label, first answer, right answers and answers of each."""

    number: int
    prompt: str
    expected: str
    sides: list[tuple[str, GivenAnswer, int, int]]


@dataclass(frozen=True)
class _Shown:
    """A comparison as it is shown."""

    left: str
    right: str
    main: Difference
    title: str
    tone: str
    chance: str
    fixed: list[_Example]
    broken: list[_Example]
    fixed_numbers: str
    broken_numbers: str

    @classmethod
    def of(cls, comparison: Comparison, whole: SideBySide, answers: dict[str, Sequence[QuestionResult]]) -> "_Shown":
        names = words.sides_of(comparison, whole)
        main = comparison.main
        known = [
            {one.question: one for one in answers.get(side.id, ())} for side in (comparison.left, comparison.right)
        ]

        def examples(numbers: Sequence[int]) -> list[_Example]:
            there = [number for number in numbers if all(number in side for side in known)]
            return [_example(names, [side[number] for side in known]) for number in there[:_MOST_EXAMPLES]]

        return cls(
            left=names[0],
            right=names[1],
            main=main,
            title=words.VERDICT_TITLES[main.verdict],
            tone=_VERDICT_TONES[main.verdict],
            chance=words.chance(main.p_value),
            fixed=examples(main.fixed),
            broken=examples(main.broken),
            fixed_numbers=_numbers(main.fixed),
            broken_numbers=_numbers(main.broken),
        )


def _example(names: tuple[str, str], both: list[QuestionResult]) -> _Example:
    return _Example(
        number=both[0].question,
        prompt=words.last_turn(both[0]),
        expected=both[0].ground_truth,
        sides=[
            (name, one.answers[0], sum(answer.group == "right" for answer in one.answers), len(one.answers))
            for name, one in zip(names, both, strict=True)
        ],
    )


def _numbers(questions: Sequence[int]) -> str:
    return listed([str(number) for number in questions], _MOST_NUMBERS)


def _failures_first(questions: Sequence[QuestionResult]) -> list[QuestionResult]:
    return sorted(questions, key=lambda one: (one.correctness == 1, one.question))


def _shown_words(questions: Sequence[QuestionResult], shown: Sequence[QuestionResult]) -> str:
    failing = sum(one.correctness < 1 for one in questions)
    order = f"Those without full credit come first: {failing:,} of {len(questions):,}."
    if len(shown) == len(questions):
        return order
    hidden_failing = max(0, failing - len(shown))
    what = f"{hidden_failing:,} of them without full credit" if hidden_failing else "all of them right"
    return f"{order} The page shows {len(shown):,}; {len(questions) - len(shown):,} are left out, {what}."


def _tones() -> dict[AnswerGroup, str]:
    return {group: _TONES.get(group, "bad") for group in words.GROUP_TITLES}


def _tone(answer: GivenAnswer) -> str:
    return _TONES.get(answer.group, "bad")


def _meanings(names: Sequence[str], *, partly: bool) -> dict[str, str]:
    return {name: words.column_meaning(name, partly=partly) for name in names}


def _subject(evaluation: Evaluation) -> list[tuple[str, str]]:
    subject = evaluation.subject
    rows = [
        ("Evaluation", evaluation.id),
        ("Kind", words.KIND_TITLES[subject.kind]),
        ("Name", subject.name),
        ("Model", subject.model),
        ("Revision", subject.revision),
        ("Fingerprint, commit or address", subject.identity),
        ("Made by run", subject.run or ""),
        ("Adapter's checksum", subject.sha256),
    ]
    return [(label, value) for label, value in rows if value]


def _made(evaluation: Evaluation) -> list[tuple[str, str]]:
    scores = evaluation.scores
    seconds = [] if scores is None else [("Answering took", shown_seconds(scores.seconds))]
    return [
        *_subject(evaluation),
        ("Benchmark", evaluation.benchmark),
        ("Benchmark's hash", evaluation.benchmark_hash),
        ("Questions' hash", evaluation.questions_sha256),
        *seconds,
    ]


def _setup(evaluation: Evaluation) -> list[tuple[str, str]]:
    rows = [
        (name, settings_text(value) if isinstance(value, dict) else written(value))
        for name, value in evaluation.setup.items()
    ]
    return [
        (name.replace("_", " ").capitalize(), "none" if text in ("", "None", "[]") else text) for name, text in rows
    ]
