"""How a benchmark is set up from questions, a verifier and a user's choices: checked, then stored by content and name.

Where the questions come from is in ``benchmarks.py``.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.config import (
    CompositeVerifier,
    CustomVerifier,
    FormatKind,
    MathVerifier,
    RewardSettings,
    RunConfig,
    VerifierSettings,
)
from ratchet.datasets import benchmark_folders
from ratchet.datasets.dataset import form_request
from ratchet.datasets.questions import Questions
from ratchet.errors import InvalidSetting, NotFound
from ratchet.evaluation.benchmark import BenchmarkSource, BenchmarkSpec, Harness
from ratchet.readiness.benchmark_checks import check_questions, reference_solutions, score_columns
from ratchet.service.data.datasets import checked_name
from ratchet.service.verification.user_metrics import add as add_metric
from ratchet.service.verification.user_metrics import show as show_metric
from ratchet.service.verification.user_metrics import with_source
from ratchet.verifiers import make_verifier, takes_function

if TYPE_CHECKING:
    from ratchet.store.version_rows import BenchmarkEntry, Version


@dataclass(frozen=True)
class StoredBenchmark:
    """A stored benchmark. ``content_hash`` names its folder, see ``datasets/benchmark_folders.py``."""

    spec: BenchmarkSpec
    content_hash: str
    created_at: datetime


@dataclass(frozen=True)
class AddedBenchmark:
    """A benchmark that was added. ``notes`` are sentences for the user; it may have been there already."""

    benchmark: StoredBenchmark
    is_new: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Choices:
    """What a user decides about a benchmark from a dataset. What is left out follows the evaluated model's own run.

    ``main`` is the column to go by, accuracy unless it is another one.
    """

    harness: Harness = field(default_factory=Harness)
    reward: RewardSettings = field(default_factory=RewardSettings)
    max_answer_tokens: int | None = None
    main: str | None = None
    description: str = ""


@dataclass(frozen=True)
class BenchmarkSetup:
    """All that a benchmark is made of.

    ``instruction`` is the system prompt where nothing else sets one. ``columns`` are the wanted ones, ``template`` is
    how a right answer looks. ``metric`` is the file of the benchmark's own metric, whose source the verifier has.
    """

    name: str
    source: BenchmarkSource
    questions: Questions
    verifier: VerifierSettings
    choices: Choices
    instruction: Callable[[FormatKind], str] = form_request
    columns: Sequence[str] | None = None
    template: str | None = None
    dataset: "Version | None" = None
    metric: Path | None = None


def stored(entry: "BenchmarkEntry") -> StoredBenchmark:
    """A benchmark as the database and its folder have it.

    Raises:
        NotFound, Conflict: its folder is not here, or was changed.
    """
    return StoredBenchmark(benchmark_folders.read_spec(entry.content_hash), entry.content_hash, entry.created_at)


def create_benchmark(setup: BenchmarkSetup) -> AddedBenchmark:
    """Check the questions of a benchmark, and store it.

    Raises:
        InvalidSetting: name, verifier or choices cannot be used.
        IncompatibleData: some questions cannot be scored, named by number.
        Conflict: the name is taken, or the same benchmark has another one.
        MetricRefused, SandboxUnavailable: the verifier's metric cannot be used.
    """
    checked_name(setup.name)
    choices = setup.choices
    verifier, form = _resolved(setup)
    prompts = setup.questions.prompts
    columns = score_columns(verifier, form, setup.columns, choices.main)
    is_bundle = setup.source == "bundle"
    solutions = reference_solutions(prompts, verifier, form, template=setup.template, prefers_own=is_bundle)
    with closing(make_verifier(verifier, prefer_answer_tag=form == "tags")) as checking:
        notes = check_questions(checking, prompts, solutions, must_have_solutions=is_bundle)
    if setup.metric is not None:
        verifier = _with_kept_metric(verifier, setup.metric, setup.name)
    content = benchmark_folders.written(prompts)
    spec = BenchmarkSpec(
        name=setup.name,
        source=setup.source,
        origin=setup.questions.origin,
        description=choices.description,
        harness=choices.harness,
        usual=Harness(system_prompt=setup.instruction(form), worked_examples=()),
        verifier=verifier,
        reward=choices.reward,
        max_answer_tokens=choices.max_answer_tokens,
        score_columns=columns,
        questions=len(prompts),
        questions_sha256=hashlib.sha256(content).hexdigest(),
        difficulty=setup.questions.difficulty,
    )
    return _kept(spec, content, setup.dataset, notes)


def _kept(spec: BenchmarkSpec, content: bytes, dataset: "Version | None", notes: tuple[str, ...]) -> AddedBenchmark:
    from ratchet.store import Database
    from ratchet.store.version_rows import BenchmarkEntry, BenchmarkStore

    with closing(Database()) as database:
        store = BenchmarkStore(database)
        store.same(spec.name, spec.content_hash)  # refused before anything is written
        entry = BenchmarkEntry(
            name=spec.name,
            source=spec.source,
            content_hash=benchmark_folders.keep(spec, content),
            harness=spec.harness.model_dump(mode="json"),
            verifier=spec.verifier.model_dump(mode="json"),
            score_columns=spec.score_columns,
            created_at=datetime.now(UTC),
            dataset=dataset,
            metric=_kept_metric(spec.verifier),
        )
        entry, is_new = store.add(entry)
    again = () if is_new else (f"Benchmark {spec.name} already has this content.",)
    return AddedBenchmark(stored(entry), is_new, (*again, *notes))


def _resolved(setup: BenchmarkSetup) -> tuple[VerifierSettings, FormatKind]:
    """The verifier with its metric's source and what decides its grades, and the form that goes with it.

    Read stays open where it was: an evaluation takes that of the model's own run.

    Raises:
        InvalidSetting: it is a function of this process, which is not kept.
        NotFound, Conflict: its metric is not kept, or archived.
    """
    if takes_function(setup.verifier):
        raise InvalidSetting(
            "The verifier is a Python function, which cannot be stored. Add it as a metric (ratchet metric add) and "
            "set verifier.kind custom.",
            "verifier.kind",
        )
    config = RunConfig(verifier=_with_box(setup.verifier), watch=None, reward=setup.choices.reward)
    if setup.metric is None:
        config = with_source(config)
    if config.verifier is None:
        raise ValueError("a verifier was given")
    return config.verifier, config.resolved().reward.format_bonus or "off"


def _with_box(verifier: VerifierSettings) -> VerifierSettings:
    """The verifier, with the need for a box independent of a run's data."""
    if isinstance(verifier, MathVerifier) and verifier.require_boxed is None:
        return verifier.model_copy(update={"require_boxed": False})
    if isinstance(verifier, CompositeVerifier):
        parts = tuple(
            part.model_copy(update={"verifier": _with_box(part.verifier)}) if part.verifier.kind == "math" else part
            for part in verifier.parts
        )
        return verifier.model_copy(update={"parts": parts})
    return verifier


def _with_kept_metric(verifier: VerifierSettings, file: Path, name: str) -> VerifierSettings:
    kept = add_metric(file, name)
    return verifier.model_copy(update={"metric": kept.name, "version": kept.version, "source": kept.source})


def _kept_metric(verifier: VerifierSettings) -> "Version | None":
    """The version of a metric that a verifier is, None where it is none or brings a source of its own."""
    from ratchet.store.version_rows import Version

    if not isinstance(verifier, CustomVerifier) or not verifier.metric:
        return None
    try:
        found = show_metric(verifier.metric, verifier.version)
    except NotFound:
        return None
    return Version(found.name, found.version) if found.source == verifier.source else None
