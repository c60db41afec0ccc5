"""Whether a run can start: the checks of ``ratchet train --check``, which every start makes too.

The baseline of a run is a completed evaluation of its data. It supplies verifier and metric where the run names none,
so that the run trains on what was measured.
"""

import os
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.config import DatasetData, MathPairsData, RunConfig, StartSettings, VerifierSettings
from ratchet.datasets.benchmark_folders import questions_file, read_spec
from ratchet.datasets.questions import absolute, math_pairs_origin
from ratchet.datasets.reference_sets import ReferenceSet
from ratchet.datasets.version_folders import split_file, versions_home
from ratchet.errors import Conflict, InvalidSetting, NotFound
from ratchet.evaluation.benchmark import ACCURACY, BenchmarkSpec
from ratchet.evaluation.evaluation import Evaluation
from ratchet.readiness import Faults, Readiness, check
from ratchet.readiness.leak_checks import DISJOINT_BY_THEMSELVES
from ratchet.run.run_folder import RunFolder
from ratchet.service.data.datasets import DatasetSummary, list_datasets, with_version
from ratchet.service.evaluations.benchmarks import find_benchmark, kept_benchmarks
from ratchet.service.evaluations.evaluation_catalogue import find_evaluation
from ratchet.service.runs.run_files import check_artifacts
from ratchet.service.runs.storage_paths import refuse_unusable, with_source_found
from ratchet.service.verification.user_metrics import with_source
from ratchet.verifiers import KINDS

if TYPE_CHECKING:
    from ratchet.engine.prepare import Prepared


def check_run(
    config: RunConfig,
    out: Path | None = None,
    *,
    function: Callable[..., Any] | None = None,
    against: Sequence[Path] = (),
) -> Readiness:
    """Make all checks of a run without starting it; close the report in the end.

    Args:
        config: Settings as given.
        out: The folder that it would be given.
        function: The user's own verifier.
        against: JSONL files of rows that the user scores on: no row to train on may be among them.
    """
    faults = Faults()
    with faults.gathered():
        refuse_unusable(out)
    with faults.gathered():
        check_artifacts()
    there = set()
    is_own = config.verifier is not None
    with faults.gathered():
        config = with_source_found(config)
        there.add("start")
    if "start" not in there:  # reported once: later checks would report it again
        config = config.model_copy(update={"start_from": StartSettings()})
    with faults.gathered():
        config = with_version(config)
        there.add("data")
    with faults.gathered():
        config = with_baseline(config) if "data" in there else config
        config = with_source(config)
        there.add("metric")
    if config.baseline and config.verifier is None:
        faults.raise_any()  # without a verifier, later checks would report a consequence of it
    own_test, benchmarks = _test_rows(config)
    given = [ReferenceSet(file.name, file, is_asked_for=True) for file in against]
    report = check(
        config,
        function,
        own_test=own_test,
        benchmarks=[*benchmarks, *given],
        faults=faults,
        has_rows=there == {"start", "data", "metric"},
    )
    note = (note_on(config.baseline, is_own=is_own),) if config.baseline else ()
    return replace(report, notes=(*note, *report.notes))


def prepared_run(
    config: RunConfig,
    out: Path | None = None,
    *,
    function: Callable[..., Any] | None = None,
    against: Sequence[Path] = (),
) -> "Prepared":
    """Make all checks of a run and get it ready. Arguments are those of ``check_run``; close the verifier in the end.

    Raises:
        RatchetError: what prevents the start; NotReady for several faults.
    """
    refuse_unusable(out)
    report = check_run(config, out, function=function, against=against)
    try:
        report.raise_faults()
        from ratchet.engine.prepare import prepare
    except BaseException:
        report.close()
        raise
    return prepare(report.config, function, report.rows)


def _versions() -> list[DatasetSummary]:
    """All versions of datasets; without opening the database where there are none."""
    if not any(versions_home().glob("[!.]*")):
        return []
    return list_datasets()


