"""What can be done with runs: start, resume, list, show, read samples.

A surface parses, calls one of these and renders. Nothing here prints, and torch is imported only by what trains.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ratchet.config import LimitSettings, RunConfig
from ratchet.errors import Conflict
from ratchet.files import damage_as_error
from ratchet.records import RoundRecord, RunResult
from ratchet.report_card import Confirmation
from ratchet.run_folder import RunFolder
from ratchet.service.readiness import prepared_run
from ratchet.service.reports import Ask, confirmed, state

if TYPE_CHECKING:
    from ratchet.worker import Watch

log = logging.getLogger(__name__)

# A run without an end in its journal is at work, or was killed.
SummaryStatus = Literal["training", "interrupted", "completed", "stopped_early", "failed", "cancelled"]


@dataclass(frozen=True)
class Launch:
    """What is said once before a run starts. ``time_limit_hours`` is None where there is no limit.

    ``cost`` says what the run may cost at most, where a price is given.
    """

    device: str
    time_limit_hours: float | None
    cost: str | None
    report: str
    folder: Path


@dataclass(frozen=True)
class RunSummary:
    """What is known of a run from its folder."""

    run: str
    folder: Path
    created_at: str
    status: SummaryStatus
    config: RunConfig
    records: tuple[RoundRecord, ...]
    heldout_before: float | None
    heldout_after: float | None
    ended: dict[str, Any] | None
    notes: tuple[str, ...]
    report: Confirmation | None

    @property
    def cost(self) -> float | None:
        """What the run has cost so far, by its last round or its end; None without a price."""
        by_round = self.records[-1].cost if self.records else None
        return by_round if self.ended is None else self.ended.get("cost", by_round)


def create_and_train(
    config: RunConfig,
    out: Path | None = None,
    *,
    function: Callable[..., Any] | None = None,
    watch: "Watch | None" = None,
    against: Sequence[Path] = (),
    ask: Ask | None = None,
    on_launch: Callable[[Launch], None] = lambda launch: None,
) -> RunResult:
    """Check a run, make its folder, and work on it until it ends. A run that fails its checks leaves no folder.

    Args:
        config: Settings as given.
        out: The run folder; one under the user's data folder by default.
        function: The user's own verifier, for ``verifier.kind`` python.
        watch: Whom to tell.
        against: JSONL files of rows that the user scores on: no row to train on may be among them.
        ask: Shown the report of the verifier where none is confirmed yet; None where nobody can be asked.
        on_launch: Told what is about to start, once.

    Raises:
        InvalidSetting, IncompatibleData, ModelUnavailable, DiskFull, MetricRefused, SandboxUnavailable: before any
            weights load; NotReady for several of them.
        Conflict: the same, or the report of the verifier is not confirmed.
        RatchetError: what failed the run afterwards; its folder says so too.
    """
    prepared = prepared_run(config, out, function=function, against=against)
    from ratchet import worker
    from ratchet.engine.policy import device_name

    watch = watch or worker.Watch()
    try:
        confirmation = confirmed(prepared, ask, watch.on_progress)
        report, device = state(confirmation, prepared.config), device_name(prepared.config.device)
        folder = RunFolder.create(prepared.config, out, confirmation.model_dump(mode="json"))
    except BaseException:
        prepared.close()
        raise
    limits = prepared.config.limits
    on_launch(Launch(device, limits.time_hours, _most_expensive(limits), report, folder.path))
    return worker.run(folder, prepared=prepared, function=function, watch=watch)


def _most_expensive(limits: LimitSettings) -> str | None:
    """Say what a run may cost at most; None without a price."""
    if limits.price_per_hour is None:
        return None
    price = f"{limits.price_per_hour:g} {limits.currency} an hour"
    bounds = [limits.cost_cap] if limits.cost_cap is not None else []
    if limits.time_hours is not None:
        bounds.append(limits.time_hours * limits.price_per_hour)
    return f"at most {min(bounds):.2f} {limits.currency}, {price}" if bounds else f"{price}, no limit"


def resume(
    run_or_folder: str, *, function: Callable[..., Any] | None = None, watch: "Watch | None" = None
) -> RunResult:
    """Go on with a run that was killed or stopped, from its last finished round.

    Raises:
        NotFound: there is no such run.
        Conflict: it has ended, another process works on it, it cannot go on here to the same result, or it never began
            and the report of its verifier is not confirmed.
    """
    folder = RunFolder.find(run_or_folder)
    from ratchet import worker

    worker.refuse_ended(folder)
    worker.refuse_unconfirmed(folder)
    folder.stop_path.unlink(missing_ok=True)  # whoever resumes a run no longer wants it stopped
    return worker.run(folder, function=function, watch=watch)


def list_runs() -> list[RunSummary]:
    """Return every run that is still in its folder, oldest first. A damaged one is named in the log and left out."""
    found = []
    for folder in RunFolder.all():
        try:
            found.append(_summary(folder))
        except Conflict as error:
            log.warning("%s", error)
    return found


def summary(run_or_folder: str) -> RunSummary:
    """Return what is known of one run.

    Raises:
        NotFound: there is no such run.
        Conflict: its files are damaged.
    """
    return _summary(RunFolder.find(run_or_folder))


def samples(run_or_folder: str, number: int | None) -> tuple[str, list[dict[str, Any]]]:
    """Return what a round's samples are called, and the samples; the last round with samples for None.

    Round 0 stands for the kept adapter's answers to the held-out problems.

    Raises:
        NotFound: no such run, or that round has no samples.
    """
    folder = RunFolder.find(run_or_folder)
    if number == 0:
        return "held-out problems", _checked(folder.heldout_path, folder.read_heldout())
    chosen = number if number is not None else folder.last_rollouts()
    return f"round {chosen}", _checked(folder.rollouts_file(chosen), folder.read_rollouts(chosen))


def _checked(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows if each holds what surfaces show of it.

    Raises:
        Conflict: one does not; the file is damaged.
    """
    with damage_as_error(path):
        for row in rows:
            answers = row["answers"]
            texts = [row["prompt"][-1]["content"], row["ground_truth"]]
            texts += [answer[name] for answer in answers for name in ("text", "outcome")]
            numbers = [answer[name] for answer in answers for name in ("reward", "correctness")]
            is_whole = all(isinstance(text, str) for text in texts) and all(isinstance(n, int | float) for n in numbers)
            if not answers or not is_whole or "prompt_id" not in row:
                raise ValueError("no samples")
    return rows


