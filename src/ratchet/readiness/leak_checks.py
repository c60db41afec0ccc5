"""Do the rows of a run come up again where it is scored? The leak guard, applied to a run's dataset."""

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
        notes: Told of files that cannot be used and that nobody asked for: they stop no run.

    Raises:
        IncompatibleData: a file that was asked for cannot be used.
    """
    data = [*_rows(dataset), *([] if own_test is None else _texts(own_test, notes))]
    return find_leaks(data, (_texts(one, notes) for one in benchmarks), unshared=(TRAINING, VALIDATION))


def refuse_leaks(leaks: Leaks) -> None:
    """Refuse rows that stand in two places.

    Raises:
        IncompatibleData: there are such rows, up to 20 of them named by split and number.
    """
    if leaks.exact:
        raise IncompatibleData(
            f"{_counted(leaks.exact)} in two places that may share none, the same but for case, spacing and "
            f"punctuation: {_named(leaks.exact)}. Take them out of one of the two, or what is measured there says "
            "nothing."
        )


def same_problems(dataset: Dataset, benchmarks: Sequence[ReferenceSet], notes: list[str]) -> list[Leak]:
    """Return which Math Pairs problems of a run are questions of benchmarks too, in whatever order of their numbers.

    A run and a benchmark of the same numbers and seed share none, by the way in which they are made.

    Args:
        dataset: The rows of the run, Math Pairs.
        benchmarks: Of any kind; questions that are no such problems are passed over.
        notes: Told of files that cannot be used.
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
            f"{_counted(pairs)} in two places that may share none, the same problem but for the order of its numbers: "
            f"{_named(pairs)}. Problems of the same pairs, smallest and largest number and seed share none: take those "
            "of the benchmark, or remove it (ratchet bench remove)."
        )


def questions_among(dataset: Dataset, benchmark: ReferenceSet) -> list[int]:
    """Return which questions of a benchmark are rows of a run, in rising order: equal texts, or equal problems.

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
    """Return what the rows that a run reads are known by, without their texts."""
    return row_keys(_texts_of(train, validation))


def leak_notes(leaks: Leaks) -> list[str]:
    """Return what is worth knowing of repeats and of rows that are nearly the same; neither stops a run."""
    notes = []
    for split, repeats in leaks.repeats.items():
        rows = f"1 {split} row asks" if repeats == 1 else f"{repeats:,} {split} rows ask"
        notes.append(f"{rows} what an earlier one asks.")
    if leaks.near:
        pairs = "1 pair of rows is" if len(leaks.near) == 1 else f"{len(leaks.near):,} pairs of rows are"
        notes.append(
            f"{pairs} nearly the same ({NEAR_JACCARD:.0%} or more of their sequences of {SHINGLE_WORDS} words): "
            f"{_named(leaks.near)}. If they ask the same, what is measured there is too good."
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
        notes.append(f"The rows to train on could not be compared with {benchmark.name} rows. {fault}")
        return []


def _counted(pairs: Sequence[Leak]) -> str:
    return "1 row stands" if len(pairs) == 1 else f"{len(pairs):,} rows stand"


def _named(pairs: Sequence[Leak]) -> str:
    named = [f"{one.split} row {one.number} and {one.other_split} row {one.other_number}" for one in pairs]
    shown: Iterable[str] = named[:MOST_NAMED_ROWS]
    more = [f"and {len(named) - MOST_NAMED_ROWS:,} more"] if len(named) > MOST_NAMED_ROWS else []
    return "; ".join([*shown, *more])
