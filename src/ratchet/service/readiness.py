"""Can this run start? What ``ratchet train --check`` says, and what is asked before a run starts."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.config import DatasetData, RunConfig, StartSettings
from ratchet.datasets.benchmarks import Benchmark
from ratchet.datasets.versions import split_file, versions_home
from ratchet.errors import Conflict
from ratchet.files import check_room, ratchet_home, resolved, unusable_as_error
from ratchet.readiness import Faults, Readiness, check
from ratchet.run_folder import RunFolder
from ratchet.service.artifacts import check_artifacts
from ratchet.service.starts import with_source_found

if TYPE_CHECKING:
    from ratchet.engine.prepare import Prepared
    from ratchet.service.datasets import DatasetSummary

# Room for samples, log and journal; the adapter and checkpoint come on top once the model is known.
_LEAST_ROOM_BYTES = 32 << 20


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
    from ratchet.service.datasets import with_version
    from ratchet.service.metrics import with_source

    there = set()
    with faults.gathered():
        config = with_source_found(config)
        there.add("start")
    if "start" not in there:  # said once: what is checked next would say it again
        config = config.model_copy(update={"start_from": StartSettings()})
    with faults.gathered():
        config = with_version(config)
        there.add("data")
    with faults.gathered():
        config = with_source(config)
        there.add("metric")
    own_test, benchmarks = _test_rows(config)
    given = [Benchmark(file.name, file, is_asked_for=True) for file in against]
    return check(
        config,
        function,
        own_test=own_test,
        benchmarks=[*benchmarks, *given],
        faults=faults,
        has_rows=there == {"start", "data", "metric"},
    )


def prepared_run(
    config: RunConfig,
    out: Path | None = None,
    *,
    function: Callable[..., Any] | None = None,
    against: Sequence[Path] = (),
) -> "Prepared":
    """Make all checks of a run and get it ready. Arguments are those of ``check_run``; close the verifier in the end.

    Raises:
        RatchetError: what stands in the way; NotReady for several faults.
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


def refuse_unusable(out: Path | None) -> None:
    """Refuse a folder for a new run that holds something already, or has no room.

    Raises:
        Conflict: it exists and is not empty, or cannot be made.
        DiskFull: its disk has no room for a run.
    """
    if out is not None:
        RunFolder.refuse_taken(resolved(out))
    place, advice = out or ratchet_home(), "Choose another --out." if out else "Set RATCHET_HOME to another folder."
    with unusable_as_error(place, advice):
        check_room(_existing_parent(place, advice), _LEAST_ROOM_BYTES)


def _versions() -> "list[DatasetSummary]":
    """Return all versions of datasets; without opening the database where there are none."""
    if not any(versions_home().glob("[!.]*")):
        return []
    from ratchet.service.datasets import list_datasets

    return list_datasets()


def _test_rows(config: RunConfig) -> tuple[Benchmark | None, list[Benchmark]]:
    """Return the test rows of the run's own data, and those of all other datasets that are kept here."""
    own_test = None
    others = []
    path = getattr(config.data, "path", "")
    versions = _versions()
    own = config.data if isinstance(config.data, DatasetData) else None
    own_origins = {version.origin for version in versions if own and version.name == own.name}
    own_origins |= {os.path.abspath(os.path.expanduser(path))} if path else set()
    for version in versions:
        file = split_file(versions_home() / version.content_hash, "test")
        if not file.is_file():
            continue
        if own and version.name == own.name:
            if version.content_hash == own.content_hash:
                own_test = Benchmark("test", file)
        # Other versions of the same data, and other datasets from the same place, share rows with it by nature: they
        # were split another way, or replaced.
        elif version.origin not in own_origins:
            others.append(Benchmark(f"test of dataset {version.name}@{version.version}", file))
    beside = Path(os.path.expanduser(path)) / "test.jsonl"
    if path and beside.is_file():
        own_test = Benchmark("test", beside)
    return own_test, others


def _existing_parent(path: Path, advice: str) -> Path:
    path = resolved(path, advice)
    while not path.exists():
        path = path.parent
    if not path.is_dir():
        raise Conflict(f"{path} is a file, so no run folder can be made in it. {advice}")
    return path
