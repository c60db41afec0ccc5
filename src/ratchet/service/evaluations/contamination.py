"""Contamination: whether the evaluated adapter was trained on the questions, by the runs that it comes from.

The check before a run does not find all of it: a benchmark may be newer than the run, and one made of another version
of the run's own data is left out there. What a run has read is in its own folder, whatever became of the data since.
Only rows that are equal to a question count, as in ``datasets/leak_guard.py``. What a base model or an endpoint was
trained on is not known here.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ratchet.config import MathPairsData, RunConfig
from ratchet.datasets import Dataset, benchmark_folders, load
from ratchet.datasets.leak_guard import KEY_BYTES, equal_rows
from ratchet.datasets.reference_sets import ReferenceSet, texts
from ratchet.errors import Conflict, IncompatibleData, NotFound, RatchetError
from ratchet.evaluation.evaluation import EvaluationSpec
from ratchet.readiness.leak_checks import questions_among, same_problems
from ratchet.run.ancestry import Ancestor, origin_of
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.registry import find_run

_MOST_NAMED = 20


class Contamination(NamedTuple):
    """``withheld`` says why there can be no verdict, "" where there can; ``notes`` say what could not be checked."""

    withheld: str = ""
    notes: tuple[str, ...] = ()


def find_contamination(config: RunConfig, spec: EvaluationSpec) -> Contamination:
    """Compare an evaluation's questions with the rows of all runs that its adapter comes from.

    Args:
        config: The settings of the evaluated model, its adapter pinned.
        spec: What is asked.
    """
    if spec.subject.kind != "adapter":
        return Contamination()
    part = None if spec.only is None else frozenset(spec.only)
    found: list[str] = []
    notes: list[str] = []
    start = config.start_from
    for one in origin_of(Path(start.adapter or ""), start).line():
        if not one.run:
            notes.append(
                f"What the adapter {Path(one.folder).name} was trained on is unknown, so contamination by these "
                "questions cannot be excluded."
            )
            continue
        try:
            known = _known_to(_folder_of(one), _questions(spec.benchmark_hash))
        except RatchetError as fault:
            notes.append(f"Cannot check whether run {one.run} was trained on these questions: {fault}")
            continue
        numbers = [number for number in known if part is None or number in part]
        if numbers:
            found.append(_sentence(f"run {one.run}", numbers, spec.questions, "was trained or selected on"))
    if not found:
        return Contamination(notes=tuple(notes))
    return Contamination(f"{'; '.join(found)}. Use a benchmark of other questions.", tuple(notes))


def refuse_shared(config: RunConfig, benchmark_hashes: Sequence[str]) -> None:
    """Refuse to train on rows that are to be the questions afterwards.

    Args:
        config: The settings of a run, resolved.
        benchmark_hashes: What it is to be judged by.

    Raises:
        IncompatibleData: some of its rows are questions, or its rows cannot be used.
        NotFound, Conflict: rows or questions are not here, or were changed.
    """
    rows = _rows_of(config)
    for benchmark_hash in benchmark_hashes:
        spec = benchmark_folders.read_spec(benchmark_hash)
        numbers = questions_among(rows, _questions(benchmark_hash))
        if numbers:
            raise IncompatibleData(
                f"{_sentence('the run', numbers, spec.questions, 'would be trained or selected on')}, so "
                f"{spec.name} would be contaminated for this run. Use a benchmark of other questions, or other rows."
            )


def _questions(benchmark_hash: str) -> ReferenceSet:
    return ReferenceSet("benchmark", benchmark_folders.questions_file(benchmark_hash), is_asked_for=True)


def _folder_of(one: Ancestor) -> RunFolder:
    """Folder of an ancestor's run, which may have moved since.

    Raises:
        NotFound: it is not here any more.
    """
    try:
        found = RunFolder.at(Path(one.folder).parent)
    except NotFound:
        return find_run(one.run)
    return found if found.run_id == one.run else find_run(one.run)


def _known_to(run: RunFolder, benchmark: ReferenceSet) -> list[int]:
    """Numbers of the questions that were rows of a run, read from its own folder.

    Raises:
        Conflict: it does not say, or its files are damaged.
        IncompatibleData: the questions cannot be read.
    """
    keys = run.read_row_keys(KEY_BYTES)
    if keys is None:
        raise Conflict(f"{run.row_keys_path}, which lists its rows, is missing.")
    known = set(equal_rows(keys, texts(benchmark)))
    config = run.read_config()
    if isinstance(config.data, MathPairsData):  # the same problem may be written otherwise; made anew they are the same
        known.update(pair.other_number for pair in same_problems(_rows_of(config), [benchmark], []))
    return sorted(known)


def _rows_of(config: RunConfig) -> Dataset:
    return load(
        config.data,
        validation_prompts=config.rl.validation_prompts,
        format_kind=config.reward.format_bonus or "off",
    )


def _sentence(run: str, numbers: list[int], questions: int, how: str) -> str:
    named = ", ".join(f"{number:,}" for number in numbers[:_MOST_NAMED])
    more = f" and {len(numbers) - _MOST_NAMED:,} more" if len(numbers) > _MOST_NAMED else ""
    are = "is a row" if len(numbers) == 1 else "are rows"
    return f"{len(numbers):,} of the {questions:,} questions {are} that {run} {how} ({named}{more})"
