"""Runs on the terminal: tables of rounds, sparkline, samples, health. Rendering alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ratchet import service
from ratchet.cli.output import excerpt, note, plain, print_fields, table
from ratchet.run.records import RoundRecord, RunResult
from ratchet.run.round_lines import scored

if TYPE_CHECKING:
    from ratchet.run.health import Health
    from ratchet.service import RunSummary
    from ratchet.stats import Trend

PROMPT_CHARACTERS, ANSWER_CHARACTERS = 1000, 600
_LISTED_CHARACTERS = 50
_BARS = "▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 8
_SHARES = ("reward", "accuracy", "validation accuracy", "watch metric", "validation watch metric")


def sparkline(values: list[float]) -> str:
    """Draw shares of 0..1 as a line of bars on a fixed scale, so that two runs compare."""
    top = len(_BARS) - 1
    return "".join(_BARS[round(min(1.0, max(0.0, value)) * top)] for value in values)


def shown_score(accuracy: float | None, loss: float | None) -> str:
    """What a run is ranked by: its accuracy, without a verifier its loss; "" before there is one."""
    if accuracy is not None:
        return f"{accuracy:.1%}"
    return "" if loss is None else f"loss {loss:.4f}"


def _either(value: float | None, form: str, unknown: str = "") -> str:
    return unknown if value is None else format(value, form)


# --- rounds ----------------------------------------------------------------------------------------------------------


def rounds_table(records: Sequence[RoundRecord]) -> Table:
    """Table of rounds; ``watch`` is the watch metric on the sampled answers, where the run has one."""
    best = records[-1].best_round if records else None
    numbers = [f"{one.round} *" if one.round == best else str(one.round) for one in records]
    bold = next((row for row, one in enumerate(records) if one.round == best), None)
    if records and records[0].validation.loss is not None:
        return _losses_table(records, numbers, bold)
    is_watched = any(record.watch is not None for record in records)
    # The watch metric takes the place of the entropy, whose trend is part of the run's health.
    last = "watch" if is_watched else "entropy"
    # "unparseable" in two lines, so that the table fits 80 characters.
    columns = ("\nround", "\nvalidation", "\nreward", "\nsignal", "\ncut off", "unpar-\nseable", "\ntokens")
    rows = []
    for number, record in zip(numbers, records, strict=True):
        cells = [""] * 6
        if record.reward is not None:
            cells = [
                f"{record.reward:.3f}",
                f"{record.informative_groups}/{record.groups}",
                str(record.outcomes.get("cut_off", 0)),
                str(record.outcomes.get("unparseable", 0)),
                f"{record.answer_tokens or 0:.0f}",
                _either(record.watch if is_watched else record.entropy, ".3f", "?"),
            ]
        rows.append([number, scored(record.validation), *cells, f"{record.seconds.total:.1f}"])
    return table(*columns, f"\n{last}", "\nseconds", rows=rows, left=(), bold=bold)


def _losses_table(records: Sequence[RoundRecord], numbers: list[str], bold: int | None) -> Table:
    """Table of a run of sft or dpo: how its loss went, on the rows it trained on and on the others."""
    is_dpo = records[0].validation.margin is not None
    rows = []
    for number, record in zip(numbers, records, strict=True):
        validation, learned = record.validation, record.learned
        cells = [number, _either(validation.accuracy, ".1%"), _either(validation.loss, ".4f")]
        cells += ["", "", ""]
        if learned is not None:
            cells[3:] = [_either(learned.loss, ".4f"), str(learned.steps), _either(learned.gradient_norm, ".3f")]
        if is_dpo:
            cells += [f"{validation.margin:.3f}", f"{validation.preferred:.0%}"]
        rows.append([*cells, f"{record.seconds.total:.1f}"])
    names = ["round", "accuracy", "validation loss", "training loss", "steps", "gradient"]
    return table(*names, *(["margin", "preferred"] if is_dpo else []), "seconds", rows=rows, left=(), bold=bold)


def history_table(records: Sequence[RoundRecord]) -> Table:
    """Table of rounds, newest first, with where the time went; two lines of titles, so that it fits 80 characters."""
    with_loss = any(record.validation.loss is not None for record in records)
    columns = ["\nround", "\nreward", "valid-\nation", "learns\nfrom", "cut\noff", "unpar-\nseable", "fai-\nled"]
    columns += ["to-\nkens", "sec-\nonds", "sample grade\nupdate check"]
    if with_loss:
        columns.insert(3, "\nloss")
    best = records[-1].best_round
    newest_first = list(reversed(records))
    rows = []
    for record in newest_first:
        cells = _history_cells(record, is_best=record.round == best)
        if with_loss:
            cells.insert(3, _either(record.validation.loss, ".3f"))
        rows.append(cells)
    bold = next((row for row, one in enumerate(newest_first) if one.round == best), None)
    made = table(*columns, rows=rows, left=(), bold=bold)
    made.padding = (0, 0, 0, 1)
    return made


def _history_cells(record: RoundRecord, *, is_best: bool) -> list[str]:
    seconds = record.seconds
    cells = [f"{record.round}{' *' if is_best else ''}", _either(record.reward, ".3f")]
    cells += [_either(record.validation.accuracy, ".1%")]
    if record.groups:
        cells += [
            f"{record.informative_groups}/{record.groups}",
            str(record.outcomes.get("cut_off", 0)),
            str(record.outcomes.get("unparseable", 0)),
            str(sum(record.failures.values())),
            _either(record.answer_tokens, ".0f"),
        ]
    else:
        cells += [""] * 5
    split = (seconds.sampling, seconds.grading, seconds.update, seconds.validation)
    return [*cells, _narrow(seconds.total), " ".join(map(_narrow, split))]


def _narrow(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"


# --- a run -----------------------------------------------------------------------------------------------------------


def summary_fields(summary: "RunSummary") -> dict[str, Any]:
    """Fields of a run for JSON, also while it is running; the same ones as at its end."""
    records, ended, cost = summary.records, summary.ended, summary.cost
    return {
        "run": summary.run,
        "kind": summary.kind,
        "folder": str(summary.folder),
        "status": summary.status,
        "ending": ended.ending if ended else None,
        "rounds_done": records[-1].round if records else 0,
        "best_round": records[-1].best_round if records else None,
        "start_accuracy": records[0].validation.accuracy if records else None,
        "best_accuracy": records[-1].best_accuracy if records else None,
        "start_loss": records[0].validation.loss if records else None,
        "best_loss": records[records[-1].best_round].validation.loss if records else None,
        "heldout_before": summary.heldout_before,
        "heldout_after": summary.heldout_after,
        "start": summary.start.model_dump(mode="json") if summary.start else None,
        "seconds": ended.seconds if ended else None,
        **({} if cost is None else {"cost": cost, "currency": summary.config.limits.currency}),
    }


def _print_curve(console: Console, records: Sequence[RoundRecord]) -> None:
    known = [record.validation.accuracy for record in records if record.validation.accuracy is not None]
    if known:
        console.print(f"Validation by round  {sparkline(known)}")


def print_result(console: Console, result: RunResult, records: list[RoundRecord]) -> None:
    """Print how a run went and ended."""
    console.print()
    console.print(rounds_table(records))
    is_rl = records[0].validation.loss is None
    signal = "; signal: groups whose answers scored differently, which the model learns from" if is_rl else ""
    console.print(f"* the best round, whose adapter is kept{signal}")
    _print_curve(console, records)
    if result.highest_reward is not None:
        of = "a correct answer" if result.highest_reward == 1 else "a correct answer without the format bonus"
        console.print(f"Highest reachable reward: {result.highest_reward:.2f} ({of})")
    if result.heldout_before is not None and result.heldout_after is not None:
        heldout = f"Held-out problems: {result.heldout_before:.1%} before, {result.heldout_after:.1%} after"
        console.print(plain(heldout, "bold"))
    console.print(plain(result.message))
    if result.cost is not None:
        console.print(plain(f"Cost: {result.cost:.2f} {result.currency or ''}"))
    console.print(plain(f"Run {result.run} in {result.folder}"))


def print_summary(console: Console, summary: "RunSummary") -> None:
    """Print what is known of a run."""
    console.print(Text.assemble((f"Run {summary.run}", "bold"), f"  {summary.status.replace('_', ' ')}"))
    fields = [("Folder", str(summary.folder)), ("Created", summary.created_at), ("Model", summary.config.model)]
    fields += [("Data", summary.config.data.source)]
    for number, one in enumerate(summary.start.line() if summary.start else ()):
        fields += [("" if number else "Starts", f"from {one.words}")]
    if summary.config.objective != "rl":
        fields += [("Learns", f"{summary.config.objective}, from given answers")]
    if summary.report is not None:
        fields += [("Report", f"{service.described(summary.report)}, key {summary.report.key}")]
    print_fields(console, [*fields, *(("Note", text) for text in summary.notes)], _LABEL_WIDTH)
    if summary.records:
        console.print(rounds_table(summary.records))
        _print_curve(console, summary.records)
    if summary.heldout_before is not None:
        after = "" if summary.heldout_after is None else f", {summary.heldout_after:.1%} after"
        console.print(f"Held-out problems: {summary.heldout_before:.1%} before{after}")
    if summary.cost is not None:
        console.print(plain(f"Cost so far: {summary.cost:.2f} {summary.config.limits.currency}"))
    if summary.ended:
        console.print(plain(summary.ended.message))
    elif summary.status == "interrupted":
        console.print(f"The run was interrupted. Resume with: ratchet resume {summary.run}")


def print_health(console: Console, health: "Health") -> None:
    """Print diagnoses and trends."""
    for one in health.diagnoses:
        note(console, f"{one.evidence} {one.remedy}", f"{one.title}.", "bold red")
    if health.too_early:
        console.print(Text(health.too_early, style="dim"), soft_wrap=False)
    elif not health.diagnoses:
        console.print("Health   nothing found")
    for name, trend in health.trends.items():
        console.print(_trend_line(name, trend), markup=False, highlight=False)


def _trend_line(name: str, trend: "Trend") -> str:
    """A curve's line: where it began and ended, which way it went, and its peak."""

    def shown(value: float) -> str:
        if name in _SHARES:
            return f"{value:.1%}"
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3f}"

    went = f"{shown(trend.early)} -> {shown(trend.late)}"
    peak = f"peak {shown(trend.peak)} in round {trend.peak_round}"
    return f"{name[0].upper() + name[1:]:<24} {trend.direction:<8} {went:<18} {peak}"


