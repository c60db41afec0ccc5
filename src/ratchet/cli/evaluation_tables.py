"""Evaluations, comparisons and leaderboards on the terminal, and in a pipe. Rendering alone."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ratchet.cli.output import note, say, table
from ratchet.evaluation.comparison import Comparison, Difference, SideBySide, Verdict
from ratchet.evaluation.evaluation import AnswerGroup, Evaluation, GivenAnswer, QuestionResult, Score
from ratchet.run.display import counted, shortened, shown_seconds, visible
from ratchet.service.reports import evaluation_words as words

# What a row of the table of questions shows of a text.
_ROW_CHARACTERS = 40
# A console that is narrower has two lines in a cell where others have one long one.
_WIDE_CHARACTERS = 110
# However little room there is, so much of a name can be read in a line.
_LEAST_NAME = 9
_COLORS: dict[AnswerGroup, str] = {"right": "green", "partly": "yellow", "failed": "yellow"}
_VERDICT_COLORS: dict[Verdict, str] = {"better": "green", "worse": "red", "within_noise": "", "withheld": "yellow"}


def print_evaluation(console: Console, evaluation: Evaluation) -> None:
    """Print an evaluation; one without scores in two lines."""
    scores = evaluation.scores
    name, benchmark = visible(words.name_of(evaluation)), visible(evaluation.benchmark)
    console.print(Text.assemble((name, "bold"), f" on {benchmark}"), soft_wrap=False)
    asked = f"{counted(scores.questions, 'question')}, {words.how_sampled(evaluation)}" if scores else ""
    say(console, f"Evaluation {evaluation.id}, {words.when(evaluation.created_at)} UTC{asked and f'; {asked}'}")
    if scores is None:
        return
    partly = words.has_partial_credit(evaluation)
    rows = [
        (
            words.column_title(one.name),
            words.percent(one.value),
            words.interval(one),
            words.column_meaning(one.name, partly=partly),
        )
        for one in [*scores.columns, *scores.pass_at]
    ]
    columns = ("score", "value", "95 % interval", "counts")
    console.print(_table(console, *columns, rows=rows, left=("score", "counts")))
    if scores.bands:
        bands = [
            (one.band, f"{one.score.of:,}", words.percent(one.score.value), words.interval(one.score))
            for one in scores.bands
        ]
        columns = ("band", "questions", words.column_title(evaluation.main_column), "95 % interval")
        console.print(_table(console, *columns, rows=bands, left=("band",)))
    _print_answers(console, evaluation)
    for warning in scores.warnings:
        note(console, warning)
    if scores.withheld:
        say(console, f"No verdict is given on this evaluation. {scores.withheld}", "yellow")


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print two sides: every column with its difference, bands, notes, and last, where the eye is, the verdict."""
    left, right = words.sides_of(comparison)
    say(console, f"{right} against {left}, {counted(comparison.questions, 'question')}", "bold")
    differences = {words.column_title(one.column): one for one in comparison.columns}
    console.print(_differences_table(console, "score", differences.items()))
    if comparison.bands:
        bands = [
            (
                band.band,
                f"{band.questions:,}",
                words.percent(band.left.value),
                words.percent(band.right.value),
                words.points(band.difference),
                f"{words.points(band.low)} to {words.points(band.high)}",
            )
            for band in comparison.bands
        ]
        columns = ("band", "questions", "left", "right", "difference", "95 % interval")
        console.print(_table(console, *columns, rows=bands, left=("band",)))
    say(console, f"left: {left}; right: {right}; differences are right minus left, in percentage points", "dim")
    for text in comparison.notes:
        note(console, text)
    say(console, comparison.main.sentence, "bold")


