"""Evaluations, comparisons and leaderboards on the terminal, and in a pipe. Rendering alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.evaluation.comparison import Comparison, Difference, SideBySide, Verdict
from ratchet.evaluation.evaluation import AnswerGroup, Evaluation, GivenAnswer, QuestionResult, Score
from ratchet.run.display import counted, shortened, shown_seconds, visible
from ratchet.service.reports import evaluation_words as words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# What a row of the table of questions shows of a text.
_ROW_CHARACTERS = 40
# A console that is narrower has two lines in a cell where others have one long one.
_WIDE_CHARACTERS = 110
# However little room there is, so much of a name can be read in a line.
_LEAST_NAME = 9
_COLORS: dict[AnswerGroup, str] = {"right": "green", "partly": "yellow", "failed": "yellow"}
_VERDICT_COLORS: dict[Verdict, str] = {"better": "green", "worse": "red", "within_noise": "", "withheld": "yellow"}


def print_evaluation(console: "Console", evaluation: Evaluation) -> None:
    """Print an evaluation; one without scores in two lines."""
    from rich.text import Text

    scores = evaluation.scores
    name, benchmark = visible(words.name_of(evaluation)), visible(evaluation.benchmark)
    console.print(Text.assemble((name, "bold"), f" on {benchmark}"), soft_wrap=False)
    asked = f"{counted(scores.questions, 'question')}, {words.how_asked(evaluation)}" if scores else ""
    _say(console, f"Evaluation {evaluation.id}, {words.when(evaluation.created_at)} UTC{asked and f'; {asked}'}")
    if scores is None:
        return
    partly = words.has_credit_for_parts(evaluation)
    table = _table(console, "score", "value", "95 % interval", "counts", left=("score", "counts"))
    for one in [*scores.columns, *scores.pass_at]:
        meaning = words.column_meaning(one.name, partly=partly)
        table.add_row(_plain(words.column_title(one.name)), words.percent(one.value), words.interval(one), meaning)
    console.print(table)
    if scores.bands:
        table = _table(
            console, "band", "questions", words.column_title(evaluation.main_column), "95 % interval", left=("band",)
        )
        for band in scores.bands:
            one = band.score
            table.add_row(_plain(band.band), f"{one.of:,}", words.percent(one.value), words.interval(one))
        console.print(table)
    _print_answers(console, evaluation)
    for warning in scores.warnings:
        _note(console, warning)
    if scores.withheld:
        _say(console, f"No verdict is given on this evaluation. {scores.withheld}", "yellow")


def print_comparison(console: "Console", comparison: Comparison) -> None:
    """Print two sides: every column with its difference, bands, notes, and last, where the eye is, the verdict."""
    left, right = words.sides_of(comparison)
    _say(console, f"{right} against {left}, {counted(comparison.questions, 'question')}", "bold")
    table = _differences_table(console, "score")
    for one in comparison.columns:
        table.add_row(_plain(words.column_title(one.column)), *_difference_cells(one))
    console.print(table)
    if comparison.bands:
        table = _table(console, "band", "questions", "left", "right", "difference", "95 % interval", left=("band",))
        for band in comparison.bands:
            table.add_row(
                _plain(band.band),
                f"{band.questions:,}",
                words.percent(band.left.value),
                words.percent(band.right.value),
                words.points(band.difference),
                f"{words.points(band.low)} to {words.points(band.high)}",
            )
        console.print(table)
    _say(console, f"left: {left}; right: {right}; differences are right less left, in percentage points", "dim")
    for note in comparison.notes:
        _note(console, note)
    _say(console, comparison.main.sentence, "bold")


def print_side_by_side(console: "Console", whole: SideBySide) -> None:
    """Print several sides: scores, bands, differences, notes, and last the verdicts."""
    main = whole.evaluations[0].main_column
    _say(console, f"{', '.join(whole.labels)} on {whole.evaluations[0].benchmark}", "bold")
    table = _table(console, "side", *(words.column_title(name) for name in whole.columns), left=("side",))
    for side, name in enumerate(whole.labels):
        table.add_row(_plain(name), *(_with_interval(console, scores[side]) for scores in whole.columns.values()))
    console.print(table)
    if whole.bands:
        table = _table(console, "band", "questions", *whole.labels, left=("band",))
        for band, scores in whole.bands.items():
            table.add_row(_plain(band), f"{scores[0].of:,}", *(_with_interval(console, one) for one in scores))
        console.print(table)
    comparisons = words.in_order(whole)
    table = _differences_table(console, "compared")
    for one in comparisons:
        left, right = words.sides_of(one, whole)
        table.add_row(_plain(f"{right} against {left}"), *_difference_cells(one.main))
    console.print(table)
    _say(
        console,
        f"In brackets: 95 % intervals. Differences are of {words.column_title(main)}, in percentage points.",
        "dim",
    )
    for note in dict.fromkeys([*whole.notes, *(note for one in comparisons for note in one.notes)]):
        _note(console, note)
    for one in comparisons:
        _say(console, one.main.sentence, "bold")


def print_leaderboard(console: "Console", benchmark_name: str, evaluations: Sequence[Evaluation]) -> None:
    """Print a benchmark's evaluations that have scores, the best first, of equal ones the earlier."""
    ranked = words.ranked(evaluations)
    _say(console, f"Leaderboard of {benchmark_name}", "bold")
    if not ranked:
        _say(console, "No evaluation of it has scores yet.")
        return
    main = ranked[0].main_column
    others = list(dict.fromkeys(one.name for made in ranked if made.scores for one in made.scores.columns))
    others = [name for name in others if name != main]
    titles = [words.column_title(name) for name in others]
    wide = _is_wide(console)
    after = ("model", "when (UTC)", "evaluation") if wide else ()
    ways, differences = words.ways_of_asking(ranked)
    asked = ("asked",) if differences else ()
    table = _table(
        console, "", "what", words.column_title(main), *titles, "answers each", *asked, *after, left=("what", *after)
    )
    for place, (made, way) in enumerate(zip(ranked, ways, strict=True), start=1):
        assert made.scores is not None
        columns = [made.scores.column(name) for name in others]
        known = [made.subject.model, words.when(made.created_at), made.id]
        cell = _with_interval(console, words.main_score(made))
        table.add_row(
            str(place),
            _plain(words.name_of(made) if wide else "\n".join([words.name_of(made), *known])),
            f"{cell}{', ' if wide else chr(10)}no verdict" if made.scores.withheld else cell,
            *("" if one is None else words.percent(one.value) for one in columns),
            str(made.answers_per_question),
            *([way] if asked else []),
            *map(_plain, known if wide else ()),
        )
    console.print(table)
    for sentence in differences:
        _note(console, sentence)