def changed_samples(run_or_folder: str, count: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return up to ``count`` held-out problems as rows before and after training, those that became right first.

    Raises:
        NotFound: there is no such run, or it did not score the held-out problems.
    """
    folder = RunFolder.find(run_or_folder)
    before = _checked(folder.heldout_before_path, folder.read_heldout_before())
    after = _checked(folder.heldout_path, folder.read_heldout())
    with damage_as_error(folder.heldout_path):
        pairs = list(zip(before, after, strict=True))

    def correctness(row: dict[str, Any]) -> float:
        return float(row["answers"][0]["correctness"])

    return sorted(pairs, key=lambda pair: correctness(pair[0]) - correctness(pair[1]))[:count]


def _summary(folder: RunFolder) -> RunSummary:
    events = list(folder.events())
    reported = [event["record"] for event in events if event["event"] == "round"]
    with damage_as_error(folder.events_path):
        by_round = {record["round"]: RoundRecord.model_validate(record) for record in reported}
    heldout = {event["when"]: event["accuracy"] for event in events if event["event"] == "heldout"}
    # What an earlier session ended with is history once the run was resumed.
    last = next((event for event in reversed(events) if event["event"] in ("started", "ended")), None)
    is_at_work = folder.is_locked()
    ended = last if last is not None and last["event"] == "ended" and not is_at_work else None
    status: SummaryStatus = ended["status"] if ended else ("training" if is_at_work else "interrupted")
    record = folder.read_run()
    return RunSummary(
        run=record["id"],
        folder=folder.path,
        created_at=record["created_at"],
        status=status,
        config=folder.read_config(),
        records=tuple(by_round[number] for number in sorted(by_round)),
        heldout_before=heldout.get("before"),
        heldout_after=heldout.get("after") if ended else None,
        ended=ended,
        notes=tuple(dict.fromkeys(event["text"] for event in events if event["event"] == "note")),
        report=_confirmation(folder, record),
    )


def _confirmation(folder: RunFolder, record: dict[str, Any]) -> Confirmation | None:
    """Return who has read the report before the run started; None for a run from before there were reports."""
    with damage_as_error(folder.run_path):
        return Confirmation.model_validate(record["report"]) if "report" in record else None
