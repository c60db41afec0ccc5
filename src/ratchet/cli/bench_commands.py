"""``ratchet bench add | list | show | remove``."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.cli import leaderboard_commands
from ratchet.cli.data_commands import pairs
from ratchet.cli.flags import SettingsCommand, given
from ratchet.cli.grade_commands import config_option
from ratchet.cli.train_commands import json_option
from ratchet.errors import NotFound

if TYPE_CHECKING:
    from ratchet.config import RunConfig
    from ratchet.evaluation.benchmark import BenchmarkSpec, Harness
    from ratchet.run.records import Prompt
    from ratchet.service.evaluations.benchmarks import AddedBenchmark, ListedBenchmark, StoredBenchmark

_DIGITS = 12
_NAME = "NAME"
_AS_RUN = "as the evaluated model's own run"


def bench() -> click.Command:
    """Return the group."""
    return click.Group(
        "bench",
        help="Keep benchmarks: questions that nobody trains on, how they are asked and checked.",
        commands=[*commands(), *leaderboard_commands.commands()],
    )


def commands() -> list[click.Command]:
    """Return the commands of the group."""
    return [
        _add_command(),
        click.Command("list", callback=_list, help="List all benchmarks.", params=[json_option()]),
        click.Command(
            "show",
            callback=_show,
            help="Show a benchmark: how it asks, what checks the answers, what is reported.",
            params=[
                click.Argument([_NAME.lower()], metavar=_NAME),
                click.Option(
                    ["--questions", "count"],
                    type=click.IntRange(min=0, max=100_000),
                    default=0,
                    metavar="N",
                    help="Show the first N questions too.",
                ),
                json_option(),
            ],
        ),
        click.Command(
            "remove",
            callback=_remove,
            help="Remove a benchmark. Evaluations on it stay.",
            params=[click.Argument([_NAME.lower()], metavar=_NAME), json_option()],
        ),
    ]


def _add_command() -> click.Command:
    return SettingsCommand(
        "add",
        callback=_add,
        settings=("verifier", "reward"),
        further_names={"verifier.kind": "--verifier"},
        help="Make a benchmark of SOURCE: a dataset NAME or NAME@VERSION, by its test rows and with a verifier; a "
        "bundle, which is a folder or .zip with benchmark.yaml; or math-pairs, gsm8k or math-500. A right answer must "
        "pass on its questions and an empty one must not, else it is refused.",
        params=[
            click.Argument(["source"]),
            click.Option(["--name"], help="Name of the benchmark; needed for a dataset."),
            click.Option(["--description"], help="A sentence on it (dataset)."),
            config_option(),
            click.Option(["--system-prompt"], help="System prompt that always goes with it (dataset)."),
            click.Option(
                ["--worked-examples"],
                metavar="LIST",
                help="Solved examples shown first, [{user, assistant}] (dataset).",
            ),
            click.Option(
                ["--max-answer-tokens"],
                type=click.IntRange(min=16, max=32_768),
                help=f"The longest answer; {_AS_RUN} if left out (dataset).",
            ),
            click.Option(["--main"], metavar="COLUMN", help="Score column to go by; accuracy if left out (dataset)."),
            click.Option(
                ["--set", "settings"],
                multiple=True,
                metavar="KEY=VALUE",
                help="math-pairs: pairs, smallest, largest, seed or heldout. Can be repeated.",
            ),
            click.Option(["--path"], help="gsm8k, math-500: a folder with test.jsonl, or a file, instead of the hub."),
            click.Option(["--revision"], help="gsm8k, math-500: branch, tag or commit on the hub."),
            json_option(),
        ],
        context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    )


def _add(source: str, name: str | None, as_json: bool, **parameters: Any) -> None:
    from ratchet.datasets.bundle import is_bundle
    from ratchet.service.evaluations import benchmarks

    if source in benchmarks.BUILT_INS:
        _refuse_others(parameters, "built-in benchmark", ("settings", "path", "revision"))
        added = benchmarks.add_built_in(
            source,
            {key: _number(text) for key, text in pairs(parameters["settings"], "--set").items()},
            path=parameters["path"],
            revision=parameters["revision"],
            name=name,
        )
    elif is_bundle(Path(source)):
        _refuse_others(parameters, "bundle, which says it in benchmark.yaml", ())
        added = benchmarks.add_bundle(Path(source), name)
    elif "/" in source or Path(source).is_dir():
        raise NotFound(f"There is no bundle in {source}: no such folder or .zip, or none with a benchmark.yaml.")
    else:
        added = _of_dataset(source, name, parameters)
    if as_json:
        told = {"is_new": added.is_new, "notes": list(added.notes)}
        click.echo(json.dumps({**_fields(added.benchmark), **told}))
        return
    _print_added(added)


def _of_dataset(source: str, name: str | None, parameters: dict[str, Any]) -> "AddedBenchmark":
    from ratchet.evaluation.benchmark import Harness
    from ratchet.service.evaluations import benchmarks

    own = ("description", "config", "system_prompt", "worked_examples", "max_answer_tokens", "main")
    _refuse_others(parameters, "dataset", (*own, *given(parameters)))
    if name is None:
        raise click.UsageError("Give --name, what the benchmark is to be called.")
    settings = _settings(parameters)
    prompt, examples = settings.prompt, settings.prompt.worked_examples
    if isinstance(examples, int) and examples:
        raise click.UsageError("--worked-examples is a number; list them, [{user: ..., assistant: ...}].")
    choices = benchmarks.Choices(
        harness=Harness(
            system_prompt=prompt.system_prompt,
            worked_examples=None if isinstance(examples, int) else examples,
        ),
        reward=settings.reward,
        max_answer_tokens=parameters["max_answer_tokens"],
        main=parameters["main"],
        description=parameters["description"] or "",
    )
    return benchmarks.add_dataset(name, source, settings.verifier, choices)


def _settings(parameters: dict[str, Any]) -> "RunConfig":
    """Return verifier, reward and prompt as they are given, in a run's settings or by flags; not filled in."""
    from ratchet.config.config_text import build, read_file

    flags = given(parameters)
    for key in ("system_prompt", "worked_examples"):
        if parameters[key] is not None:
            flags[f"prompt.{key}"] = parameters[key]
    return build(read_file(parameters["config"]) if parameters["config"] else {}, flags)


