"""The leak guard, applied to a run's dataset: no row that is trained on may be scored on."""

from collections.abc import Iterable, Iterator, Sequence

from ratchet.datasets import Dataset
from ratchet.datasets.leak_guard import (
    NEAR_JACCARD,
    SHINGLE_WORDS,
    Leak,
    Leaks,
    RowText,
    equal_rows,
    find_leaks,
    row_keys,
)
from ratchet.datasets.math_pairs_source import ProblemClass, problem_class
from ratchet.datasets.reference_sets import ReferenceSet, text_of, texts
from ratchet.datasets.rows import MOST_NAMED_ROWS
from ratchet.errors import IncompatibleData
from ratchet.run.records import Prompt

# Its problems are short and made to differ as problems, which the guard, comparing texts, could not tell. Those of a
# benchmark with other numbers or another seed need not differ from them: ``same_problems`` tells.
DISJOINT_BY_THEMSELVES = ("math_pairs",)
TRAINING, VALIDATION = "training", "validation"


def leaks_of(
    dataset: Dataset, own_test: ReferenceSet | None, benchmarks: Sequence[ReferenceSet], notes: list[str]
) -> Leaks:
    """Compare the rows that a run reads with one another, with the test rows of its own data and with benchmarks.

    Args:
        dataset: The rows of the run.
        own_test: The test rows of its data, if there are any.
        benchmarks: What else is scored on.
        notes: Collects files that cannot be used and that nobody asked for: they stop no run.

    Raises:
        IncompatibleData: a file that was asked for cannot be used.
    """
    data = [*_rows(dataset), *([] if own_test is None else _texts(own_test, notes))]
    return find_leaks(data, (_texts(one, notes) for one in benchmarks), unshared=(TRAINING, VALIDATION))


def refuse_leaks(leaks: Leaks) -> None:
    """Refuse rows that appear in two splits that must not overlap.

    Raises:
        IncompatibleData: there are such rows, up to 20 of them named by split and number.
    """
    if leaks.exact:
        raise IncompatibleData(
            f"{_counted(leaks.exact)} in two splits that must not overlap, equal up to case, spacing and punctuation: "
            f"{_named(leaks.exact)}. Remove them from one of the two; otherwise its scores would be contaminated."
        )


def same_problems(dataset: Dataset, benchmarks: Sequence[ReferenceSet], notes: list[str]) -> list[Leak]:
    """Math Pairs problems of a run that are also questions of benchmarks, up to the order of their numbers.

    A run and a benchmark of the same numbers and seed never overlap, by construction.

    Args:
        dataset: The rows of the run, Math Pairs.
        benchmarks: Of any kind; questions that are no such problems are passed over.
        notes: Collects files that cannot be used.
    """
    first: dict[ProblemClass, RowText] = {}
    for row in _rows(dataset):
        if (found := problem_class(row.text)) is not None:
            first.setdefault(found, row)
    pairs = []
    for asked in (row for one in benchmarks for row in _texts(one, notes)):
        known = problem_class(asked.text)
        if known is not None and known in first:
            pairs.append(Leak(first[known].split, first[known].number, asked.split, asked.number))
    return pairs


def refuse_same_problems(pairs: Sequence[Leak]) -> None:
    """Refuse Math Pairs problems that are trained on and are questions of a benchmark.

    Raises:
        IncompatibleData: there are such problems, up to 20 of them named by split and number.
    """
    if pairs:
        raise IncompatibleData(
            f"{_counted(pairs)} in two splits that must not overlap, the same problem up to the order of its numbers: "
            f"{_named(pairs)}. Use the benchmark's pairs, smallest and largest number and seed, with which run and "
            "benchmark never overlap, or remove the benchmark (ratchet bench remove)."
        )


def questions_among(dataset: Dataset, benchmark: ReferenceSet) -> list[int]:
    """Questions of a benchmark that are rows of a run, in rising order: equal texts, or equal problems.

    Args:
        dataset: The rows of the run.
        benchmark: Of any kind.

    Raises:
        IncompatibleData: its file cannot be used.
    """
    equal = equal_rows(keys_of(dataset.train, dataset.validation), texts(benchmark))
    alike = same_problems(dataset, [benchmark], [])
    return sorted({*equal, *(pair.other_number for pair in alike)})


def keys_of(train: Iterable[Prompt], validation: Iterable[Prompt]) -> set[bytes]:
    """Hashes that identify the rows of a run without their texts."""
    return row_keys(_texts_of(train, validation))


def leak_notes(leaks: Leaks) -> list[str]:
    """Warnings about duplicates and near-duplicates; neither stops a run."""
    notes = []
    for split, repeats in leaks.repeats.items():
        rows = f"1 {split} row repeats" if repeats == 1 else f"{repeats:,} {split} rows repeat"
        notes.append(f"{rows} an earlier one.")
    if leaks.near:
        pairs = "1 near-duplicate pair" if len(leaks.near) == 1 else f"{len(leaks.near):,} near-duplicate pairs"
        notes.append(
            f"{pairs} of rows ({NEAR_JACCARD:.0%} or more of their {SHINGLE_WORDS}-word sequences are shared): "
            f"{_named(leaks.near)}. If they ask the same, scores on them are too high."
        )
    return notes


def _rows(dataset: Dataset) -> Iterator[RowText]:
    return _texts_of(dataset.train, dataset.validation)


def _texts_of(train: Iterable[Prompt], validation: Iterable[Prompt]) -> Iterator[RowText]:
    for split, prompts in ((TRAINING, train), (VALIDATION, validation)):
        for prompt in prompts:
            yield RowText(split, prompt.id, text_of(prompt.messages))


def _texts(benchmark: ReferenceSet, notes: list[str]) -> list[RowText]:
    try:
        return list(texts(benchmark))
    except IncompatibleData as fault:
        if benchmark.is_asked_for:
            raise
        notes.append(f"The training rows could not be compared with {benchmark.name} rows. {fault}")
        return []


def _counted(pairs: Sequence[Leak]) -> str:
    return "1 row appears" if len(pairs) == 1 else f"{len(pairs):,} rows appear"


def _named(pairs: Sequence[Leak]) -> str:
    named = [f"{one.split} row {one.number} and {one.other_split} row {one.other_number}" for one in pairs]
    shown: Iterable[str] = named[:MOST_NAMED_ROWS]
    more = [f"and {len(named) - MOST_NAMED_ROWS:,} more"] if len(named) > MOST_NAMED_ROWS else []
    return "; ".join([*shown, *more])