# --- samples ---------------------------------------------------------------------------------------------------------


def print_samples(console: Console, title: str, rows: list[dict[str, Any]], *, opened: int, full: bool) -> None:
    """Print a round's samples: the first ``opened`` prompts with every answer, the others in one line each."""
    console.print(Text.assemble((f"Samples of {title}", "bold"), f": {len(rows)} prompts"))
    for row in rows[:opened]:
        _print_prompt(console, row, full)
    closed = rows[opened:]
    if closed:
        more = (f"\n{len(closed)} more prompts", "bold")
        console.print(Text.assemble(more, f" (open them with --prompts {len(rows)})"))
        for row in closed:
            line = excerpt(" ".join(row["prompt"][-1]["content"].split()), _LISTED_CHARACTERS)
            mean = float(sum(answer["reward"] for answer in row["answers"]) / len(row["answers"]))
            console.print(Text.assemble(f"Prompt {row['prompt_id']:<6} {mean:.2f} mean reward  ", line))
    if not full and any(_is_cut(row) for row in rows[:opened]):
        console.print("\nLong texts are shortened; --full shows all of them.")


def _print_prompt(console: Console, row: dict[str, Any], full: bool) -> None:
    *before, last = row["prompt"]
    of_prompt, of_answer = (None, None) if full else (PROMPT_CHARACTERS, ANSWER_CHARACTERS)
    content = excerpt(last["content"], of_prompt)
    console.print(Text.assemble("\n", (f"Prompt {row['prompt_id']}", "bold"), "  ", content))
    for message in before:
        role = plain(f"  {message['role']!s:<9}", "dim")
        console.print(Text.assemble(role, " ", excerpt(message["content"], of_prompt)))
    console.print(Text.assemble("Reference  ", excerpt(row["ground_truth"], of_answer)))
    for number, answer in enumerate(row["answers"], start=1):
        color = "green" if answer["correctness"] == 1 else "red"
        console.print(Text.assemble((f"{number:>2}  {answer['reward']:.2f}", color), "  ", plain(_tags(answer))))
        console.print(Text.assemble("    ", excerpt(answer["text"], of_answer)))


