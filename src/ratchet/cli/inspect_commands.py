"""``ratchet inspect``, the report card on a terminal, and the question that a run without a confirmed report asks."""

import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ratchet import service
from ratchet.cli.live import Live
from ratchet.cli.options import (
    PATH,
    SettingsCommand,
    StartOptions,
    config_argument,
    json_option,
    override_option,
    settings_of,
)
from ratchet.cli.output import console_for, emit, excerpt, note, plain, say, table
from ratchet.run.display import counted, visible
from ratchet.run.report_card import PARSE_FAILURE_WARNING, PASS_MARK, ReportCard, WorthReading
from ratchet.service import Consent, Report

_BAR_WIDTH = 40
_SHOWN_CHARACTERS = 600
# Prompts, answers and references stand beside their labels, however narrow the terminal is.
_LABEL_WIDTH, _LEAST_WIDTH = 12, 20


@click.command(cls=SettingsCommand)
@config_argument
@click.option(
    "--confirm",
    is_flag=True,
    help="Confirm that you have read it: runs with it then start without asking. It is made if there is none.",
)
@override_option
@click.option("--out", type=PATH, help="Also write the report's page to this file.")
@json_option
def inspect(
    config: Path | None, confirm: bool, override_report: str, out: Path | None, as_json: bool, flags: dict[str, str]
) -> None:
    """Sample 64 answers of the starting model, grade them, try adversarial answers on the verifier, and report.

    Takes CONFIG and flags as ratchet train does.
    """
    settings = settings_of(config, flags)
    console = console_for(as_json)
    with Live(console, None) as live:
        report = service.inspect(settings, on_progress=live.on_progress, anew=not confirm)
    if not as_json:
        print_report(console, report.card)
    if out is not None:
        service.write_page(report, out)
    confirmation = report.confirmation
    if confirm:
        confirmation = service.confirm(report, Consent("flag", override_report))

    def print_state(console: Console) -> None:
        state = (
            service.described(confirmation) if confirmation else "not confirmed: add --confirm once you have read it"
        )
        console.print(plain(f"\nThe HTML version is at {out or report.page}"))
        console.print(plain(f"Report {report.key}: {state}"))

    confirmed = confirmation.model_dump(mode="json") if confirmation else None
    fields = {"key": report.key, "folder": str(report.folder), "confirmation": confirmed}
    emit(as_json, {**fields, "report": report.card.model_dump(mode="json")}, print_state)


def confirmation(live: Live, start: StartOptions) -> Callable[[Report], Consent | None] | None:
    """How a report is confirmed: by the flag, by a question on a terminal, or, without one, not at all."""
    override = start.override_report
    if start.inspected:
        return lambda report: Consent("flag", override)
    if not (sys.stdin.isatty() and (sys.stderr if start.as_json else sys.stdout).isatty()):
        return None

    def ask(report: Report) -> Consent | None:
        with live.paused():
            print_report(live.console, report.card)
            live.console.print(plain(f"\nThe HTML version is at {report.page}"))
            if report.card.refusal and not override:
                return Consent("terminal")  # which is refused, in words
            answer = click.prompt("I have read the report. Start the run? (yes/no)", err=start.as_json)
            return Consent("terminal", override) if answer.strip().casefold() == "yes" else None

    return ask


def print_report(console: Console, card: ReportCard) -> None:
    """Print a report card. Lines break between words where the console has an end."""
    made = card.made_with
    title = f"  {visible(made.model_name)} on {visible(made.source)}, verifier {visible(made.scored_by)}\n"
    console.print(Text.assemble(("Verifier report", "bold"), title), soft_wrap=False)
    _print_numbers(console, card)
    _print_histogram(console, card)
    console.print(_probe_table(card))
    say(console, f"An answer passes if its score is above {PASS_MARK:g}.", "dim")
    for what, reason in card.probes.left_out.items():
        say(console, f"Not tried: {what} ({reason}).", "dim")
    number = len(card.worth_reading)
    console.print(plain(f"\n{counted(number, 'answer')} worth reading", "bold"))
    for one in card.worth_reading:
        _print_answer(console, one)
    # Last, where the eye is when a question follows.
    console.print()
    if card.refusal:
        note(console, card.refusal, "The run is refused.", "red")
    for sentence in card.advice:
        note(console, sentence)


