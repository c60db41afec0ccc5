"""``ratchet bench``: add, list, show and remove benchmarks; their leaderboards, and the power of their questions."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ratchet.cli.evaluation_tables import print_leaderboard
from ratchet.cli.options import (
    VERIFIER_FLAGS,
    SettingsCommand,
    config_option,
    json_option,
    pairs,
    project_option,
)
from ratchet.cli.output import emit, note, plain, print_fields, table
from ratchet.config import CustomVerifier, RunConfig
from ratchet.config.config_text import build, read_file
from ratchet.datasets.bundle import is_bundle
from ratchet.errors import NotFound
from ratchet.evaluation.benchmark import BenchmarkSpec, Harness
from ratchet.run.display import whole
from ratchet.run.records import Prompt
from ratchet.service.evaluations import benchmarks
from ratchet.service.evaluations.benchmarks import AddedBenchmark, ListedBenchmark, StoredBenchmark, plan_power
from ratchet.service.evaluations.evaluation_catalogue import leaderboard as ranked_evaluations

_DIGITS = 12
_AS_RUN = "as the evaluated model's own run"
_name = click.argument("name", metavar="NAME")


@click.group
def bench() -> None:
    """Manage benchmarks: questions that are never trained on, how they are asked and graded."""


@bench.command(cls=SettingsCommand, **VERIFIER_FLAGS)
@click.argument("source")
@click.option("--name", help="Name of the benchmark; needed for a dataset.")
@click.option("--description", help="A sentence on it (dataset).")
@config_option
@click.option("--system-prompt", help="System prompt that always goes with it (dataset).")
@click.option("--few-shot-examples", metavar="LIST", help="Few-shot examples, [{user, assistant}] (dataset).")
@click.option(
    "--max-answer-tokens",
    type=click.IntRange(min=16, max=32_768),
    help=f"Max answer tokens; {_AS_RUN} if left out (dataset).",
)
@click.option("--main", metavar="COLUMN", help="Main score column; accuracy if left out (dataset).")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="math-pairs: pairs, smallest, largest, seed or heldout. Repeatable.",
)
@click.option("--path", help="gsm8k, math-500: a folder with test.jsonl, or a file, instead of the hub.")
@click.option("--revision", help="gsm8k, math-500: branch, tag or commit on the hub.")
@json_option
def add(source: str, name: str | None, as_json: bool, flags: dict[str, str], **chosen: Any) -> None:
    """Make a benchmark of SOURCE.

    SOURCE is a dataset NAME or NAME@VERSION, by its test rows and with a verifier; a bundle, which is a folder or .zip
    with benchmark.yaml; or math-pairs, gsm8k or math-500. It is refused unless the verifier accepts the references of
    its questions and rejects empty answers.
    """
    if source in benchmarks.BUILT_INS:
        _refuse_others(chosen, flags, "built-in benchmark", ("settings", "path", "revision"))
        settings = {key: _number(text) for key, text in pairs(chosen["settings"], "--set").items()}
        places = {"path": chosen["path"], "revision": chosen["revision"]}
        added = benchmarks.add_built_in(source, settings, **places, name=name)
    elif is_bundle(Path(source)):
        _refuse_others(chosen, flags, "bundle, whose benchmark.yaml has the settings", ())
        added = benchmarks.add_bundle(Path(source), name)
    elif "/" in source or Path(source).is_dir():
        raise NotFound(f"There is no bundle in {source}: no such folder or .zip, or none with a benchmark.yaml.")
    else:
        added = _add_dataset(source, name, chosen, flags)
    fields = {**_fields(added.benchmark), "is_new": added.is_new, "notes": list(added.notes)}
    emit(as_json, fields, lambda console: _print_added(console, added))


def _add_dataset(source: str, name: str | None, chosen: dict[str, Any], flags: dict[str, str]) -> AddedBenchmark:
    own = ("description", "config", "system_prompt", "few_shot_examples", "max_answer_tokens", "main")
    _refuse_others(chosen, {}, "dataset", own)
    if name is None:
        raise click.UsageError("Give --name, the name of the benchmark.")
    settings = _settings(chosen, flags)
    prompt, examples = settings.prompt, settings.prompt.few_shot_examples
    if isinstance(examples, int) and examples:
        raise click.UsageError("--few-shot-examples is a number; list them, [{user: ..., assistant: ...}].")
    choices = benchmarks.Choices(
        harness=Harness(
            system_prompt=prompt.system_prompt,
            worked_examples=None if isinstance(examples, int) else examples,
        ),
        reward=settings.reward,
        max_answer_tokens=chosen["max_answer_tokens"],
        main=chosen["main"],
        description=chosen["description"] or "",
    )
    return benchmarks.add_dataset(name, source, settings.verifier, choices)


def _settings(chosen: dict[str, Any], flags: dict[str, str]) -> RunConfig:
    """Verifier, reward and prompt as they are given, in a run's settings or by flags; not filled in."""
    prompt = {f"prompt.{key}": chosen[key] for key in ("system_prompt", "few_shot_examples") if chosen[key] is not None}
    return build(read_file(chosen["config"]) if chosen["config"] else {}, {**flags, **prompt})


