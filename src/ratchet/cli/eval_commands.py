"""``ratchet eval``: start, resume, list, show and stop evaluations, read their questions; ``ratchet compare``."""

import json
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from ratchet import service
from ratchet.cli.evaluation_tables import print_evaluation, print_question_table, print_side_by_side
from ratchet.cli.faults import EXIT_TASK, tell
from ratchet.cli.live import Live
from ratchet.cli.options import (
    PATH,
    SettingsCommand,
    chart_option,
    json_option,
    project_option,
    queue_option,
    report_option,
)
from ratchet.cli.output import console_for, emit, plain, table, write_page
from ratchet.cli.starting import tell_queued
from ratchet.config import EndpointSettings
from ratchet.config.config_text import build_section
from ratchet.errors import RatchetError
from ratchet.evaluation.evaluation import CHANGEABLE, Evaluation
from ratchet.service.evaluations import evaluation_catalogue, evaluations
from ratchet.service.evaluations.evaluation_catalogue import compare_evaluations
from ratchet.service.evaluations.evaluation_setup import Request
from ratchet.service.reports.evaluation_page import comparison_page, evaluation_page
from ratchet.service.reports.evaluation_plots import write_comparison_chart

_evaluation = click.argument("evaluation")


@click.group
def eval() -> None:
    """Score a model, an adapter or an endpoint on a benchmark; resume, list, show and stop evaluations."""


@eval.command(cls=SettingsCommand, settings=CHANGEABLE)
@click.argument("subject", required=False, default="")
@click.option("--benchmark", "-b", metavar="NAME", help="See ratchet bench list.")
@click.option(
    "--like",
    metavar="EVALUATION",
    help="Ask the same questions in the same way as this evaluation, in place of --benchmark.",
)
@click.option("--start", "of_start", is_flag=True, help="Of a run: what it started from, asked as the run.")
@click.option("--merged", "is_merged", is_flag=True, help="The model's folder is a merged one.")
@click.option(
    "--answers",
    type=click.IntRange(1, 64),
    help="Answers per question: 1, the default, is greedy; more are sampled, for pass@k.",
)
@click.option("--name", default="", help="A name of your own.")
@click.option("--project", metavar="LABEL", help="Project label; by default the run's.")
@click.option("--endpoint", metavar="URL", help="Ask this OpenAI-compatible endpoint (ends in /v1).")
@click.option("--endpoint-model", metavar="NAME", help="The endpoint's name for the model.")
@click.option(
    "--endpoint-setting",
    "endpoint_settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Further settings of the endpoint: concurrency, timeout_seconds, attempts, api_key_env, "
    "price_per_million_prompt_tokens, price_per_million_answer_tokens, currency and more. Repeatable.",
)
@queue_option
@json_option
def start(  # noqa: PLR0913 - one parameter for each option
    subject: str,
    benchmark: str | None,
    like: str | None,
    of_start: bool,
    is_merged: bool,
    answers: int | None,
    name: str,
    project: str | None,
    endpoint: str | None,
    endpoint_model: str | None,
    endpoint_settings: tuple[str, ...],
    queue: bool,
    as_json: bool,
    flags: dict[str, str],
) -> int:
    """Evaluate SUBJECT on a benchmark.

    SUBJECT is a run (its best adapter), an adapter's folder, or a model's name or folder; with --endpoint, what to call
    the endpoint's model. For a run, the prompt, the extraction of answers and the max answer tokens are the run's.
    """
    asked = _endpoint(endpoint, endpoint_model, endpoint_settings)
    if not subject and asked is None:
        raise click.UsageError("Name what to evaluate: a run, an adapter's folder, a model, or --endpoint URL.")
    if (like is None) == (benchmark is None):
        raise click.UsageError("Name a benchmark with --benchmark, or an evaluation to repeat with --like.")
    if like is not None and answers is not None:
        raise click.UsageError("--answers does not go with --like, which uses the same number. Leave it out.")
    request = Request(
        subject=subject,
        benchmark=benchmark or "",
        of_start=of_start,
        is_merged=is_merged,
        answers=answers or 1,
        changes=flags,
        endpoint=asked,
        name=name,
        project=project,
    )
    if like is not None:
        request = evaluations.request_like(request, like)
    if queue:
        return tell_queued(evaluations.queue_evaluation(request), as_json=as_json)
    return _carry_out(lambda live: evaluations.evaluate(request, listeners=[live.listener]), as_json=as_json)


def _endpoint(url: str | None, model: str | None, further: tuple[str, ...]) -> EndpointSettings | None:
    if url is None:
        if model is not None or further:
            raise click.UsageError("--endpoint-model and --endpoint-setting go with --endpoint URL.")
        return None
    if model is None:
        raise click.UsageError("Name the endpoint's model with --endpoint-model.")
    values = {"url": url, "model": model}
    for one in further:
        key, sign, value = one.partition("=")
        if not sign:
            raise click.UsageError("--endpoint-setting is written KEY=VALUE, such as concurrency=8.")
        values[key.strip()] = value
    return build_section(EndpointSettings, values)


