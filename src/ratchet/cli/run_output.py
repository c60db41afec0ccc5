"""A finished or running run on the terminal: table of rounds, sparkline, samples. Rendering alone."""

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ratchet.cli.sample_output import ANSWER_CHARACTERS, PROMPT_CHARACTERS, shown
from ratchet.run.records import RoundRecord, RunResult
from ratchet.run.round_lines import scored
from ratchet.service import RunSummary, described
from ratchet.service.data.datasets import DatasetDetails

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float]) -> str:
    """Draw shares of 0..1 as a line of bars on a fixed scale, so that two runs compare."""
    top = len(_BARS) - 1
    return "".join(_BARS[round(min(1.0, max(0.0, value)) * top)] for value in values)


def rounds_table(records: list[RoundRecord]) -> Table:
    """Return the table of rounds; ``watch`` is the watch metric on the sampled answers, where the run has one."""
    if records and records[0].validation.loss is not None:
        return _losses_table(records)
    # Plain and narrow: nine columns must fit 80 characters.
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    is_watched = any(record.watch is not None for record in records)
    # The watch metric takes the place of the entropy, whose trend is part of the run's health.
    last = "watch" if is_watched else "entropy"
    for column in ("round", "validation", "reward", "signal", "cut off", "unparsed", "tokens", last, "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for record in records:
        best = record.round == record.best_round
        number = f"{record.round} *" if best and record.round == records[-1].best_round else str(record.round)
        cells = [number, scored(record.validation)]
        if record.reward is None:
            cells += [""] * 6
        else:
            shown = record.watch if is_watched else record.entropy
            cells += [
                f"{record.reward:.3f}",
                f"{record.informative_groups}/{record.groups}",
                str(record.outcomes.get("cut_off", 0)),
                str(record.outcomes.get("unparseable", 0)),
                f"{record.answer_tokens or 0:.0f}",
                "?" if shown is None else f"{shown:.3f}",
            ]
        cells.append(f"{record.seconds.total:.1f}")
        table.add_row(*cells, style="bold" if number.endswith("*") else None)
    return table


def _losses_table(records: list[RoundRecord]) -> Table:
    """Return the table of a run of sft or dpo: how its loss went, on the rows it trained on and on the others."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    is_dpo = records[0].validation.margin is not None
    names = ["round", "accuracy", "validation loss", "training loss", "steps", "gradient"]
    for column in [*names, *(["margin", "preferred"] if is_dpo else []), "seconds"]:
        table.add_column(column, justify="right")
    for record in records:
        validation, learned = record.validation, record.learned
        kept = record.round == records[-1].best_round
        cells = [f"{record.round} *" if kept else str(record.round)]
        cells += ["" if validation.accuracy is None else f"{validation.accuracy:.1%}", f"{validation.loss:.4f}"]
        cells += ["" if learned is None or learned.loss is None else f"{learned.loss:.4f}"]
        cells += ["" if learned is None else str(learned.steps)]
        cells += ["" if learned is None or learned.gradient_norm is None else f"{learned.gradient_norm:.3f}"]
        if is_dpo:
            cells += [f"{validation.margin:.3f}", f"{validation.preferred:.0%}"]
        table.add_row(*cells, f"{record.seconds.total:.1f}", style="bold" if kept else None)
    return table


def accuracies(records: Sequence[RoundRecord]) -> list[float]:
    """Return the validation accuracy of each round; none where no verifier graded."""
    return [record.validation.accuracy for record in records if record.validation.accuracy is not None]


def summary_fields(summary: RunSummary) -> dict[str, Any]:
    """Return what machines are told of a run, also while it goes on; the same fields as at its end."""
    records, ended, cost = summary.records, summary.ended or {}, summary.cost
    return {
        "run": summary.run,
        "kind": summary.kind,
        "folder": str(summary.folder),
        "status": summary.status,
        "ending": ended.get("ending"),
        "rounds_done": records[-1].round if records else 0,
        "best_round": records[-1].best_round if records else None,
        "start_accuracy": records[0].validation.accuracy if records else None,
        "best_accuracy": records[-1].best_accuracy if records else None,
        "start_loss": records[0].validation.loss if records else None,
        "best_loss": records[records[-1].best_round].validation.loss if records else None,
        "heldout_before": summary.heldout_before,
        "heldout_after": summary.heldout_after,
        "start": summary.start.model_dump(mode="json") if summary.start else None,
        "seconds": ended.get("seconds"),
        **({} if cost is None else {"cost": cost, "currency": summary.config.limits.currency}),
    }


def print_result(console: Console, result: RunResult, records: list[RoundRecord]) -> None:
    """Print how a run went and ended."""
    console.print()
    console.print(rounds_table(records))
    is_rl = records[0].validation.loss is None
    signal = "; signal: groups whose answers scored differently, which teach something" if is_rl else ""
    console.print(f"* the round that is kept{signal}")
    if known := accuracies(records):
        console.print(f"Validation by round  {sparkline(known)}")
    if result.highest_reward is not None:
        told = "a right answer" if result.highest_reward == 1 else "a right answer without the format bonus"
        console.print(f"Highest reachable reward: {result.highest_reward:.2f} ({told})")
    if result.heldout_before is not None and result.heldout_after is not None:
        console.print(
            f"[bold]Held-out problems: {result.heldout_before:.1%} before, {result.heldout_after:.1%} after[/bold]"
        )
    console.print(escape(result.message))
    if result.cost is not None:
        console.print(f"Cost: {result.cost:.2f} {escape(result.currency or '')}")
    console.print(f"Run {result.run} in {escape(result.folder)}")


def print_changed(console: Console, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Print held-out problems with the answers before and after training."""
    console.print("\n[bold]Held-out problems, before and after[/bold]")
    for before, after in pairs:
        question = before["prompt"][-1]["content"]
        reference = shown(before["ground_truth"], ANSWER_CHARACTERS, full=False)
        console.print(f"\n{shown(question, PROMPT_CHARACTERS, full=False)}   [dim]reference {reference}[/dim]")
        for label, row in (("before", before), ("after", after)):
            answer = row["answers"][0]
            color, mark = ("green", "right") if answer["correctness"] == 1 else ("red", "wrong")
            mark = mark if answer["outcome"] == "graded" else answer["outcome"].replace("_", " ")
            console.print(
                f"  {label:<7}[{color}]{mark}[/{color}]  {shown(answer['text'], ANSWER_CHARACTERS, full=False)}"
            )


def print_summary(console: Console, summary: RunSummary) -> None:
    """Print what is known of a run."""
    _print_origin(console, summary)
    if summary.records:
        console.print(rounds_table(list(summary.records)))
        if known := accuracies(summary.records):
            console.print(f"Validation by round  {sparkline(known)}")
    if summary.heldout_before is not None:
        after = "" if summary.heldout_after is None else f", {summary.heldout_after:.1%} after"
        console.print(f"Held-out problems: {summary.heldout_before:.1%} before{after}")
    if summary.cost is not None:
        console.print(f"Cost so far: {summary.cost:.2f} {escape(summary.config.limits.currency)}")
    if summary.ended:
        console.print(escape(str(summary.ended["message"])))
    elif summary.status == "interrupted":
        console.print(f"The run was cut short. Go on with it: ratchet resume {summary.run}")


def _print_origin(console: Console, summary: RunSummary) -> None:
    """Print what a run was made of."""
    console.print(f"[bold]Run {summary.run}[/bold]  {summary.status.replace('_', ' ')}")
    console.print(f"Folder   {escape(str(summary.folder))}")
    console.print(f"Created  {summary.created_at}")
    console.print(f"Model    {escape(summary.config.model)}")
    console.print(f"Data     {summary.config.data.source}")
    for number, one in enumerate(summary.start.line() if summary.start else ()):
        console.print(f"{'' if number else 'Starts':<9}from {escape(one.words)}")
    if summary.config.objective != "rl":
        console.print(f"Learns   {summary.config.objective}, from given answers")
    if summary.report is not None:
        console.print(f"Report   {escape(described(summary.report))}, key {summary.report.key}")
    for note in summary.notes:
        console.print(f"Note     {escape(note)}")


def print_dataset(console: Console, details: DatasetDetails) -> None:
    """Print what is known of a version of a dataset, and some of its rows."""
    summary = details.summary
    console.print(f"[bold]{summary.name}@{summary.version}[/bold]  {summary.format}")
    console.print(f"Content  {summary.content_hash}")
    console.print(f"Created  {summary.created_at:%Y-%m-%d %H:%M} UTC")
    console.print(f"From     {escape(summary.origin)}")
    columns = ", ".join(f"{ours} = {theirs}" for ours, theirs in summary.column_map.items())
    console.print(f"Columns  {escape(columns)}")
    console.print("Splits   " + ("as given" if summary.seed is None else f"drawn by seed {summary.seed}"))
    for note in summary.notes:
        console.print(f"Note     {escape(note)}")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("characters", "rows", "of prompts: median", "longest", "of ground truths: median", "longest"):
        table.add_column(column, justify="left" if column == "characters" else "right", no_wrap=True)
    for split, record in details.splits.items():
        lengths = (record.prompt.median, record.prompt.longest, record.ground_truth.median, record.ground_truth.longest)
        table.add_row(split, f"{record.rows:,}", *(f"{length:,}" for length in lengths))
    console.print(table)
    for split, rows in details.preview.items():
        for row in rows:
            console.print(f"[bold]{split}, row {row['row']}[/bold]")
            for message in row["prompt"]:
                console.print(f"  {message['role']:<9}  {shown(message['content'], PROMPT_CHARACTERS, full=False)}")
            for name in ("ground_truth", "rejected"):
                if name in row:
                    label = "reference" if name == "ground_truth" else name
                    console.print(f"  {label:<9}  {shown(row[name], ANSWER_CHARACTERS, full=False)}")