def print_question_table(console: "Console", questions: Sequence[QuestionResult], full: bool) -> None:
    """Print questions with their answers: a row each with the beginnings of texts, or, ``full``, every text whole."""
    if full:
        for one in questions:
            _print_question(console, one)
        return
    table = _table(
        console, "no.", "question", "expected", "answer", "outcome", "tokens", "latency",
        left=("question", "expected", "answer", "outcome"),
    )  # fmt: skip
    for one in questions:
        for number, answer in enumerate(one.answers):
            asked = [_beginning(words.last_turn(one)), _beginning(one.ground_truth)]
            table.add_row(
                "" if number else str(one.question),
                *map(_plain, ["", ""] if number else asked),
                _plain(_beginning(answer.text)),
                _outcome(answer),
                "?" if answer.tokens is None else f"{answer.tokens:,}",
                shown_seconds(answer.seconds),
            )
    console.print(table)
    _say(console, f"{counted(len(questions), 'question')}; --full shows texts whole.", "dim")


def _print_question(console: "Console", one: QuestionResult) -> None:
    from rich.text import Text

    band = "" if one.difficulty is None else f"  difficulty {one.difficulty}"
    console.print(Text(f"\nQuestion {one.question}{visible(band)}", style="bold"))
    for turn in one.prompt:
        console.print(Text(f"{visible(turn['role']):<10}{visible(turn['content'])}"), soft_wrap=True)
    console.print(Text(f"{'expected':<10}{visible(one.ground_truth) or '(empty)'}"), soft_wrap=True)
    for answer in one.answers:
        tokens = "" if answer.tokens is None else f", {counted(answer.tokens, 'token')}"
        console.print(Text("answer    ") + _outcome(answer) + Text(f"{tokens}, {shown_seconds(answer.seconds)}"))
        console.print(Text(visible(answer.text) or "(empty)"), soft_wrap=True)