def _tags(answer: dict[str, Any]) -> str:
    """Outcome, failure and the numbers that the score was made of."""
    tags = [str(answer["outcome"]).replace("_", " ")]
    if answer.get("failure"):
        tags[0] += f" ({answer['failure']})"
    tags.append(f"correctness {answer['correctness']:.2f}")
    if answer.get("format"):
        tags.append(f"format {answer['format']:.2f}")
    tags += [f"{name.replace('_', ' ')} {value:.2f}" for name, value in (answer.get("parts") or {}).items()]
    if "tokens" in answer:
        tags.append(f"{answer['tokens']} tokens")
    return ", ".join(tags)


def _is_cut(row: dict[str, Any]) -> bool:
    answers = any(len(answer["text"]) > ANSWER_CHARACTERS for answer in row["answers"])
    return answers or any(len(message["content"]) > PROMPT_CHARACTERS for message in row["prompt"])


def print_changed(console: Console, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Print held-out problems with the answers before and after training."""
    console.print(plain("\nHeld-out problems, before and after", "bold"))
    for before, after in pairs:
        question = excerpt(before["prompt"][-1]["content"], PROMPT_CHARACTERS)
        reference = excerpt(f"reference {before['ground_truth']}", ANSWER_CHARACTERS, "dim")
        console.print(Text.assemble("\n", question, "   ", reference))
        for label, row in (("before", before), ("after", after)):
            answer = row["answers"][0]
            color, mark = ("green", "right") if answer["correctness"] == 1 else ("red", "wrong")
            mark = mark if answer["outcome"] == "graded" else answer["outcome"].replace("_", " ")
            text = excerpt(answer["text"], ANSWER_CHARACTERS)
            console.print(Text.assemble(f"  {label:<7}", (mark, color), "  ", text))