def _refuse_others(parameters: dict[str, Any], what: str, own: Sequence[str]) -> None:
    """Refuse options that do not go with what a benchmark is made of, instead of passing over them."""
    settings = given(parameters)
    for name, value in parameters.items():
        key = name.replace("__", ".")
        if value in (None, ()) or name in own or key in own:
            continue
        shown = f"--{(key if key in settings else name).replace('_', '-')}"
        raise click.UsageError(f"{shown if name != 'settings' else '--set'} does not go with a {what}. Leave it out.")


def _number(text: str) -> Any:
    """Return a whole number that a text is; any other text as it stands, for the settings to refuse."""
    try:
        return int(text)
    except ValueError:
        return text


def _print_added(added: "AddedBenchmark") -> None:
    from rich.markup import escape

    from ratchet.cli.console import console_for

    console = console_for(as_json=False)
    spec = added.benchmark.spec
    kept = "Added" if added.is_new else "Already there:"
    console.print(f"{kept} [bold]{escape(spec.name)}[/bold]  {spec.questions:,} questions of {escape(spec.origin)}")
    console.print(f"Scores {', '.join(spec.score_columns)}")
    for note in added.notes:
        console.print(f"[yellow]Note:[/yellow] {escape(note)}")


def _list(as_json: bool) -> None:
    from ratchet.service.evaluations import benchmarks

    found = benchmarks.list_benchmarks()
    names = {one.name for one in found}
    further = [name for name in benchmarks.BUILT_INS if name not in names]
    if as_json:
        click.echo(json.dumps({"benchmarks": [_listed(one) for one in found], "built_in": further}))
        return
    if found:
        _print_list(found)
    if further:
        click.echo(f"Built in, made when first used: {', '.join(further)}.")


def _print_list(found: "Sequence[ListedBenchmark]") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from ratchet.cli.console import console_for

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("benchmark", "questions", "verifier", "scores", "content", "created", "from"):
        table.add_column(column, no_wrap=column not in ("from", "scores"), overflow="fold")
    for one in found:
        end = [one.content_hash[:_DIGITS], f"{one.created_at:%Y-%m-%d %H:%M}"]
        if one.spec is None:
            cells = [one.name, "?", "?", "?", *end, one.problem]
        else:
            spec = one.spec
            cells = [
                one.name,
                f"{spec.questions:,}",
                _verifier_name(spec),
                ", ".join(spec.score_columns),
                *end,
                spec.origin,
            ]
        table.add_row(*map(escape, cells))
    console_for(as_json=False).print(table)