@eval.command
@_evaluation
@queue_option
@json_option
def resume(evaluation: str, queue: bool, as_json: bool) -> int:
    """Resume an evaluation that was killed or stopped."""
    if queue:
        return tell_queued(evaluations.queue_evaluation_again(evaluation), as_json=as_json)
    return _carry_out(
        lambda live: evaluations.resume_evaluation(evaluation, listeners=[live.listener]), as_json=as_json
    )


def _carry_out(work: Callable[[Live], Evaluation], *, as_json: bool) -> int:
    """Make an evaluation while showing it, then print what it found; 0 if it completed."""
    console = console_for(as_json, of_a_run=True)
    with Live(console, None) as live:
        try:
            evaluation = work(live)
        except RatchetError:
            if live.run is not None:
                console.print(plain(f"The answers so far are kept. Resume with: ratchet eval resume {live.run}"))
            raise
    if as_json:
        tell(json.dumps(evaluation.model_dump(mode="json")))
    if evaluation.scores is None:
        console.print(plain(evaluation.message))
    else:
        print_evaluation(console, evaluation)
    return 0 if evaluation.status == "completed" else EXIT_TASK


@eval.command("list")
@click.option("--benchmark", metavar="NAME", help="Only those on this benchmark.")
@project_option
@json_option
def list_(benchmark: str | None, project: str | None, as_json: bool) -> None:
    """List evaluations, newest last."""
    found = [one.evaluation for one in evaluation_catalogue.list_evaluations(benchmark, project)]
    columns = ("evaluation", "status", "benchmark", "of", "model", "answers", "score", "95 % interval")
    none = "No evaluations yet. Start one with ratchet eval start." if not (benchmark or project) else "None."
    shown = table(*columns, rows=map(_listed_cells, found), folding=("model",)) if found else none
    emit(as_json, {"evaluations": [one.model_dump(mode="json") for one in found]}, shown)


def _listed_cells(one: Evaluation) -> list[str]:
    main = one.scores.columns[0] if one.scores else None
    score, interval = ("", "") if main is None else (f"{main.value:.1%}", f"{main.low:.1%} to {main.high:.1%}")
    cells = [one.id, one.status.replace("_", " "), one.benchmark, one.name or one.subject.name, one.subject.model]
    return [*cells, str(one.answers_per_question), score, interval]


@eval.command
@_evaluation
@report_option
@json_option
def show(evaluation: str, report: Path | None, as_json: bool) -> None:
    """Show an evaluation: scores with intervals, bands, and the outcomes of the answers."""
    found = evaluation_catalogue.find_evaluation(evaluation)
    if report is not None:
        write_page(evaluation_page(found, evaluation_catalogue.questions_of(evaluation)), report)

    def print_all(console: Console) -> None:
        print_evaluation(console, found)
        if found.scores is None:
            console.print(plain(f"Status   {found.status.replace('_', ' ')}. {found.message}".rstrip()))
        if report is not None:
            console.print(plain(f"Report   {report}"))

    emit(as_json, found.model_dump(mode="json"), print_all)


@eval.command
@_evaluation
@click.option("--full", is_flag=True, help="Do not shorten long texts.")
@click.option(
    "--failures",
    "out",
    type=PATH,
    help="Write the rows that were not answered correctly to this JSONL file; ratchet data add makes a dataset of it.",
)
@json_option
def questions(evaluation: str, full: bool, out: Path | None, as_json: bool) -> None:
    """Read the questions with their answers, the wrong ones first."""
    found = evaluation_catalogue.questions_of(evaluation)
    written = None if out is None else evaluation_catalogue.write_failures(evaluation, out)

    def print_all(console: Console) -> None:
        if written is None:
            print_question_table(console, found, full)
            return
        console.print(plain(f"{written:,} questions that were not answered correctly are in {out}."))
        console.print(plain(f"Make a dataset of them: ratchet data add {out} --name NAME"))

    rows = [one.model_dump(mode="json") for one in found]
    emit(as_json, {"evaluation": evaluation, "questions": rows, "written": written}, print_all)


@eval.command
@_evaluation
@json_option
def stop(evaluation: str, as_json: bool) -> None:
    """Stop an evaluation; the answers so far are kept."""
    became = service.stop(evaluation)
    words = "Removed from the queue." if became == "cancelled" else "Stop requested; the answers so far are kept."
    emit(as_json, {"evaluation": evaluation, "stop": became}, words)


@click.command
@click.argument("evaluations", nargs=-1, required=True, metavar="EVALUATION EVALUATION...")
@report_option
@chart_option
@json_option
def compare(evaluations: tuple[str, ...], report: Path | None, chart: Path | None, as_json: bool) -> None:
    """Compare evaluations question by question.

    The first is the baseline of the others; LABEL=ID gives one a name, such as base=e1 SFT=e2 RL=e3.
    """
    both, questions = compare_evaluations(evaluations)
    emit(as_json, both.model_dump(mode="json"), lambda console: print_side_by_side(console, both))
    console = console_for(as_json)
    if report is not None:
        write_page(comparison_page(both, questions), report)
        console.print(plain(f"Report   {report}"))
    if chart is not None:
        write_comparison_chart(both, chart)
        console.print(plain(f"Chart    {chart}"))