def print_side_by_side(console: Console, whole: SideBySide) -> None:
    """Print several sides: scores, bands, differences, notes, and last the verdicts."""
    main = whole.evaluations[0].main_column
    say(console, f"{', '.join(whole.labels)} on {whole.evaluations[0].benchmark}", "bold")
    sides = [
        (name, *(_with_interval(console, scores[side]) for scores in whole.columns.values()))
        for side, name in enumerate(whole.labels)
    ]
    titles = [words.column_title(name) for name in whole.columns]
    console.print(_table(console, "side", *titles, rows=sides, left=("side",)))
    if whole.bands:
        bands = [
            (band, f"{scores[0].of:,}", *(_with_interval(console, one) for one in scores))
            for band, scores in whole.bands.items()
        ]
        console.print(_table(console, "band", "questions", *whole.labels, rows=bands, left=("band",)))
    comparisons = words.in_order(whole)
    named = []
    for one in comparisons:
        left, right = words.sides_of(one, whole)
        named.append((f"{right} against {left}", one.main))
    console.print(_differences_table(console, "compared", named))
    differences = f"Differences are of {words.column_title(main)}, in percentage points."
    say(console, f"In brackets: 95 % intervals. {differences}", "dim")
    for text in dict.fromkeys([*whole.notes, *(text for one in comparisons for text in one.notes)]):
        note(console, text)
    for one in comparisons:
        say(console, one.main.sentence, "bold")


def print_leaderboard(console: Console, benchmark_name: str, evaluations: Sequence[Evaluation]) -> None:
    """Print a benchmark's evaluations that have scores, the best first, of equal ones the earlier."""
    ranked = words.ranked(evaluations)
    say(console, f"Leaderboard of {benchmark_name}", "bold")
    if not ranked:
        say(console, "No evaluation of it has scores yet.")
        return
    main = ranked[0].main_column
    others = list(dict.fromkeys(one.name for made in ranked if made.scores for one in made.scores.columns))
    others = [name for name in others if name != main]
    titles = [words.column_title(name) for name in others]
    wide = _is_wide(console)
    after = ("model", "when (UTC)", "evaluation") if wide else ()
    ways, differences = words.setups_of(ranked)
    asked = ("set-up",) if differences else ()
    rows = []
    for place, (made, way) in enumerate(zip(ranked, ways, strict=True), start=1):
        assert made.scores is not None
        columns = [made.scores.column(name) for name in others]
        known = [made.subject.model, words.when(made.created_at), made.id]
        cell = _with_interval(console, words.main_score(made))
        rows.append(
            [
                str(place),
                words.name_of(made) if wide else "\n".join([words.name_of(made), *known]),
                f"{cell}{', ' if wide else chr(10)}no verdict" if made.scores.withheld else cell,
                *("" if one is None else words.percent(one.value) for one in columns),
                str(made.answers_per_question),
                *([way] if asked else []),
                *(known if wide else ()),
            ]
        )
    shown = ("", "what", words.column_title(main), *titles, "answers each", *asked, *after)
    console.print(_table(console, *shown, rows=rows, left=("what", *after)))
    for sentence in differences:
        note(console, sentence)


def print_question_table(console: Console, questions: Sequence[QuestionResult], full: bool) -> None:
    """Print questions with their answers: a row each with the beginnings of texts, or, ``full``, every text whole."""
    if full:
        for one in questions:
            _print_question(console, one)
        return
    rows: list[list[str | Text]] = []
    for one in questions:
        for number, answer in enumerate(one.answers):
            asked = [str(one.question), _beginning(words.last_turn(one)), _beginning(one.ground_truth)]
            tokens = "?" if answer.tokens is None else f"{answer.tokens:,}"
            cells: list[str | Text] = [_beginning(answer.text), _outcome(answer), tokens, shown_seconds(answer.seconds)]
            rows.append([*(["", "", ""] if number else asked), *cells])
    columns = ("no.", "question", "expected", "answer", "outcome", "tokens", "latency")
    console.print(_table(console, *columns, rows=rows, left=("question", "expected", "answer", "outcome")))
    say(console, f"{counted(len(questions), 'question')}; --full shows texts whole.", "dim")