def _refuse_others(chosen: dict[str, Any], flags: dict[str, str], what: str, own: Sequence[str]) -> None:
    """Refuse options that do not go with the source of a benchmark, instead of ignoring them."""
    given = [name for name, value in chosen.items() if value not in (None, ()) and name not in own]
    for name in [*flags, *given]:
        shown = f"--{name.replace('_', '-')}" if name != "settings" else "--set"
        raise click.UsageError(f"{shown} does not go with a {what}. Leave it out.")


def _number(text: str) -> Any:
    """A text as a whole number, or unchanged for the settings to refuse."""
    try:
        return int(text)
    except ValueError:
        return text


def _print_added(console: Console, added: AddedBenchmark) -> None:
    spec = added.benchmark.spec
    label = "Added" if added.is_new else "Already there:"
    text = plain(f"{label} ") + plain(spec.name, "bold") + plain(f"  {spec.questions:,} questions of {spec.origin}")
    console.print(text)
    console.print(f"Scores {', '.join(spec.score_columns)}")
    for one in added.notes:
        note(console, one)


@bench.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List all benchmarks."""
    found = benchmarks.list_benchmarks()
    names = {one.name for one in found}
    further = [name for name in benchmarks.BUILT_INS if name not in names]

    def print_all(console: Console) -> None:
        if found:
            columns = ("benchmark", "questions", "verifier", "scores", "content", "created", "from")
            console.print(table(*columns, rows=map(_listed_cells, found), folding=("from", "scores")))
        if further:
            console.print(f"Built in, made when first used: {', '.join(further)}.")

    emit(as_json, {"benchmarks": [_listed_fields(one) for one in found], "built_in": further}, print_all)


def _listed_cells(one: ListedBenchmark) -> list[str]:
    end = [one.content_hash[:_DIGITS], f"{one.created_at:%Y-%m-%d %H:%M}"]
    if one.spec is None:
        return [one.name, "?", "?", "?", *end, one.problem]
    spec = one.spec
    scores = ", ".join(spec.score_columns)
    return [one.name, f"{spec.questions:,}", _verifier_name(spec), scores, *end, spec.origin]


@bench.command
@_name
@click.option(
    "--questions",
    "count",
    type=click.IntRange(min=0, max=100_000),
    default=0,
    metavar="N",
    help="Show the first N questions too.",
)
@json_option
def show(name: str, count: int, as_json: bool) -> None:
    """Show a benchmark: how it asks, what grades the answers, what is reported."""
    found, prompts = benchmarks.show(name, count)

    def print_all(console: Console) -> None:
        print_fields(console, ((label, whole(value)) for label, value in _rows(found).items()), 17)
        for prompt in prompts:
            console.print(plain(f"\nQuestion {prompt.id}", "bold"))
            for message in prompt.messages:
                console.print(plain(whole(f"{message['role']}: {message['content']}")))
            console.print(plain(whole(f"expected: {prompt.ground_truth}")))

    emit(as_json, {**_fields(found), "first_questions": [_question(one) for one in prompts]}, print_all)


def _rows(found: StoredBenchmark) -> dict[str, str]:
    spec = found.spec
    difficulty = {"number": "bands of their numbers", "label": "bands by their words", "none": "no column difficulty"}
    longest = f"{spec.max_answer_tokens:,}" if spec.max_answer_tokens else f"{_AS_RUN}, else 512"
    form = spec.reward.format_bonus
    rows = {
        "Benchmark": spec.name,
        "Description": spec.description,
        "Made of": f"{spec.origin} ({spec.source.replace('_', '-')})",
        "Questions": f"{spec.questions:,}; {difficulty[spec.difficulty]}",
        "System prompt": _prompt_of(spec.harness, spec.usual),
        "Examples": _examples_of(spec.harness, spec.usual),
        "Max answer tokens": longest,
        "Verifier": _verifier_name(spec),
        "Extract from": spec.verifier.read or f"{_AS_RUN}, else whole",
        "Format": form or f"{_AS_RUN}, else as usual for the verifier",
        "Scores": ", ".join(spec.score_columns),
        "Content": found.content_hash,
        "Created": f"{found.created_at:%Y-%m-%d %H:%M} UTC",
    }
    return {label: value for label, value in rows.items() if value}


def _prompt_of(own: Harness, usual: Harness) -> str:
    if own.system_prompt is not None:
        return own.system_prompt or "none"
    return f"{_AS_RUN}, else: {usual.system_prompt or 'none'}"


def _examples_of(own: Harness, usual: Harness) -> str:
    if own.worked_examples is not None:
        return f"{len(own.worked_examples)} of its own"
    return f"{_AS_RUN}, else {len(usual.worked_examples or ()) or 'none'}"


def _verifier_name(spec: BenchmarkSpec) -> str:
    is_custom = isinstance(spec.verifier, CustomVerifier)
    return spec.verifier.title.removeprefix("Verifier ") if not is_custom else f"custom: {spec.verifier.title}"


@bench.command
@_name
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove a benchmark. Evaluations on it stay."""
    questions_gone = benchmarks.remove(name)
    kept = "" if questions_gone else " Its questions stay, because there are evaluations on it."
    emit(as_json, {"removed": name, "questions_removed": questions_gone}, f"Removed {name}.{kept}")