def _test_rows(config: RunConfig) -> tuple[ReferenceSet | None, list[ReferenceSet]]:
    """The test rows of the run's own data, and those of all other datasets and benchmarks that are kept here."""
    own_test = None
    others = []
    path = getattr(config.data, "path", "")
    versions = _versions()
    own = config.data if isinstance(config.data, DatasetData) else None
    own_origins = {version.origin for version in versions if own and version.name == own.name}
    own_origins |= {os.path.abspath(os.path.expanduser(path))} if path else set()
    decided = set()
    for version in versions:
        file = split_file(versions_home() / version.content_hash, "test")
        # Other versions of the same data, and other datasets from the same place, share rows with it by nature: they
        # were split another way, or replaced.
        shares = version.origin in own_origins or bool(own and version.name == own.name)
        if shares or file.is_file():
            decided.add((version.name, version.version))
        if not file.is_file():
            continue
        if own and version.name == own.name and version.content_hash == own.content_hash:
            own_test = ReferenceSet("test", file)
        elif not shares:
            others.append(ReferenceSet(f"test of dataset {version.name}@{version.version}", file))
    beside = Path(os.path.expanduser(path)) / "test.jsonl"
    if path and beside.is_file():
        own_test = ReferenceSet("test", beside)
    if config.data.source in DISJOINT_BY_THEMSELVES:
        decided = set()  # the rows of datasets are not compared with such a run, benchmarks made of them are
    return own_test, [*others, *_benchmarks(decided, own_test)]


def _benchmarks(decided: Set[tuple[str, int]], own_test: ReferenceSet | None) -> list[ReferenceSet]:
    """The user's benchmarks, but those whose questions are test rows that are compared as such.

    Args:
        decided: Versions of datasets; what holds of a version's test rows holds of a benchmark made of them, which is
            not named a second time.
        own_test: The test rows of the run's own data, of which a built-in benchmark may have been made.
    """
    places = set() if own_test is None else {absolute(str(own_test.file)), absolute(str(own_test.file.parent))}
    return [
        ReferenceSet(f"benchmark {entry.name}", questions_file(entry.content_hash), is_benchmark=True)
        for entry in kept_benchmarks()
        if entry.dataset not in decided and _place(entry.content_hash) not in places
    ]


def _place(content_hash: str) -> str:
    """The path that a built-in benchmark was read from; empty for others, and where its folder is damaged."""
    with suppress(NotFound, Conflict):
        spec = read_spec(content_hash)
        return spec.origin.partition(": ")[2] if spec.source == "built_in" else ""
    return ""


def with_baseline(config: RunConfig) -> RunConfig:
    """Settings with verifier and form of their baseline, where they name none of their own.

    Raises:
        NotFound: there is no such evaluation.
        Conflict: it has not completed.
        InvalidSetting: it is of other data, or its main metric cannot be a reward.
    """
    if not config.baseline:
        return config
    evaluation = find_evaluation(config.baseline)
    if evaluation.scores is None:
        status = evaluation.status.replace("_", " ")
        raise Conflict(f"Baseline {evaluation.id} is {status}: only a completed evaluation can be one.")
    benchmark = find_benchmark(evaluation.benchmark_hash).spec
    _refuse_other_data(config, evaluation, benchmark)
    if config.verifier is not None:
        return config
    asked = RunFolder.at(evaluation.folder).read_config()
    reward = config.reward if "format_bonus" in config.reward.model_fields_set else asked.reward
    return config.model_copy(update={"verifier": _rewarding(asked, evaluation), "reward": reward})


def note_on(baseline: str, *, is_own: bool) -> str:
    """Where a run's verifier comes from: it is the run's own, or its baseline's."""
    if is_own:
        return f"The verifier is this run's own, whatever its baseline {baseline} was measured with."
    return f"Verifier and metric are taken from the baseline {baseline}."


def _refuse_other_data(config: RunConfig, evaluation: Evaluation, benchmark: BenchmarkSpec) -> None:
    """Refuse a baseline that was not measured on the run's own data."""
    data = config.data
    own = f"{data.name}@{data.version}" if isinstance(data, DatasetData) and data.version else ""
    if isinstance(data, MathPairsData):  # of other numbers, or another seed, they are other problems
        own = math_pairs_origin(data)
    source = benchmark.origin.partition(":")[0] if benchmark.source == "built_in" else ""
    is_same = benchmark.origin == own if own else source == data.source
    if not is_same:
        raise InvalidSetting(
            f"Baseline {evaluation.id} was measured on benchmark {benchmark.name}, made from {benchmark.origin}, not "
            f"from this run's data ({own or data.source}). Choose a baseline of the same data.",
            "baseline",
        )


def _rewarding(asked: RunConfig, evaluation: Evaluation) -> VerifierSettings:
    """The baseline's verifier with its main metric as what is trained on."""
    verifier, main = asked.verifier, evaluation.main_column
    if verifier is None:
        raise ValueError("an evaluation has a verifier")
    if main == ACCURACY or main == getattr(verifier, "metric", None):
        return verifier
    if main in KINDS[verifier.kind].metrics and "metric" in type(verifier).model_fields:
        return verifier.model_copy(update={"metric": main})
    raise InvalidSetting(
        f"The baseline's main metric, {main}, cannot be a reward. Choose a verifier for this run.", "verifier.kind"
    )
