"""The steps of loops and experiments: runs and evaluations that name their owner, started once.

Nothing is counted beside them: whoever conducts looks at the steps that exist and starts the next one, so that a
process that is killed between two steps, or in the middle of one, loses nothing and doubles nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from ratchet.config import RunConfig
from ratchet.errors import Conflict, RatchetError
from ratchet.files import ratchet_home
from ratchet.run.endings import RESUMABLE
from ratchet.run.records import AT_WORK
from ratchet.service.evaluations.evaluation_setup import Request
from ratchet.service.evaluations.evaluations import queue_evaluation
from ratchet.service.runs.registry import Origin, new_run
from ratchet.service.runs.scheduling import queue_again, stop
from ratchet.service.runs.start_checks import check_run

if TYPE_CHECKING:
    from ratchet.store import RunStore, StoredRun
    from ratchet.store.job_rows import PlanStore

StepState = Literal["none", "working", "done", "lost"]


def this_home() -> str:
    """Return what a loop or experiment that is made now is carried out by: the keeper of this RATCHET_HOME."""
    return str(ratchet_home().resolve())


@dataclass(frozen=True)
class Steps:
    """What one loop or experiment has started: name of a step -> its tries, oldest first."""

    owner: str
    tries: Mapping[str, "tuple[StoredRun, ...]"]

    def last(self, step: str) -> "StoredRun | None":
        """Return the last try of a step, None where it was not begun."""
        found = self.tries.get(step, ())
        return found[-1] if found else None

    def state(self, step: str) -> StepState:
        """Tell how the last try of a step stands: done with what it was for, or ended without ("lost")."""
        return state_of(self.last(step))

    def number(self, step: str) -> int:
        """Return how many tries a step has had."""
        return len(self.tries.get(step, ()))

    @property
    def at_work(self) -> "list[StoredRun]":
        """The steps that wait for the keeper or are worked on."""
        return [run for tries in self.tries.values() for run in tries if run.status in ("queued", *AT_WORK)]

    def owner_of(self, step: str) -> str:
        """Return what the next try of a step is owned as."""
        return f"{self.owner}/{step}/{self.number(step) + 1}"


def steps_of(store: "RunStore", owner: str) -> Steps:
    """Return what ``owner``, such as loop/ID, has started."""
    tries: dict[str, list[StoredRun]] = {}
    for run in store.owned_by(owner):
        step, _, _ = str(run.owner).removeprefix(f"{owner}/").rpartition("/")
        tries.setdefault(step, []).append(run)
    return Steps(owner, {step: tuple(found) for step, found in tries.items()})


def state_of(run: "StoredRun | None") -> StepState:
    """Tell how a run or an evaluation stands: with its adapter, or its scores, or without."""
    if run is None:
        return "none"
    if run.status in ("queued", *AT_WORK):
        return "working"
    is_done = run.status == "completed" if run.kind == "evaluation" else bool(run.adapter_sha256)
    return "done" if is_done else "lost"


def begin_run(
    config: RunConfig, confirmation: Mapping[str, Any] | None, steps: Steps, step: str, origin: Origin | None = None
) -> None:
    """Leave a run to the keeper as a step. Checks are made first; of two that begin it at once, one does.

    Raises:
        RatchetError: what the checks found, or the run cannot be made.
    """
    report = check_run(config)
    report.close()
    report.raise_faults()
    further = {"owner": steps.owner_of(step)}
    new_run(report.config, None, confirmation, is_kept=True, origin=origin, further=further)


def begin_evaluation(request: Request) -> None:
    """Leave an evaluation to the keeper as a step. Errors as of ``queue_evaluation``."""
    queue_evaluation(request)


def stop_all(runs: "Sequence[StoredRun]") -> None:
    """Ask runs to end in good order; those that have ended meanwhile are fine."""
    for run in runs:
        if run.stop_requested_at is None:
            with suppress(Conflict):
                stop(run.id)


def ask_to_stop(plans: "PlanStore", id: str, open_statuses: Collection[str]) -> None:
    """Ask a loop or an experiment to end: nothing more is started, and what is at work ends in good order.

    Raises:
        NotFound: there is none of this id.
        Conflict: it has ended.
    """
    stored = plans.get(id)
    if stored.status not in open_statuses:
        raise Conflict(f"{plans.kind.capitalize()} {id} has ended already ({stored.status.replace('_', ' ')}).")
    plans.change(id, stop_requested_at=datetime.now(UTC))


def forget(store: "RunStore", runs: "Sequence[StoredRun]") -> None:
    """Let steps that failed stand for themselves from now on, so that whoever started them starts them anew."""
    for run in runs:
        store.change(run.id, owner=None)


def resume_stopped(steps: Steps, names: Iterable[str]) -> int:
    """Let the keeper go on with those of some steps that were stopped; return how many there were.

    Not named may be what was built upon since: an adapter that was scored is not to become another one.
    """
    resumed = 0
    for step in names:
        run = steps.last(step)
        if run is not None and run.ending == "stopped" and run.ending in RESUMABLE:
            with suppress(RatchetError):
                queue_again(run.id, run.kind)
                resumed += 1
    return resumed
