"""Starting runs, inline or by the scheduler, and resuming them. Torch is imported only by what trains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.config import RunConfig
from ratchet.run.display import most_expensive
from ratchet.run.events import Listener, OnProgress, RunPhase
from ratchet.run.records import RunResult
from ratchet.run.run_folder import RunFolder
from ratchet.service.runs.registry import Origin, bring_up_to_date, new_run, open_store
from ratchet.service.runs.scheduling import Queued, refuse_function, take_inline, waiting
from ratchet.service.runs.start_checks import prepared_run
from ratchet.service.verification.report_gate import AskToConfirm, confirmed, state

if TYPE_CHECKING:
    from ratchet.engine.prepare import Prepared


@dataclass(frozen=True)
class Launch:
    """What is said once before a run starts. ``config`` is resolved; no ``time_limit_hours``: there is no limit.

    ``cost`` says what the run may cost at most, where a price is given.
    """

    device: str
    time_limit_hours: float | None
    cost: str | None
    report: str
    folder: Path
    config: RunConfig


def create_and_train(  # noqa: PLR0913 - the door for every surface: each gives some of these
    config: RunConfig,
    out: Path | None = None,
    *,
    function: Callable[..., Any] | None = None,
    listeners: Sequence[Listener] = (),
    against: Sequence[Path] = (),
    ask: AskToConfirm | None = None,
    on_launch: Callable[[Launch], None] = lambda launch: None,
    origin: Origin | None = None,
) -> RunResult:
    """Check a run, make its folder, and work on it until it ends. A run that fails its checks leaves no folder.

    Args:
        config: Settings as given.
        out: The run folder; one under the user's data folder by default.
        function: The user's own verifier, for ``verifier.kind`` python.
        listeners: Whom to tell.
        against: JSONL files of rows that the user scores on: no row to train on may be among them.
        ask: Shown the report of the verifier where none is confirmed yet; None where nobody can be asked.
        on_launch: Told what is about to start, once.
        origin: The run or draft that it is made from.

    Raises:
        InvalidSetting, IncompatibleData, ModelUnavailable, DiskFull, MetricRefused, SandboxUnavailable: before any
            weights load; NotReady for several of them.
        Conflict: the same, or the report of the verifier is not confirmed.
        RatchetError: what failed the run afterwards; its folder says so too.
    """
    from ratchet import worker

    asked = _Asked(config, out, function, against, ask, is_kept=False, origin=origin)
    prepared, folder, launch = _made(asked, _progress_of(listeners))
    try:
        on_launch(launch)
    except BaseException:
        prepared.close()
        raise
    try:
        return worker.run(folder, prepared=prepared, function=function, listeners=listeners)
    finally:
        bring_up_to_date(folder)


def create_and_queue(
    config: RunConfig,
    out: Path | None = None,
    *,
    against: Sequence[Path] = (),
    ask: AskToConfirm | None = None,
    on_launch: Callable[[Launch], None] = lambda launch: None,
    on_progress: OnProgress = lambda phase, done, total: None,
    origin: Origin | None = None,
) -> Queued:
    """Check a run and confirm its report as ``create_and_train`` does, and queue it.

    Raises:
        InvalidSetting: its verifier is a function of this process, which no other one has.
        RatchetError: those of ``create_and_train`` before any round.
    """
    refuse_function(config)
    asked = _Asked(config, out, None, against, ask, is_kept=True, origin=origin)
    prepared, folder, launch = _made(asked, on_progress)
    prepared.close()
    on_launch(launch)
    with open_store() as store:
        return waiting(store, store.get(folder.run_id))


def _progress_of(listeners: Sequence[Listener]) -> OnProgress:
    def on_progress(phase: RunPhase, done: int, total: int) -> None:
        for listener in listeners:
            listener.on_progress(phase, done, total)

    return on_progress


@dataclass(frozen=True)
class _Asked:
    """What a run is asked for with; ``is_kept``: the scheduler runs it."""

    config: RunConfig
    out: Path | None
    function: Callable[..., Any] | None
    against: Sequence[Path]
    ask: AskToConfirm | None
    is_kept: bool
    origin: Origin | None


def _made(asked: _Asked, on_progress: OnProgress) -> "tuple[Prepared, RunFolder, Launch]":
    """Check a run, have its report confirmed, and make its folder and its row in the database."""
    with open_store():
        pass  # a database that cannot be used is known before a report is made
    prepared = prepared_run(asked.config, asked.out, function=asked.function, against=asked.against)
    from ratchet.engine.policy import device_name

    try:
        record, report = None, f"none: {prepared.config.objective} learns from given answers, not from its verifier"
        if prepared.config.objective == "rl":
            confirmation = confirmed(prepared, asked.ask, on_progress)
            record, report = confirmation.model_dump(mode="json"), state(confirmation, prepared.config)
        device = device_name(prepared.config.device)
        folder = new_run(prepared.config, asked.out, record, is_kept=asked.is_kept, origin=asked.origin)
    except BaseException:
        prepared.close()
        raise
    limits = prepared.config.limits
    launch = Launch(device, limits.time_hours, most_expensive(limits), report, folder.path, prepared.config)
    return prepared, folder, launch


def resume(
    run_or_folder: str, *, function: Callable[..., Any] | None = None, listeners: Sequence[Listener] = ()
) -> RunResult:
    """Resume a run that was killed or stopped, from its last finished round.

    Raises:
        NotFound: there is no such run.
        Conflict: it has ended, another process works on it, it cannot go on here to the same result, or it never began
            and the report of its verifier is not confirmed; or it is a trial.
    """
    folder = take_inline(run_or_folder)
    from ratchet import worker

    try:
        return worker.run(folder, function=function, listeners=listeners)
    finally:
        bring_up_to_date(folder)
