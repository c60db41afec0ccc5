"""Has the model that is evaluated been trained on the questions? Told by the runs that its adapter comes from.

The check before a run cannot tell: a benchmark may come later than the run, and one made of another version of the
run's own data is left out there. Only rows that are equal to a question count, as ``datasets/leak_guard.py`` has it.
What a base model or an endpoint has seen, nobody here knows.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ratchet.ancestry import Ancestor, origin_of
from ratchet.config import RunConfig
from ratchet.datasets import bench_store, load
from ratchet.datasets.benchmarks import Benchmark
from ratchet.errors import IncompatibleData, NotFound, RatchetError
from ratchet.evaluation import EvaluationSpec
from ratchet.readiness.leaks import questions_among
from ratchet.run_folder import RunFolder
from ratchet.service.registry import find_run

_MOST_NAMED = 20


class Seen(NamedTuple):
    """What is known: ``withheld`` says why there can be no verdict, "" where there can; ``notes`` what is not known."""

    withheld: str = ""
    notes: tuple[str, ...] = ()


def seen(config: RunConfig, spec: EvaluationSpec, of_start_of: RunFolder | None = None) -> Seen:
    """Compare an evaluation's questions with the rows of all runs that its adapter comes from.

    Args:
        config: The settings of the evaluated model, its adapter pinned.
        spec: What is asked.
        of_start_of: The run whose own copy of its start is evaluated, which that run's record tells the origin of.
    """
    if spec.subject.kind != "adapter":
        return Seen()
    origin = _origin(config, of_start_of)
    benchmark = _questions(spec.benchmark_hash)
    asked = None if spec.only is None else frozenset(spec.only)
    found: list[str] = []
    notes: list[str] = []
    compared: set[str] = set()
    for run, one in _runs(origin, notes):
        rows = one.model_dump_json(include={"data", "reward"}) + str(one.rl.validation_prompts)
        if rows in compared:  # such as all rounds of a loop
            continue
        compared.add(rows)
        try:
            numbers = _trained_on(one, benchmark, asked)
        except RatchetError as fault:
            notes.append(f"Whether run {run} was trained on these questions cannot be told: {fault}")
            continue
        if numbers:
            found.append(_said(f"run {run}", numbers, spec.questions, "was trained on or chosen by"))
    if not found:
        return Seen(notes=tuple(notes))
    return Seen(f"{'; '.join(found)}. So no verdict is given: take a benchmark of other questions.", tuple(notes))


def refuse_shared(config: RunConfig, benchmark_hash: str) -> None:
    """Refuse to train on rows that are to be the questions afterwards.

    Args:
        config: The settings of a run, resolved.
        benchmark_hash: What it is to be judged by.

    Raises:
        IncompatibleData: some of its rows are questions, or its rows cannot be used.
        NotFound, Conflict: rows or questions are not here, or were changed.
    """
    spec = bench_store.read_spec(benchmark_hash)
    numbers = _trained_on(config, _questions(benchmark_hash), None)
    if numbers:
        raise IncompatibleData(
            f"{_said('the run', numbers, spec.questions, 'would be trained on or chosen by')}, so benchmark "
            f"{spec.name} would say nothing of it. Take a benchmark of other questions, or other rows."
        )


def _questions(benchmark_hash: str) -> Benchmark:
    return Benchmark("benchmark", bench_store.questions_file(benchmark_hash), is_asked_for=True)


def _origin(config: RunConfig, of_start_of: RunFolder | None) -> Ancestor:
    if of_start_of is not None:
        return Ancestor.model_validate(of_start_of.read_run()["start"])
    start = config.start_from
    return origin_of(Path(start.adapter or ""), start)


def _runs(origin: Ancestor, notes: list[str]) -> Iterator[tuple[str, RunConfig]]:
    """Yield the runs that an adapter comes from, the last one first; tell of where they are not known."""
    for one in origin.line():
        if not one.run:
            notes.append(
                f"What the adapter {Path(one.folder).name} was trained on is not known here, so nothing says whether "
                "it has seen these questions."
            )
            continue
        try:
            yield one.run, _folder_of(one).read_config()
        except RatchetError as fault:
            notes.append(f"Whether run {one.run} was trained on these questions cannot be told: {fault}")


def _folder_of(one: Ancestor) -> RunFolder:
    """Return the folder of an ancestor's run, which may have moved since.

    Raises:
        NotFound: it is not here any more.
    """
    try:
        found = RunFolder.at(Path(one.folder).parent)
    except NotFound:
        return find_run(one.run)
    return found if found.run_id == one.run else find_run(one.run)


def _trained_on(config: RunConfig, benchmark: Benchmark, asked: Collection[int] | None) -> list[int]:
    """Return which of the questions that are asked, None being all, were rows of a run. Errors as of ``load``."""
    rows = load(
        config.data,
        validation_prompts=config.rl.validation_prompts,
        format_kind=config.reward.format_bonus or "off",
    )
    return [number for number in questions_among(rows, benchmark) if asked is None or number in asked]


def _said(run: str, numbers: list[int], questions: int, how: str) -> str:
    named = ", ".join(f"{number:,}" for number in numbers[:_MOST_NAMED])
    more = f" and {len(numbers) - _MOST_NAMED:,} more" if len(numbers) > _MOST_NAMED else ""
    are = "is a row" if len(numbers) == 1 else "are rows"
    return f"{len(numbers):,} of the {questions:,} questions {are} that {run} {how} ({named}{more})"
