"""Benchmarks: create one from a dataset, a bundle or a built-in, find, list, show and remove them; plan their size.

One is stored only after its questions were checked, see ``benchmark_setup.py``. Built-in ones are created on first use.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ratchet.config import (
    CustomVerifier,
    FinalNumberVerifier,
    FormatKind,
    MathPairsData,
    MathPairsVerifier,
    MathVerifier,
    VerifierSettings,
)
from ratchet.config.config_text import build
from ratchet.datasets import benchmark_folders, gsm8k, math_pairs_source, math_rows, questions
from ratchet.datasets.bundle import Bundle, open_bundle
from ratchet.datasets.questions import Questions
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting, NotFound, RatchetError
from ratchet.evaluation.benchmark import BenchmarkSpec
from ratchet.run.records import Prompt
from ratchet.service.data.datasets import checked_name
from ratchet.service.data.datasets import show as show_dataset
from ratchet.service.evaluations.benchmark_setup import AddedBenchmark as AddedBenchmark
from ratchet.service.evaluations.benchmark_setup import BenchmarkSetup, create_benchmark, stored
from ratchet.service.evaluations.benchmark_setup import Choices as Choices
from ratchet.service.evaluations.benchmark_setup import StoredBenchmark as StoredBenchmark
from ratchet.service.verification.user_metrics import source_of
from ratchet.stats import expected_discordance, power_of, questions_to_detect, smallest_gain
from ratchet.stats.power import MOST_QUESTIONS

if TYPE_CHECKING:
    from ratchet.store.version_rows import BenchmarkEntry


# Settings of Math Pairs that a benchmark has; a benchmark's problems are never trained on, so it has no others.
MATH_PAIRS_SETTINGS = ("pairs", "smallest", "largest", "seed", "heldout")
_HASH = re.compile("[0-9a-f]{8,64}")
_WHOLE_HASH = 64
_POINTS = 100.0


@dataclass(frozen=True)
class ListedBenchmark:
    """A benchmark by name; ``spec`` is None where its folder cannot be read, and ``problem`` says why."""

    name: str
    content_hash: str
    created_at: datetime
    spec: BenchmarkSpec | None
    problem: str = ""


class _BuiltIn(NamedTuple):
    """A benchmark that comes with Ratchet; ``load`` takes path and revision, None for the synthetic one."""

    verifier: VerifierSettings
    instruction: Callable[[FormatKind], str]
    description: str
    source: str
    load: Callable[[str, str | None], Questions] | None
    path: str = ""


BUILT_INS = {
    "math-pairs": _BuiltIn(
        verifier=MathPairsVerifier(),
        instruction=math_pairs_source.instruction,
        description="Held-out Math Pairs problems: add the numbers in each pair, multiply the sums.",
        source="math_pairs",
        load=None,
    ),
    "gsm8k": _BuiltIn(
        verifier=FinalNumberVerifier(),
        instruction=gsm8k.instruction,
        description="The test problems of GSM8K: school problems in words, whose answer is a number.",
        source="gsm8k",
        load=questions.of_gsm8k,
        path=questions.GSM8K,
    ),
    "math-500": _BuiltIn(
        verifier=MathVerifier(require_boxed=True),
        instruction=math_rows.instruction,
        description="MATH-500: competition problems of five levels, whose answer is an expression.",
        source="math_500",
        load=questions.of_math_500,
        path=questions.MATH_500,
    ),
}


def add_dataset(
    name: str, reference: str, verifier: VerifierSettings | None, choices: Choices | None = None
) -> AddedBenchmark:
    """Create a benchmark from the test rows of a dataset's version, NAME or NAME@VERSION.

    Raises:
        InvalidSetting: name, verifier or choices cannot be used.
        IncompatibleData: there are no test rows, or some cannot be scored; named by number.
        NotFound: there is no such version.
        Conflict: the name is taken, or the same benchmark has another one.
        MetricRefused, SandboxUnavailable: the verifier's metric cannot be used.
    """
    from ratchet.store.version_rows import Version

    _refuse_built_in(name)
    if verifier is None:
        raise InvalidSetting("A benchmark from a dataset needs a verifier: set verifier.kind.", "verifier.kind")
    found = show_dataset(reference, rows=0).summary
    rows = questions.of_dataset(found.content_hash, f"{found.name}@{found.version}")
    dataset = Version(found.name, found.version)
    return create_benchmark(BenchmarkSetup(name, "dataset", rows, verifier, choices or Choices(), dataset=dataset))


def add_bundle(path: Path, name: str | None = None) -> AddedBenchmark:
    """Create a benchmark from a bundle: a folder, or a .zip, with benchmark.yaml.

    Its metric, if it has one, is kept as a version of a metric of the benchmark's name. Raises like ``add_dataset``.

    Args:
        path: Of the folder or the .zip.
        name: What to call it; the bundle's own name for None.
    """
    with open_bundle(path) as bundle:
        called = name or bundle.file.name
        _refuse_built_in(called)
        choices = Choices(
            harness=bundle.harness,
            reward=bundle.reward,
            max_answer_tokens=bundle.file.max_answer_tokens,
            description=bundle.file.description,
        )
        setup = BenchmarkSetup(
            called,
            "bundle",
            bundle.questions,
            _verifier_of(bundle, called),
            choices,
            columns=bundle.file.score_columns,
            template=bundle.file.reference_solution,
            metric=bundle.metric,
        )
        return create_benchmark(setup)


def add_built_in(
    kind: str,
    settings: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    revision: str | None = None,
    name: str | None = None,
) -> AddedBenchmark:
    """Create a built-in benchmark. Raises like ``add_dataset``.

    Args:
        kind: math-pairs, gsm8k or math-500.
        settings: Of Math Pairs, some of ``MATH_PAIRS_SETTINGS``; such a benchmark needs a name of its own.
        path: Where the rows of the others are instead of on the hub: a folder with test.jsonl, or a file.
        revision: Of a hub dataset.
        name: What to call it, ``kind`` for None.
    """
    if kind not in BUILT_INS:
        raise NotFound(f"There is no built-in benchmark {kind}. There are {', '.join(BUILT_INS)}.")
    built_in, called = BUILT_INS[kind], name or kind
    if called != kind:
        _refuse_built_in(called)
    elif settings:
        raise InvalidSetting(
            f"{kind} is the name of the benchmark with the default settings. With other settings, choose another name.",
            "name",
        )
    if built_in.load is None:
        if path or revision:
            raise InvalidSetting(f"{kind} is generated: it has neither path nor revision. Remove them.")
        rows = questions.of_math_pairs(_math_pairs(settings or {}))
    else:
        if settings:
            raise InvalidSetting(f"{kind} has no settings but path and revision. Remove the others.")
        rows = _rows(kind, built_in.load, path or built_in.path, revision)
    choices = Choices(description=built_in.description)
    return create_benchmark(BenchmarkSetup(called, "built_in", rows, built_in.verifier, choices, built_in.instruction))


def find_benchmark(name_or_hash: str) -> StoredBenchmark:
    """Find a benchmark by its name, or by its content hash or the first 8 digits of it or more.

    A built-in one is made if it is not there yet.

    Raises:
        NotFound: there is none.
        InvalidSetting: several hashes begin like that.
        Conflict: its folder was changed.
        IncompatibleData: the rows of a built-in one cannot be had.
    """
    entries = kept_benchmarks()
    named = [entry for entry in entries if entry.name == name_or_hash]
    if named:
        return stored(named[0])
    if name_or_hash in BUILT_INS:
        return add_built_in(name_or_hash).benchmark
    if _HASH.fullmatch(name_or_hash):
        alike = [entry for entry in entries if entry.content_hash.startswith(name_or_hash)]
        if len(alike) > 1:
            names = ", ".join(entry.name for entry in alike)
            raise InvalidSetting(f"{name_or_hash} matches the hash of several benchmarks: {names}. Give a name.")
        if alike:
            return stored(alike[0])
        if len(name_or_hash) == _WHOLE_HASH:  # removed since, and evaluations on it are still here
            return _removed(name_or_hash)
    raise NotFound(
        f"There is no benchmark {name_or_hash}. List them with ratchet bench list, or add it with ratchet bench add. "
        f"Built in: {', '.join(BUILT_INS)}."
    )


def list_benchmarks() -> list[ListedBenchmark]:
    """All benchmarks by name; those whose folder cannot be read are among them, with the reason."""
    found = []
    for entry in kept_benchmarks():
        spec, problem = None, ""
        try:
            spec = benchmark_folders.read_spec(entry.content_hash)
        except RatchetError as error:
            problem = str(error)
        found.append(ListedBenchmark(entry.name, entry.content_hash, entry.created_at, spec, problem))
    return found


def show(name_or_hash: str, count: int = 0) -> tuple[StoredBenchmark, tuple[Prompt, ...]]:
    """A benchmark and its first questions, all verified against its hash. Raises as ``find_benchmark``.

    Args:
        name_or_hash: As of ``find_benchmark``.
        count: How many questions.
    """
    found = find_benchmark(name_or_hash)
    _, prompts = benchmark_folders.read(found.content_hash)
    return found, prompts[:count]


def remove(name: str) -> bool:
    """Remove a benchmark by its name; return whether its questions went too.

    They stay while there are evaluations on it, which are still shown and compared.

    Raises:
        NotFound: there is none of that name.
    """
    from ratchet.store import Database
    from ratchet.store.evaluation_rows import EvaluationStore
    from ratchet.store.version_rows import BenchmarkStore

    with closing(Database()) as database:
        entry = BenchmarkStore(database).remove(name)
        is_needed = bool(EvaluationStore(database).all(entry.content_hash))
    if not is_needed:
        benchmark_folders.discard(entry.content_hash)
    return not is_needed


def kept_benchmarks() -> "list[BenchmarkEntry]":
    """All benchmarks as the database has them; without opening it where there are none."""
    if not any(benchmark_folders.benchmarks_home().glob("[!.]*")):
        return []
    from ratchet.store import Database
    from ratchet.store.version_rows import BenchmarkStore

    with closing(Database()) as database:
        return BenchmarkStore(database).all()


def _verifier_of(bundle: Bundle, name: str) -> VerifierSettings:
    """A bundle's verifier, with the source of its own metric, which is not kept yet, under the name it gets."""
    if bundle.metric is None or not isinstance(bundle.verifier, CustomVerifier):
        return bundle.verifier
    return bundle.verifier.model_copy(update={"metric": name, "source": source_of(bundle.metric)})


