"""What can be done with metrics of the user's own: add a version, list, show, archive, try one out.

A metric runs in the sandbox alone. One that cannot be loaded there is not added.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.config import CompositeVerifier, CustomVerifier, RunConfig, VerifierSettings
from ratchet.datasets.readers import BadRow, table
from ratchet.datasets.rows import converted
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting, MetricRefused, NotFound
from ratchet.run.records import Outcome
from ratchet.sandbox.metric_pool import MetricPool
from ratchet.sandbox.metric_process import MOST_SOURCE_CHARACTERS
from ratchet.service.data.datasets import checked_name, named_version, parsed_reference

if TYPE_CHECKING:
    from ratchet.store import StoredMetric

_MOST_SOURCE_BYTES = 4 * MOST_SOURCE_CHARACTERS + 3  # as UTF-8, with a byte order mark


@dataclass(frozen=True)
class TriedRow:
    """What a metric made of one row: a score in 0..1, 0 where it failed, and then how."""

    score: float
    outcome: Outcome
    failure: str | None


def add(file: Path, name: str) -> "StoredMetric":
    """Keep a file's source as the next version of a metric, once it has been loaded in the sandbox.

    The same source again is the version that has it already, archived or not.

    Raises:
        InvalidSetting, IncompatibleData: the name cannot be used, or the file cannot be read.
        MetricRefused: the source is too long, or no metric.
        SandboxUnavailable: this machine cannot run metrics.
    """
    from ratchet.store import Database, MetricStore

    checked_name(name)
    source = source_of(file)
    with closing(MetricPool(source, name=name, workers=1)) as pool:
        pool.check()
    with closing(Database()) as database:
        return MetricStore(database).add(name, source)


def list_metrics() -> "list[StoredMetric]":
    """All versions of all metrics, by name and version."""
    from ratchet.store import Database, MetricStore

    with closing(Database()) as database:
        return MetricStore(database).all()


def show(reference: str, version: int | None = None) -> "StoredMetric":
    """NAME@VERSION; of NAME alone the newest active version, or the newest where all are archived.

    Raises:
        NotFound: there is no such version.
    """
    from ratchet.store import Database, MetricStore

    with closing(Database()) as database:
        return MetricStore(database).get(*named_version("Metric", reference, version))


def archive(reference: str) -> "StoredMetric":
    """Archive NAME@VERSION; of NAME alone the newest active version. New runs are refused it, old ones keep it.

    Raises:
        NotFound: there is no such version.
        Conflict: it is archived already.
    """
    from ratchet.store import Database, MetricStore

    with closing(Database()) as database:
        return MetricStore(database).archive(*parsed_reference(reference))


def for_run(name: str, version: int | None) -> "StoredMetric":
    """The version that a new run is graded with, the newest active one for None.

    Raises:
        NotFound: there is no such version.
        Conflict: it is archived.
    """
    found = show(name, version)
    if not found.is_active:
        raise Conflict(
            f"Version {found.version} of metric {found.name} is archived and cannot be used in new runs. Choose an "
            "active version (ratchet metric list), or add a different source: the same one stays archived."
        )
    return found


def with_source(config: RunConfig, *, is_new_run: bool = True) -> RunConfig:
    """A run's settings with the version of its metric, and that version's source, filled in.

    A composite's and those of the watch metric too.

    Settings that bring the source of a metric which is not kept here, such as those of another machine's run, stay as
    they are. Where no run is meant, but answers or data are checked, so do all that bring a source, and an
    archived version is as good as any.

    Raises:
        NotFound: there is no such metric or version.
        Conflict: it is archived, and a new run is meant.
        InvalidSetting: the settings bring a source that is not the version's.
    """
    given = {"verifier": config.verifier, "watch": config.watch}
    return config.model_copy(update={name: _filled(verifier, is_new_run, name) for name, verifier in given.items()})


def _filled(verifier: VerifierSettings | None, is_new_run: bool, section: str) -> VerifierSettings | None:
    if isinstance(verifier, CustomVerifier):
        return _with_source(verifier, is_new_run, section)
    if isinstance(verifier, CompositeVerifier):
        parts = [
            part.model_copy(update={"verifier": _with_source(part.verifier, is_new_run, section)})
            if isinstance(part.verifier, CustomVerifier)
            else part
            for part in verifier.parts
        ]
        return verifier.model_copy(update={"parts": tuple(parts)})
    return verifier


def _with_source(verifier: CustomVerifier, is_new_run: bool, section: str) -> CustomVerifier:
    if not verifier.metric or (verifier.source and not is_new_run):
        return verifier
    try:
        found = (for_run if is_new_run else show)(verifier.metric, verifier.version)
    except NotFound:
        if verifier.source:
            return verifier
        raise
    if verifier.source not in ("", found.source):
        raise InvalidSetting(
            f"The settings bring a source for metric {found.name} that is not its version {found.version}. Leave "
            f"{section}.source out, name the version that is meant, or give {section}.metric a name of its own.",
            f"{section}.source",
        )
    return verifier.model_copy(update={"metric": found.name, "version": found.version, "source": found.source})


def try_out(file: Path, rows: Path) -> list[TriedRow]:
    """Score the rows ``{answer, reference}`` of a JSONL, CSV or Parquet file with a metric, without adding it.

    Raises:
        IncompatibleData: the file or the rows cannot be read; rows are named by number.
        MetricRefused: the source is too long, or no metric.
        SandboxUnavailable: this machine cannot run metrics.
    """
    if not rows.is_file():
        raise IncompatibleData(f"There is no file {rows} with rows to try the metric on.")
    source = source_of(file)
    pairs = list(converted(table([rows]), _pair))
    with closing(MetricPool(source, name=file.stem)) as pool:
        pool.check()
        scores = pool.score_many(pairs)
    return [
        TriedRow(0.0, "failed", score.failure) if score.value is None else TriedRow(score.value, "graded", None)
        for score in scores
    ]


def _pair(number: int, row: Mapping[str, Any]) -> tuple[str, str]:
    for column in ("answer", "reference"):
        if not isinstance(row.get(column), str):
            raise BadRow(f"the column {column} is missing or not text")
    return row["answer"], row["reference"]


def source_of(file: Path) -> str:
    """The source of a metric.

    Raises:
        IncompatibleData: the file cannot be read.
        MetricRefused: it is too long, or no text.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_SOURCE_BYTES + 1)
    except OSError as error:
        raise IncompatibleData(f"The metric {file} cannot be read: {error.strerror}.") from error
    if len(content) > _MOST_SOURCE_BYTES:
        raise MetricRefused(
            f"Metric {file.name} is refused: its source is longer than the limit of {MOST_SOURCE_CHARACTERS:,} "
            "characters."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MetricRefused(f"Metric {file.name} is refused: it is not valid UTF-8. Save it as UTF-8.") from error