@bench.command
@click.argument("name")
@project_option
@json_option
def leaderboard(name: str, project: str | None, as_json: bool) -> None:
    """Show a benchmark's evaluations, the best first."""
    ranked = ranked_evaluations(name, project)
    fields = {"benchmark": name, "evaluations": [one.model_dump(mode="json") for one in ranked]}
    emit(as_json, fields, lambda console: print_leaderboard(console, name, ranked))


@bench.command
@click.option("--gain", type=float, required=True, metavar="POINTS", help="The gain, in points.")
@click.option("--base", type=float, default=50.0, metavar="PERCENT", help="How often the model is right (50).")
@click.option("--questions", type=int, metavar="N", help="The power of this many questions.")
@click.option("--benchmark", "-b", metavar="NAME", help="The power of this benchmark's questions.")
@json_option
def power(gain: float, base: float, questions: int | None, benchmark: str | None, as_json: bool) -> None:
    """Compute how many questions it takes to detect a gain."""
    plan = plan_power(gain, base, questions, benchmark)
    text = (
        f"Detecting a gain of {gain:g} points over {base:g} percent in four of five evaluations takes about "
        f"{plan.needed:,} questions; {plan.needed_at_worst:,} if the two models' correct answers are independent."
    )
    if plan.questions is not None and plan.chance is not None:
        smallest = f" The smallest detectable gain is about {100 * (plan.smallest or 0):.1f} points."
        text += f"\nWith {plan.questions:,} questions it is detected in {plan.chance:.0%} of evaluations."
        text += "" if plan.smallest is None else smallest
    emit(as_json, asdict(plan), text)


def _listed_fields(one: ListedBenchmark) -> dict[str, Any]:
    if one.spec is not None:
        return _fields(StoredBenchmark(one.spec, one.content_hash, one.created_at))
    return {"name": one.name, "content_hash": one.content_hash, "problem": one.problem}


def _fields(found: StoredBenchmark) -> dict[str, Any]:
    return {
        **found.spec.model_dump(mode="json"),
        "content_hash": found.content_hash,
        "created_at": found.created_at.isoformat(timespec="seconds"),
    }


def _question(prompt: Prompt) -> dict[str, Any]:
    return {
        "question": prompt.id,
        "prompt": list(prompt.messages),
        "ground_truth": prompt.ground_truth,
        **prompt.extras,
    }
