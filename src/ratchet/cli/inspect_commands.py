"""``ratchet inspect``, the report card on a terminal, and the question that a run without a confirmed report asks."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli.flags import SettingsCommand
from ratchet.cli.train_commands import json_option, override_option, settings_of
from ratchet.run.display import shortened, visible
from ratchet.run.report_card import PARSE_FAILURE_WARNING, PASS_MARK, ProbeResult, ReportCard, WorthReading

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ratchet.cli.live import Live
    from ratchet.service import Consent, Report

_BAR_WIDTH = 40
_SHOWN_CHARACTERS = 600
# Prompts, answers and references stand beside their labels, however narrow the terminal is.
_LABEL_WIDTH, _LEAST_WIDTH = 12, 20


def inspect() -> click.Command:
    """Return the command."""
    return SettingsCommand(
        "inspect",
        callback=_inspect,
        help="Sample 64 answers of the starting model, grade them, try made-up answers on the verifier, and report. "
        "Takes CONFIG and flags as ratchet train does.",
        params=[
            click.Argument(["config"], required=False, type=click.Path(path_type=Path)),
            click.Option(
                ["--confirm"],
                is_flag=True,
                help="Say that you have read it: runs with it start unasked. It is made where there is none yet.",
            ),
            override_option(),
            click.Option(["--out"], type=click.Path(path_type=Path), help="Also write the report's page to this file."),
            json_option(),
        ],
        context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    )


def _inspect(
    config: Path | None, confirm: bool, override_report: str, out: Path | None, as_json: bool, **parameters: Any
) -> None:
    from rich.markup import escape

    from ratchet import service
    from ratchet.cli.console import console_for
    from ratchet.cli.live import Live

    settings = settings_of(config, parameters)
    console = console_for(as_json)
    with Live(console, None) as live:
        report = service.inspect(settings, on_progress=live.watch.on_progress, anew=not confirm)
    if not as_json:
        print_report(console, report.card)
    if out is not None:
        service.write_page(report, out)
    confirmation = report.confirmation
    if confirm:
        confirmation = service.confirm(report, service.Consent("flag", override_report))
    if as_json:
        confirmed = confirmation.model_dump(mode="json") if confirmation else None
        fields = {"key": report.key, "folder": str(report.folder), "confirmation": confirmed}
        click.echo(json.dumps({**fields, "report": report.card.model_dump(mode="json")}))
        return
    console.print(f"\nAs a page: {escape(str(out or report.page))}")
    state = service.described(confirmation) if confirmation else "not confirmed: add --confirm once you have read it"
    console.print(f"Report {report.key}: {escape(state)}")


def asking(
    live: "Live", *, inspected: bool, override: str, as_json: bool
) -> "Callable[[Report], Consent | None] | None":
    """Return how a report is confirmed: by the flag, by a question on a terminal, or, without one, not at all."""
    from ratchet.service import Consent

    if inspected:
        return lambda report: Consent("flag", override)
    if not (sys.stdin.isatty() and (sys.stderr if as_json else sys.stdout).isatty()):
        return None

    def ask(report: "Report") -> Consent | None:
        with live.paused():
            print_report(live.console, report.card)
            live.console.print(f"\nAs a page: {visible(str(report.page))}", markup=False)
            if report.card.refusal and not override:
                return Consent("terminal")  # which is refused, in words
            answer = click.prompt("Have you read it, and shall the run start? (yes/no)", err=as_json)
            return Consent("terminal", override) if answer.strip().casefold() == "yes" else None

    return ask


def print_report(console: "Console", card: ReportCard) -> None:
    """Print a report card. Lines break between words where the console has an end."""
    from rich.text import Text

    made = card.made_with
    title = f"  {visible(made.model_name)} on {visible(made.source)}, verifier {visible(made.scored_by)}\n"
    console.print(Text.assemble(("Verifier report", "bold"), title), soft_wrap=False)
    _print_numbers(console, card)
    _print_histogram(console, card)
    console.print(_probe_table(card))
    remarks = [f"An answer passes that scores more than {PASS_MARK:g}."]
    remarks += [f"Not tried: {what} ({reason})." for what, reason in card.probes.left_out.items()]
    for remark in remarks:
        console.print(Text(remark, style="dim"), soft_wrap=False)
    number = len(card.worth_reading)
    console.print(f"\n[bold]{number} {'answer' if number == 1 else 'answers'} worth reading[/bold]")
    for one in card.worth_reading:
        _print_answer(console, one)
    # Last, where the eye is when a question follows.
    console.print()
    if card.refusal:
        console.print(Text.assemble(("A run is refused.", "red"), f" {card.refusal}"), soft_wrap=False)
    for sentence in card.advice:
        console.print(Text.assemble(("Note:", "yellow"), f" {sentence}"), soft_wrap=False)


def _print_answer(console: "Console", one: WorthReading) -> None:
    from rich.text import Text

    color = "green" if one.correctness == 1 else "yellow" if one.correctness else "red"
    score = f"reward {one.reward:.2f}{f'  {visible(one.tag)}' if one.tag else ''}"
    parts = "".join(f"  {visible(name)} {value:.2f}" for name, value in one.telling_parts.items())
    head = (("\n" + one.why, "bold"), f"  prompt {one.prompt_id}  ", (score, color), f"{parts}  {one.tokens} tokens")
    console.print(Text.assemble(*head), soft_wrap=False)
    for label, text in (("Prompt", one.prompt), ("Answer", one.text), ("Reference", one.ground_truth)):
        shown = Text(shortened(visible(text), _SHOWN_CHARACTERS)) if text else Text("(empty)", style="dim")
        lines = shown.wrap(console, max(_LEAST_WIDTH, console.width - _LABEL_WIDTH), overflow="fold")
        for number, line in enumerate(lines):
            console.print(Text(f"{'' if number else f'  {label}':<{_LABEL_WIDTH}}") + line)


def _print_numbers(console: "Console", card: ReportCard) -> None:
    more = " (64 scored alike, so 192 more were drawn)" if card.was_extended else ""
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
        lines.append((label, "none tried" if rate is None else f"{rate:.1%} of made-up answers that must {must}", ""))
    for label, text, mark in lines:
        console.print(f"{label:<17}{text}[yellow]{mark}[/yellow]", soft_wrap=False)


def _print_histogram(console: "Console", card: ReportCard) -> None:
    console.print("\n[bold]Rewards[/bold]")
    top = max(card.histogram)
    for step, count in enumerate(card.histogram):
        upper = "1.0]" if step == len(card.histogram) - 1 else f"{(step + 1) / 10:.1f})"
        bar = "█" * max(1, round(_BAR_WIDTH * count / top)) if count else ""
        console.print(f"[{step / 10:.1f}, {upper} {bar} {count or ''}".rstrip(), markup=False)
    console.print()


def _probe_table(card: ReportCard) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("made-up answer", "must", "wrong verdicts", "failed"):
        table.add_column(column, justify="left" if column in ("made-up answer", "must") else "right", no_wrap=True)
    for result in card.probes.results:
        table.add_row(result.what, "pass" if result.must_pass else "fail", _verdicts(result), str(result.failed))
    return table


def _verdicts(result: ProbeResult) -> str:
    text = f"{result.wrong} of {result.tried}"
    return f"[red]{text}[/red]" if result.wrong else text
