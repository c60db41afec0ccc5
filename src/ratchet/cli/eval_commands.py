"""``ratchet eval``: start an evaluation, go on with one, list, show and stop them, read their questions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli import EXIT_TASK, tell
from ratchet.cli.flags import SettingsCommand, given
from ratchet.cli.train_commands import json_option, queue_option
from ratchet.errors import RatchetError
from ratchet.evaluation.evaluation import CHANGEABLE

if TYPE_CHECKING:
    from ratchet.cli.live import Live
    from ratchet.config import EndpointSettings
    from ratchet.evaluation.evaluation import Evaluation


def eval() -> click.Command:
    """Return the group."""
    return click.Group(
        "eval",
        help="Score a model, an adapter or an endpoint on a benchmark; go on with it, list, show, stop.",
        commands=[
            _start(),
            click.Command(
                "resume",
                callback=_resume,
                help="Go on with an evaluation that was killed or stopped.",
                params=[click.Argument(["evaluation"]), queue_option(), json_option()],
            ),
            click.Command(
                "list",
                callback=_list,
                help="List evaluations, newest last.",
                params=[
                    click.Option(["--benchmark"], metavar="NAME", help="Only those on this benchmark."),
                    click.Option(["--project"], metavar="LABEL", help="Only those with this project label."),
                    json_option(),
                ],
            ),
            click.Command(
                "show",
                callback=_show,
                help="Show an evaluation: scores with intervals, bands, and what became of the answers.",
                params=[
                    click.Argument(["evaluation"]),
                    click.Option(["--report"], type=click.Path(path_type=Path), help="Write a page to this file."),
                    json_option(),
                ],
            ),
            click.Command(
                "questions",
                callback=_questions,
                help="Read the questions with their answers, those that went wrong first.",
                params=[
                    click.Argument(["evaluation"]),
                    click.Option(["--full"], is_flag=True, help="Do not shorten long texts."),
                    click.Option(
                        ["--failures", "out"],
                        type=click.Path(path_type=Path),
                        help="Write the rows that were not answered right to this JSONL file; ratchet data add makes a "
                        "dataset of it.",
                    ),
                    json_option(),
                ],
            ),
            click.Command(
                "stop",
                callback=_stop,
                help="Stop an evaluation; what is answered is kept.",
                params=[click.Argument(["evaluation"]), json_option()],
            ),
        ],
    )


def _start() -> click.Command:
    return SettingsCommand(
        "start",
        settings=CHANGEABLE,
        callback=_evaluate,
        help="Evaluate SUBJECT on a benchmark. SUBJECT is a run (its kept adapter), an adapter's folder, or a model's "
        "name or folder; with --endpoint, what to call the endpoint's model. Of a run, the prompt, the reading and the "
        "longest answer are the run's.",
        params=[
            click.Argument(["subject"], required=False, default=""),
            click.Option(["--benchmark", "-b"], metavar="NAME", help="See ratchet bench list."),
            click.Option(
                ["--like"],
                metavar="EVALUATION",
                help="The same questions in the same way as an evaluation that is there, in place of --benchmark.",
            ),
            click.Option(
                ["--start", "of_start"], is_flag=True, help="Of a run: what it started from, asked as the run."
            ),
            click.Option(["--merged", "is_merged"], is_flag=True, help="The model's folder is a merged one."),
            click.Option(
                ["--answers"],
                type=click.IntRange(1, 64),
                help="Answers per question: 1, if left out, is greedy; more are sampled, for pass@k.",
            ),
            click.Option(["--name"], default="", help="A name of your own."),
            click.Option(["--project"], metavar="LABEL", help="Project label; that of the run if left out."),
            click.Option(["--endpoint"], metavar="URL", help="Ask this OpenAI-compatible endpoint (ends in /v1)."),
            click.Option(["--endpoint-model"], metavar="NAME", help="The endpoint's name for the model."),
            click.Option(
                ["--endpoint-setting", "endpoint_settings"],
                multiple=True,
                metavar="KEY=VALUE",
                help="More of the endpoint: concurrency, timeout_seconds, attempts, api_key_env, "
                "price_per_million_prompt_tokens, price_per_million_answer_tokens, currency and more. May be repeated.",
            ),
            queue_option(),
            json_option(),
        ],
        context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    )


def _evaluate(  # noqa: PLR0913 - one parameter for each option
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
    **parameters: Any,
) -> int:
    from ratchet.service.evaluations import evaluations
    from ratchet.service.evaluations.evaluation_setup import Request

    asked = _endpoint(endpoint, endpoint_model, endpoint_settings)
    if not subject and asked is None:
        raise click.UsageError("Name what to evaluate: a run, an adapter's folder, a model, or --endpoint URL.")
    if (like is None) == (benchmark is None):
        raise click.UsageError("Name a benchmark with --benchmark, or an evaluation to ask alike with --like.")
    if like is not None and answers is not None:
        raise click.UsageError("--answers does not go with --like, which asks for as many. Leave it out.")
    request = Request(
        subject=subject,
        benchmark=benchmark or "",
        of_start=of_start,
        is_merged=is_merged,
        answers=answers or 1,
        changes=given(parameters),
        endpoint=asked,
        name=name,
        project=project,
    )
    if like is not None:
        request = evaluations.as_asked(request, like)
    if queue:
        from ratchet.cli.starting import tell_queued

        return tell_queued(evaluations.queue_evaluation(request), as_json=as_json)
    return _carry_out(lambda live: evaluations.evaluate(request, watch=live.watch), as_json=as_json)


def _endpoint(url: str | None, model: str | None, further: tuple[str, ...]) -> "EndpointSettings | None":
    if url is None:
        if model is not None or further:
            raise click.UsageError("--endpoint-model and --endpoint-setting go with --endpoint URL.")
        return None
    if model is None:
        raise click.UsageError("Name the endpoint's model with --endpoint-model.")
    from ratchet.config import EndpointSettings
    from ratchet.config.section_text import build_section

    values = {"url": url, "model": model}
    for one in further:
        key, sign, value = one.partition("=")
        if not sign:
            raise click.UsageError("--endpoint-setting is written KEY=VALUE, such as concurrency=8.")
        values[key.strip()] = value
    return build_section(EndpointSettings, values)


def _resume(evaluation: str, queue: bool, as_json: bool) -> int:
    from ratchet.service.evaluations import evaluations

    if queue:
        from ratchet.cli.starting import tell_queued

        return tell_queued(evaluations.queue_evaluation_again(evaluation), as_json=as_json)
    return _carry_out(lambda live: evaluations.resume_evaluation(evaluation, watch=live.watch), as_json=as_json)


def _carry_out(work: Callable[["Live"], "Evaluation"], *, as_json: bool) -> int:
    """Make an evaluation while showing it, then print what it found; 0 if it completed."""
    from ratchet.cli.console import console_for
    from ratchet.cli.evaluation_tables import print_evaluation
    from ratchet.cli.live import Live

    console = console_for(as_json, of_a_run=True)
    with Live(console, None) as live:
        try:
            evaluation = work(live)
        except RatchetError:
            if live.run is not None:
                console.print(f"What is answered is kept. Go on with it: ratchet eval resume {live.run}", markup=False)
            raise
    if as_json:
        tell(json.dumps(evaluation.model_dump(mode="json")))
    if evaluation.scores is None:
        console.print(evaluation.message, markup=False)
    else:
        print_evaluation(console, evaluation)
    return 0 if evaluation.status == "completed" else EXIT_TASK


def _list(benchmark: str | None, project: str | None, as_json: bool) -> None:
    from ratchet.service.evaluations import evaluations

    found = [one.evaluation for one in evaluations.list_evaluations(benchmark, project)]
    if as_json:
        click.echo(json.dumps({"evaluations": [one.model_dump(mode="json") for one in found]}))
        return
    if not found:
        click.echo("No evaluations yet. Start one with ratchet eval start." if not (benchmark or project) else "None.")
        return
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from ratchet.cli.console import console_for

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("evaluation", "status", "benchmark", "of", "model", "answers", "score", "95 % interval"):
        table.add_column(column, no_wrap=column != "model", overflow="fold")
    for one in found:
        main = one.scores.columns[0] if one.scores else None
        score, interval = ("", "") if main is None else (f"{main.value:.1%}", f"{main.low:.1%} to {main.high:.1%}")
        cells = [one.id, one.status.replace("_", " "), one.benchmark, one.name or one.subject.name, one.subject.model]
        table.add_row(*map(escape, [*cells, str(one.answers_per_question), score, interval]))
    console_for(as_json).print(table)


def _show(evaluation: str, report: Path | None, as_json: bool) -> None:
    from ratchet.service.evaluations import evaluations

    found = evaluations.find_evaluation(evaluation)
    if report is not None:
        from ratchet.service.reports.evaluation_page import evaluation_page

        write_page(evaluation_page(found, evaluations.questions_of(evaluation)), report)
    if as_json:
        click.echo(json.dumps(found.model_dump(mode="json")))
        return
    from ratchet.cli.console import console_for
    from ratchet.cli.evaluation_tables import print_evaluation

    console = console_for(as_json)
    print_evaluation(console, found)
    if found.scores is None:
        console.print(f"Status   {found.status.replace('_', ' ')}. {found.message}".rstrip(), markup=False)
    if report is not None:
        console.print(f"Report   {report}", markup=False)


def write_page(page: str, path: Path) -> None:
    """Write a page of the user's own texts, readable by them alone.

    Raises:
        Conflict: it cannot be written there.
    """
    from ratchet.files import unusable_as_error, write_atomically
    from ratchet.run.display import whole

    with unusable_as_error(path, "Choose another file."):
        write_atomically(path, whole(page).encode(), private=True)


def _questions(evaluation: str, full: bool, out: Path | None, as_json: bool) -> None:
    from ratchet.service.evaluations import evaluations

    found = evaluations.questions_of(evaluation)
    written = None
    if out is not None:
        written = evaluations.write_failures(evaluation, out)
    if as_json:
        rows = [one.model_dump(mode="json") for one in found]
        click.echo(json.dumps({"evaluation": evaluation, "questions": rows, "written": written}))
        return
    from ratchet.cli.console import console_for

    console = console_for(as_json)
    if written is not None:
        console.print(f"{written:,} questions that were not answered right are in {out}.", markup=False)
        console.print(f"Make a dataset of them: ratchet data add {out} --name NAME", markup=False)
        return
    from ratchet.cli.evaluation_tables import print_question_table

    print_question_table(console, found, full)


def _stop(evaluation: str, as_json: bool) -> None:
    from ratchet import service

    became = service.stop(evaluation)
    if as_json:
        click.echo(json.dumps({"evaluation": evaluation, "stop": became}))
    else:
        words = "Taken out of the queue." if became == "cancelled" else "Asked to stop; what is answered is kept."
        click.echo(words)