def _math_pairs(settings: Mapping[str, Any]) -> MathPairsData:
    for key in settings:
        if key not in MATH_PAIRS_SETTINGS:
            raise InvalidSetting(
                f"A benchmark of Math Pairs has no setting {key}. There are {', '.join(MATH_PAIRS_SETTINGS)}."
            )
    # As few as there may be to train on: nobody does here, and small spaces have not many.
    data = build({"data": {"source": "math_pairs", "prompts": 8, **settings}}).data
    if not isinstance(data, MathPairsData):
        raise ValueError("the source is math_pairs")
    return data


def _rows(kind: str, load: Callable[[str, str | None], Questions], path: str, revision: str | None) -> Questions:
    try:
        found = load(path, revision)
    except IncompatibleData as error:
        raise IncompatibleData(
            f"Cannot create benchmark {kind}. {error} If its rows are on this machine: ratchet bench add {kind} --path "
            "FOLDER"
        ) from error
    return Questions(found.prompts, f"{BUILT_INS[kind].source}: {found.origin}", found.difficulty)


def _refuse_built_in(name: str) -> None:
    checked_name(name)
    if name in BUILT_INS:
        raise InvalidSetting(f"{name} is the name of a built-in benchmark. Choose another name.", "name")


def _removed(content_hash: str) -> StoredBenchmark:
    spec = benchmark_folders.read_spec(content_hash)
    try:
        made = benchmark_folders.questions_file(content_hash).stat().st_mtime
    except OSError as error:
        raise Conflict(f"The questions of benchmark {spec.name} are missing. Add it again.") from error
    return StoredBenchmark(spec, content_hash, datetime.fromtimestamp(made, UTC))