def _show(name: str, count: int, as_json: bool) -> None:
    from ratchet.service.evaluations import benchmarks

    found, prompts = benchmarks.show(name, count)
    if as_json:
        click.echo(json.dumps({**_fields(found), "first_questions": [_question(one) for one in prompts]}))
        return
    from rich.markup import escape

    from ratchet.cli.console import console_for
    from ratchet.run.display import visible, whole

    console = console_for(as_json)
    for label, value in _rows(found).items():
        console.print(f"[bold]{label:<15}[/bold] {escape(visible(whole(value)))}")
    for prompt in prompts:
        console.print(f"\n[bold]Question {prompt.id}[/bold]")
        for message in prompt.messages:
            console.print(f"{message['role']}: {escape(visible(whole(message['content'])))}", style="none")
        console.print(f"expected: {escape(visible(whole(prompt.ground_truth)))}")


def _rows(found: "StoredBenchmark") -> dict[str, str]:
    spec = found.spec
    difficulty = {"number": "bands of their numbers", "label": "bands by their words", "none": "no column difficulty"}
    longest = f"{spec.max_answer_tokens:,} tokens" if spec.max_answer_tokens else f"{_AS_RUN}, else 512 tokens"
    form = spec.reward.format_bonus
    rows = {
        "Benchmark": spec.name,
        "Description": spec.description,
        "Made of": f"{spec.origin} ({spec.source.replace('_', '-')})",
        "Questions": f"{spec.questions:,}; {difficulty[spec.difficulty]}",
        "System prompt": _prompt_of(spec.harness, spec.usual),
        "Examples": _examples_of(spec.harness, spec.usual),
        "Longest answer": longest,
        "Verifier": _verifier_name(spec),
        "Read": spec.verifier.read or f"{_AS_RUN}, else whole",
        "Form": form or f"{_AS_RUN}, else as usual for the verifier",
        "Scores": ", ".join(spec.score_columns),
        "Content": found.content_hash,
        "Created": f"{found.created_at:%Y-%m-%d %H:%M} UTC",
    }
    return {label: value for label, value in rows.items() if value}


def _prompt_of(own: "Harness", usual: "Harness") -> str:
    if own.system_prompt is not None:
        return own.system_prompt or "none"
    return f"{_AS_RUN}, else: {usual.system_prompt or 'none'}"


def _examples_of(own: "Harness", usual: "Harness") -> str:
    if own.worked_examples is not None:
        return f"{len(own.worked_examples)} of its own"
    return f"{_AS_RUN}, else {len(usual.worked_examples or ()) or 'none'}"


def _verifier_name(spec: "BenchmarkSpec") -> str:
    from ratchet.config import CustomVerifier

    is_custom = isinstance(spec.verifier, CustomVerifier)
    return spec.verifier.title.removeprefix("Verifier ") if not is_custom else f"custom: {spec.verifier.title}"


def _remove(name: str, as_json: bool) -> None:
    from ratchet.service.evaluations import benchmarks

    questions_gone = benchmarks.remove(name)
    if as_json:
        click.echo(json.dumps({"removed": name, "questions_removed": questions_gone}))
    else:
        kept = "" if questions_gone else " Its questions stay, since there are evaluations on it."
        click.echo(f"Removed {name}.{kept}")


def _listed(one: "ListedBenchmark") -> dict[str, Any]:
    from ratchet.service.evaluations.benchmarks import StoredBenchmark

    if one.spec is not None:
        return _fields(StoredBenchmark(one.spec, one.content_hash, one.created_at))
    return {"name": one.name, "content_hash": one.content_hash, "problem": one.problem}


def _fields(found: "StoredBenchmark") -> dict[str, Any]:
    """Return what machines are told of a benchmark."""
    return {
        **found.spec.model_dump(mode="json"),
        "content_hash": found.content_hash,
        "created_at": found.created_at.isoformat(timespec="seconds"),
    }


def _question(prompt: "Prompt") -> dict[str, Any]:
    return {
        "question": prompt.id,
        "prompt": list(prompt.messages),
        "ground_truth": prompt.ground_truth,
        **prompt.extras,
    }
