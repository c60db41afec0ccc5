"""The steps of jobs: runs and evaluations that name their loop or experiment as owner, each started once.

Nothing is counted beside them: the conductor looks at the steps that exist and starts the next one, so that a process
that is killed between two steps, or in the middle of one, loses nothing and doubles nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ratchet.config import RunConfig
from ratchet.errors import Conflict, RatchetError
from ratchet.files import ratchet_home
from ratchet.run.endings import AT_WORK
from ratchet.run.records import Record
from ratchet.service.runs.registry import Origin, new_run
from ratchet.service.runs.scheduling import queue_again, stop
from ratchet.service.runs.start_checks import check_run

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun

StepState = Literal["none", "working", "done", "lost"]


def this_home() -> str:
    """The RATCHET_HOME whose scheduler carries out jobs that are created now."""
    return str(ratchet_home().resolve())


@dataclass(frozen=True)
class JobSteps:
    """What one loop or experiment has started: name of a step -> its tries, oldest first."""

    owner: str
    tries: Mapping[str, "tuple[StoredRun, ...]"]

    @classmethod
    def of(cls, store: "RunStore", owner: str) -> "JobSteps":
        """What ``owner``, such as loop/ID, has started."""
        tries: dict[str, list[StoredRun]] = {}
        for run in store.owned_by(owner):
            step, _, _ = str(run.owner).removeprefix(f"{owner}/").rpartition("/")
            tries.setdefault(step, []).append(run)
        return cls(owner, {step: tuple(found) for step, found in tries.items()})

    def last(self, step: str) -> "StoredRun | None":
        """The last try of a step, None before the first."""
        found = self.tries.get(step, ())
        return found[-1] if found else None

    def state(self, step: str) -> StepState:
        """State of the last try of a step: "done" with an adapter or scores, "lost" if it ended without."""
        return state_of(self.last(step))

    def number(self, step: str) -> int:
        """How many tries a step has had."""
        return len(self.tries.get(step, ()))

    @property
    def at_work(self) -> "list[StoredRun]":
        """The steps that are queued or running."""
        return [run for tries in self.tries.values() for run in tries if run.status in ("queued", *AT_WORK)]

    def owner_of(self, step: str) -> str:
        """Owner of the next try of a step."""
        return f"{self.owner}/{step}/{self.number(step) + 1}"


@dataclass(frozen=True)
class NextMove:
    """What a job does now.

    Attributes:
        status: That it has from now on.
        start: Start its next steps, once the status is set. Each raises RatchetError where it cannot.
        stop: Runs that are asked to stop.
        has_ended: Whether the job is over. Nothing is started then, and ``message`` and ``report`` are kept.
    """

    status: str
    start: Sequence[Callable[[], object]] = ()
    stop: "Sequence[StoredRun]" = ()
    has_ended: bool = False
    message: str = ""
    report: Record | None = None


def state_of(run: "StoredRun | None") -> StepState:
    """State of a run or an evaluation: "done" with its adapter or its scores, "lost" if it ended without."""
    if run is None:
        return "none"
    if run.status in ("queued", *AT_WORK):
        return "working"
    is_done = run.status == "completed" if run.kind == "evaluation" else bool(run.adapter_sha256)
    return "done" if is_done else "lost"


def begin_run(
    config: RunConfig, confirmation: Mapping[str, Any] | None, steps: JobSteps, step: str, origin: Origin | None = None
) -> None:
    """Check a run and queue it as a step. Of two processes that begin the same step at once, one does.

    Raises:
        RatchetError: what the checks found, or the run cannot be created.
    """
    report = check_run(config)
    report.close()
    report.raise_faults()
    further = {"owner": steps.owner_of(step)}
    new_run(report.config, None, confirmation, is_kept=True, origin=origin, further=further)


def stop_all(runs: "Sequence[StoredRun]") -> None:
    """Ask runs to stop; those that have ended meanwhile are fine."""
    for run in runs:
        if run.stop_requested_at is None:
            with suppress(Conflict):
                stop(run.id)


def resume_stopped(steps: JobSteps, names: Iterable[str]) -> None:
    """Queue those of some steps again that were stopped.

    Not named may be what was built upon since: an adapter that was scored must not become another one.
    """
    for step in names:
        run = steps.last(step)
        if run is not None and run.ending == "stopped":
            with suppress(RatchetError):
                queue_again(run.id, run.kind)
