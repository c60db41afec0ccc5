"""Scores of the held-out problems, where the source has some: before training, and of the adapter that is kept."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

from ratchet.engine.grading import Grader
from ratchet.engine.prepare import Prepared
from ratchet.engine.round_parts import Engine, score
from ratchet.errors import DiskFull, Interrupted, NotFinite, OutOfMemory, SamplerFailed, SandboxUnavailable
from ratchet.run.events import HeldOut
from ratchet.run.records import Group, Rollout, Validation
from ratchet.run.round_lines import rollout_row
from ratchet.worker.session import Session


def score_before(session: Session, engine: Engine, prepared: Prepared, grader: Grader) -> None:
    """Score the starting adapter on the held-out problems, where the source has some."""
    if prepared.heldout:
        summary, rollouts = _score_heldout(engine, prepared, grader, session.check)
        session.folder.write_heldout_before(_heldout_rows(prepared, rollouts))
        session.heldout_before = _heldout_event(session, "before", summary)


def _score_heldout(
    engine: Engine, prepared: Prepared, grader: Grader, check: Callable[[], None]
) -> tuple[Validation, list[Rollout]]:
    return score(engine.sampler, grader, prepared.heldout, prepared.config.rl.max_answer_tokens, check)


def _heldout_rows(prepared: Prepared, rollouts: Sequence[Rollout]) -> Iterator[dict[str, Any]]:
    for encoded, rollout in zip(prepared.heldout, rollouts, strict=True):
        yield rollout_row(Group(encoded.prompt, encoded.token_ids, (rollout,)))


def _heldout_event(session: Session, when: Literal["before", "after"], summary: Validation) -> float:
    accuracy = summary.accuracy or 0.0  # always graded here
    session.event(HeldOut(when=when, accuracy=accuracy, prompts=summary.prompts, outcomes=summary.outcomes))
    return accuracy


def score_best(session: Session, engine: Engine, prepared: Prepared, grader: Grader) -> None:
    """Score the kept adapter on the held-out problems and keep its answers; a fault here costs the score alone."""
    progress = session.progress
    if progress is None or not prepared.heldout:
        return
    engine.policy.load_adapter_state(progress.best_state)
    try:
        summary, rollouts = _score_heldout(engine, prepared, grader, _give_up_if(session))
        session.folder.write_heldout(_heldout_rows(prepared, rollouts))
        session.heldout_after = _heldout_event(session, "after", summary)
    except (Interrupted, OutOfMemory, DiskFull, NotFinite, SamplerFailed, SandboxUnavailable) as error:
        with suppress(DiskFull):
            session.note(f"The held-out problems were not scored at the end ({error.code}).")


def _give_up_if(session: Session) -> Callable[[], None]:
    """Make a check for closing work: it may use the time kept for closing, but not pass the limit itself."""

    def check() -> None:
        session.progressed()
        limit = session.budget.limit_seconds
        if session.stalled or session.stop_asked.is_set() or (limit is not None and session.budget.elapsed >= limit):
            raise Interrupted("Closing work was given up.", "stopped")

    return check