def _print_answers(console: "Console", evaluation: Evaluation) -> None:
    """Print what became of the answers, how checks failed, lengths, latency and cost."""
    scores = evaluation.scores
    assert scores is not None
    table = _table(
        console, "what became of answers", "answers", "share", "meaning", left=("what became of answers", "meaning")
    )
    for group, number, share in words.group_lines(evaluation):
        table.add_row(words.GROUP_TITLES[group], f"{number:,}", words.percent(share), words.GROUP_MEANINGS[group])
    console.print(table)
    if scores.failures:
        _say(console, "Failed to grade: " + ", ".join(f"{kind} {number:,}" for kind, number in scores.failures.items()))
    if told := words.could_be(evaluation):
        _note(console, told)
    length = "" if scores.mean_tokens is None else f"{scores.mean_tokens:.0f} tokens an answer on average, "
    took = f"{shown_seconds(scores.median_seconds)} until an answer was finished (median)"
    _say(console, f"{length}{took}, {shown_seconds(scores.seconds)} in all")
    if scores.cost is not None and scores.cost.amount is not None:
        _say(console, f"Cost {scores.cost.amount:.2f} {scores.cost.currency}")


def _table(console: "Console", *columns: str, left: Sequence[str]) -> "Table":
    """Return an empty table with these columns, numbers on the right, those in ``left`` on the left and wrapping."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in columns:
        is_text = name in left
        title = name if is_text or _is_wide(console) else _stacked(name)
        table.add_column(
            _plain(title),
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
            min_width=_LEAST_NAME if name == left[0] else None,
        )
    return table


def _stacked(title: str) -> str:
    return title.replace("95 %", "95%").replace(" ", "\n").replace("95%", "95 %")


def _is_wide(console: "Console") -> bool:
    return console.width >= _WIDE_CHARACTERS


def _differences_table(console: "Console", first: str) -> "Table":
    return _table(
        console,
        first,
        "left",
        "right",
        "difference",
        "95 % interval",
        "fixed",
        "broken",
        "verdict",
        left=(first, "verdict"),
    )


def _difference_cells(one: Difference) -> "list[str | Text]":
    from rich.text import Text

    return [
        words.percent(one.left.value),
        words.percent(one.right.value),
        words.points(one.difference),
        f"{words.points(one.low)} to {words.points(one.high)}",
        f"{len(one.fixed):,}",
        f"{len(one.broken):,}",
        Text(words.VERDICT_TITLES[one.verdict], style=_VERDICT_COLORS[one.verdict]),
    ]


def _with_interval(console: "Console", score: Score) -> str:
    between = " " if _is_wide(console) else "\n"
    return f"{words.percent(score.value)}{between}({100 * score.low:.1f} to {100 * score.high:.1f})"


def _outcome(answer: GivenAnswer) -> "Text":
    from rich.text import Text

    return Text(visible(words.outcome(answer)), style=_COLORS.get(answer.group, "red"))


def _beginning(text: str) -> str:
    return shortened(" ".join(text.split()), _ROW_CHARACTERS) or "(empty)"


def _plain(text: str) -> "Text":
    """Return a text that is no markup and acts on no terminal."""
    from rich.text import Text

    return Text(visible(text))


def _say(console: "Console", text: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(visible(text), style=style), soft_wrap=False)


def _note(console: "Console", text: str) -> None:
    from rich.text import Text

    console.print(Text.assemble(("Note:", "yellow"), f" {visible(text)}"), soft_wrap=False)