def _print_answer(console: Console, one: WorthReading) -> None:
    color = "green" if one.correctness == 1 else "yellow" if one.correctness else "red"
    score = f"reward {one.reward:.2f}{f'  {visible(one.tag)}' if one.tag else ''}"
    parts = "".join(f"  {visible(name)} {value:.2f}" for name, value in one.telling_parts.items())
    head = (("\n" + one.why, "bold"), f"  prompt {one.prompt_id}  ", (score, color), f"{parts}  {one.tokens} tokens")
    console.print(Text.assemble(*head), soft_wrap=False)
    for label, text in (("Prompt", one.prompt), ("Answer", one.text), ("Reference", one.ground_truth)):
        shown = excerpt(text, _SHOWN_CHARACTERS) if text else Text("(empty)", style="dim")
        lines = shown.wrap(console, max(_LEAST_WIDTH, console.width - _LABEL_WIDTH), overflow="fold")
        for number, line in enumerate(lines):
            console.print(Text(f"{'' if number else f'  {label}':<{_LABEL_WIDTH}}") + line)


def _print_numbers(console: Console, card: ReportCard) -> None:
    more = " (64 had the same score, so 192 more were sampled)" if card.was_extended else ""
    counts = f"{card.right} right, {f'{card.partly} partly right, ' if card.partly else ''}{card.wrong} wrong"
    # With credit for parts of an answer the mean is no share of answers.
    label, of = ("Score", "on average over") if card.partly else ("Right", "of")
    lines = [
        (label, f"{card.accuracy:.1%} {of} {card.answers} answers{more}: {counts}", ""),
        ("Signal", f"{card.signal_prompts} of {len(card.scores)} prompts have answers that score differently", ""),
    ]
    for outcome in ("unparseable", "cut_off", "failed"):
        share = card.share(outcome)
        is_much = outcome == "unparseable" and share > PARSE_FAILURE_WARNING
        mark = f"  above {PARSE_FAILURE_WARNING:.0%}" if is_much else ""
        lines.append((outcome.replace("_", " ").capitalize(), f"{share:.1%}", mark))
    length = f"{card.mean_tokens:.0f} tokens on average, the longest {card.longest_tokens} of "
    lines.append(("Length", f"{length}{card.made_with.max_answer_tokens}", ""))
    for label, rate, must in (
        ("False positives", card.probes.false_positive_rate, "fail"),
        ("False negatives", card.probes.false_negative_rate, "pass"),
    ):
        text = "none tried" if rate is None else f"{rate:.1%} of adversarial answers that must {must}"
        lines.append((label, text, ""))
    for label, text, mark in lines:
        console.print(Text.assemble(f"{label:<17}{text}", (mark, "yellow")), soft_wrap=False)


def _print_histogram(console: Console, card: ReportCard) -> None:
    console.print(plain("\nRewards", "bold"))
    top = max(card.histogram)
    for step, count in enumerate(card.histogram):
        upper = "1.0]" if step == len(card.histogram) - 1 else f"{(step + 1) / 10:.1f})"
        bar = "█" * max(1, round(_BAR_WIDTH * count / top)) if count else ""
        console.print(f"[{step / 10:.1f}, {upper} {bar} {count or ''}".rstrip())
    console.print()


def _probe_table(card: ReportCard) -> Table:
    left = ("adversarial answer", "must")
    rows = []
    for one in card.probes.results:
        verdicts = Text(f"{one.wrong} of {one.tried}", style="red" if one.wrong else "")
        rows.append((one.what, "pass" if one.must_pass else "fail", verdicts, str(one.failed)))
    return table(*left, "wrong verdicts", "failed", rows=rows, left=left)