@dataclass(frozen=True)
class PowerPlan:
    """What it takes to detect a gain. Shares are of 0..1.

    Attributes:
        base: Accuracy that is assumed of the model there is.
        gain: The gain that is asked about.
        needed: Questions that find it in four of five evaluations.
        needed_at_worst: The same if answers of the two had nothing to do with one another.
        questions: How many there are, None where no number was given.
        chance: How likely that many find the gain.
        smallest: The smallest gain that they find in four of five evaluations, None where none is small enough.
    """

    base: float
    gain: float
    needed: int
    needed_at_worst: int
    questions: int | None = None
    chance: float | None = None
    smallest: float | None = None


def plan_power(
    gain_points: float, base_percent: float, questions: int | None = None, benchmark: str | None = None
) -> PowerPlan:
    """What it takes to detect a gain of so many percentage points over a model of that accuracy.

    Raises:
        NotFound: there is no such benchmark.
        InvalidSetting: the numbers do not go together.
    """
    gain, base = gain_points / _POINTS, base_percent / _POINTS
    if not 0 < gain <= 1 or not 0 <= base <= 1 or base + gain > 1:
        raise InvalidSetting(
            f"A gain of {gain_points:g} points over {base_percent:g} percent is impossible. Give a gain above 0 that "
            "ends at 100 percent or less.",
            "gain",
        )
    if benchmark is not None:
        if questions is not None:
            raise InvalidSetting("Give a number of questions or a benchmark, which has one.", "questions")
        questions = find_benchmark(benchmark).spec.questions
    if questions is not None and questions < 1:
        raise InvalidSetting(f"The number of questions is {questions}. Give 1 or more.", "questions")
    usual, worst = expected_discordance(base, gain), expected_discordance(base, gain, 0.0)
    try:
        needed, at_worst = questions_to_detect(gain, usual), questions_to_detect(gain, worst)
    except ValueError as error:
        raise InvalidSetting(
            f"A gain of {gain_points:g} points over {base_percent:g} percent takes more than {MOST_QUESTIONS:,} "
            "questions to detect. Give a larger gain.",
            "gain",
        ) from error
    if questions is None:
        return PowerPlan(base, gain, needed, at_worst)
    return PowerPlan(
        base, gain, needed, at_worst, questions, power_of(questions, gain, usual), smallest_gain(questions, base)
    )