def _print_question(console: Console, one: QuestionResult) -> None:
    band = "" if one.difficulty is None else f"  difficulty {one.difficulty}"
    console.print(Text(f"\nQuestion {one.question}{visible(band)}", style="bold"))
    for turn in one.prompt:
        console.print(Text(f"{visible(turn['role']):<10}{visible(turn['content'])}"), soft_wrap=True)
    console.print(Text(f"{'expected':<10}{visible(one.ground_truth) or '(empty)'}"), soft_wrap=True)
    for answer in one.answers:
        tokens = "" if answer.tokens is None else f", {counted(answer.tokens, 'token')}"
        console.print(Text("answer    ") + _outcome(answer) + Text(f"{tokens}, {shown_seconds(answer.seconds)}"))
        console.print(Text(visible(answer.text) or "(empty)"), soft_wrap=True)


def _print_answers(console: Console, evaluation: Evaluation) -> None:
    """Print outcomes of the answers, how grading failed, lengths, latency and cost."""
    scores = evaluation.scores
    assert scores is not None
    rows = [
        (words.GROUP_TITLES[group], f"{number:,}", words.percent(share), words.GROUP_MEANINGS[group])
        for group, number, share in words.group_lines(evaluation)
    ]
    columns = ("outcome", "answers", "share", "meaning")
    console.print(_table(console, *columns, rows=rows, left=("outcome", "meaning")))
    if scores.failures:
        say(console, "Failed to grade: " + ", ".join(f"{kind} {number:,}" for kind, number in scores.failures.items()))
    if told := words.could_be(evaluation):
        note(console, told)
    length = "" if scores.mean_tokens is None else f"{scores.mean_tokens:.0f} tokens an answer on average, "
    took = f"{shown_seconds(scores.median_seconds)} until an answer was finished (median)"
    say(console, f"{length}{took}, {shown_seconds(scores.seconds)} in total")
    if scores.cost is not None and scores.cost.amount is not None:
        say(console, f"Cost {scores.cost.amount:.2f} {scores.cost.currency}")


def _table(console: Console, *columns: str, rows: Iterable[Sequence[str | Text]], left: Sequence[str]) -> Table:
    """Table with numbers on the right, and those columns in ``left`` on the left and wrapping."""
    wide = _is_wide(console)
    titles = [name if name in left or wide else _stacked(name) for name in columns]
    made = table(*titles, rows=rows, left=left, folding=left)
    for column, name in zip(made.columns, columns, strict=True):
        column.min_width = _LEAST_NAME if name == left[0] else None
    return made


def _stacked(title: str) -> str:
    return title.replace("95 %", "95%").replace(" ", "\n").replace("95%", "95 %")


def _is_wide(console: Console) -> bool:
    return console.width >= _WIDE_CHARACTERS


def _differences_table(console: Console, first: str, named: Iterable[tuple[str, Difference]]) -> Table:
    rows: list[list[str | Text]] = [
        [
            name,
            words.percent(one.left.value),
            words.percent(one.right.value),
            words.points(one.difference),
            f"{words.points(one.low)} to {words.points(one.high)}",
            f"{len(one.fixed):,}",
            f"{len(one.broken):,}",
            Text(words.VERDICT_TITLES[one.verdict], style=_VERDICT_COLORS[one.verdict]),
        ]
        for name, one in named
    ]
    columns = (first, "left", "right", "difference", "95 % interval", "fixed", "broken", "verdict")
    return _table(console, *columns, rows=rows, left=(first, "verdict"))


def _with_interval(console: Console, score: Score) -> str:
    between = " " if _is_wide(console) else "\n"
    return f"{words.percent(score.value)}{between}({100 * score.low:.1f} to {100 * score.high:.1f})"


def _outcome(answer: GivenAnswer) -> Text:
    return Text(visible(words.outcome(answer)), style=_COLORS.get(answer.group, "red"))


def _beginning(text: str) -> str:
    return shortened(" ".join(text.split()), _ROW_CHARACTERS) or "(empty)"
