"""The rounds of a run as a worker runs them: set up, resumed, stored round by round, and scored on held-out problems.

What a round does is ``engine/rounds.py``, of sft and dpo ``engine/tuning.py``; what its end is called and says,
``job.py``.
"""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from ratchet.config import RunConfig
from ratchet.datasets import PromptStream
from ratchet.engine import checkpoint, tuning
from ratchet.engine.build import EngineBudgets, new_engine, new_grader
from ratchet.engine.checkpoint import Progress
from ratchet.engine.grading import Grader
from ratchet.engine.policy import Policy, load_policy
from ratchet.engine.prepare import Prepared
from ratchet.engine.round_parts import Engine, Report, Task, When, number_of_rounds, score
from ratchet.engine.rounds import train
from ratchet.errors import (
    DiskFull,
    Interrupted,
    NotFinite,
    OutOfMemory,
    RatchetError,
    SamplerFailed,
    SandboxUnavailable,
    StopReason,
)
from ratchet.readiness import advice_on_rate, highest_reward
from ratchet.run.endings import ENDINGS, KEEPING_FAULTS, Ending, ending_of
from ratchet.run.events import HeldOut, Planned, RoundDone, Saving
from ratchet.run.records import Group
from ratchet.run.round_lines import rollout_row
from ratchet.worker.fixed import fix
from ratchet.worker.out_of_memory import memory_in_words
from ratchet.worker.reporting import Reporter
from ratchet.worker.session import CountingSampler, Session

# Runs the rounds that are left, as ``engine.rounds.train`` does.
Method = Callable[
    [RunConfig, Engine, Task, Report, Callable[[When], StopReason | None], Progress | None],
    Ending,
]


def rounds(session: Session, prepared: Prepared) -> tuple[Ending, str]:
    """Set up engine and task, run the rounds, and turn a fault that keeps the adapter into an ending."""
    config = prepared.config
    method: Method = train
    if config.objective != "rl":
        method = partial(tuning.train, on_step=partial(session.on_progress, "training"))
    engine: Engine | None = None
    try:
        with session.phase("loading"):
            session.on_progress("loading", 0, 1)
            engine = engine_of(session, prepared, load_policy(config, prepared.chat, prepared.files))
        stream = PromptStream([encoded.prompt for encoded in prepared.train], config.seed)
        grader = replace(new_grader(prepared), on_graded=session.progressed)
        task = Task(stream, {e.prompt.id: e for e in prepared.train}, prepared.validation, grader)
        resumed = _resumed(session, engine, stream)
        advice = advice_on_rate(config, engine.policy.model.get_base_model().num_parameters())
        for note in (*prepared.notes, *filter(None, [advice])):
            session.note(note)
        if resumed is None and prepared.heldout:
            with session.phase("scoring_heldout"), memory_in_words(session, prepared):
                session.heldout_before = _score_heldout(session, engine, prepared, grader, "before", session.check)
        session.event(
            Planned(
                rounds=number_of_rounds(config, len(prepared.train)),
                prompts=len(prepared.train),
                highest_reward=highest_reward(config) if config.objective == "rl" else None,
            )
        )
        ending, message = _trained(session, prepared, engine, task, resumed, method)
        if ENDINGS[ending].scored:
            session.event(Saving())
            _score_best(session, engine, prepared, grader)
        return ending, message
    except Interrupted as interrupted:
        return interrupted.reason, session.stalled
    except KEEPING_FAULTS as error:
        # Before or after the rounds of a session that knows an adapter, such as a resumed one on a full disk.
        return _keeping(session, error)
    finally:
        if engine:
            engine.sampler.close()
        prepared.close()


def _trained(
    session: Session, prepared: Prepared, engine: Engine, task: Task, resumed: Progress | None, method: Method
) -> tuple[Ending, str]:
    """Run the rounds; return how they ended and, for a fault that keeps the adapter, its message."""
    config = prepared.config
    report = Reporter(session, engine.policy, engine.learner.optimizer)
    with session.phase("scoring_start") if resumed is None else nullcontext():
        try:
            with memory_in_words(session, prepared):
                ending = method(config, engine, task, report, session.why_stop, resumed)
            return ending, session.stalled if ending == "stalled" else ""
        except Interrupted as interrupted:
            return interrupted.reason, session.stalled
        except KEEPING_FAULTS as error:
            return _keeping(session, error)


def _keeping(session: Session, error: RatchetError) -> tuple[Ending, str]:
    """Ending and message of a fault where there is an adapter to keep; raise it again elsewhere."""
    if session.progress is None:
        raise error
    return ending_of(error), str(error)


def engine_of(session: Session, prepared: Prepared, policy: Policy) -> Engine:
    """Build optimizer and sampler with what was fixed for the run, fixing it now if this is its first start."""
    fixed = fix(session, prepared, policy, session.note)
    torch.set_num_threads(fixed["threads"])
    session.plan = EngineBudgets.stored(fixed)
    engine = new_engine(prepared, policy, session.plan, session.note)
    return replace(engine, sampler=CountingSampler(engine.sampler, session.on_progress))


def _resumed(session: Session, engine: Engine, stream: PromptStream) -> Progress | None:
    """Go back to the last checkpoint, if there is one, and bring folder and journal into line with it."""
    folder = session.folder
    if not folder.checkpoint_path.exists():
        folder.drop_rollouts_after(-1)
        return None
    progress, active_seconds = checkpoint.restore(folder.checkpoint_path, engine.policy, engine.learner.optimizer)
    stream.restore(progress.stream_state)
    state = folder.state()
    session.start(resumed=True)
    session.progress = progress
    # A session that stopped cleanly also knows the seconds of the round it gave up.
    session.budget.used_before = max(active_seconds, state.ended_seconds)
    folder.drop_rollouts_after(progress.rounds_done)
    journaled = {record.round for record in state.records}
    for record in progress.records:
        if record.round:
            session.budget.record_round(record.seconds.total)
        if record.round not in journaled:
            session.event(RoundDone(record=record))
    session.heldout_before = state.heldout_before
    files = engine.policy.adapter_files(progress.best_state)
    if not folder.holds_adapter(files):  # written again needlessly it would need room that a full disk lacks
        folder.stage_adapter(files)
        folder.put_adapter()
    return progress


def _score_heldout(
    session: Session,
    engine: Engine,
    prepared: Prepared,
    grader: Grader,
    when: Literal["before", "after"],
    check: Callable[[], None],
) -> float:
    """Score the adapter on the held-out problems and keep its answers; return the accuracy."""
    summary, rollouts = score(engine.sampler, grader, prepared.heldout, prepared.config.rl.max_answer_tokens, check)
    pairs = zip(prepared.heldout, rollouts, strict=True)
    write = session.folder.write_heldout_before if when == "before" else session.folder.write_heldout
    write(rollout_row(Group(encoded.prompt, encoded.token_ids, (rollout,))) for encoded, rollout in pairs)
    accuracy = summary.accuracy or 0.0  # always graded here
    session.event(HeldOut(when=when, accuracy=accuracy, prompts=summary.prompts, outcomes=summary.outcomes))
    return accuracy


def _score_best(session: Session, engine: Engine, prepared: Prepared, grader: Grader) -> None:
    """Score the kept adapter on the held-out problems and keep its answers; a fault here costs the score alone."""
    progress = session.progress
    if progress is None or not prepared.heldout:
        return

    def check() -> None:
        """Closing work may use the time kept for closing, but not pass the limit itself."""
        session.progressed()
        limit = session.budget.limit_seconds
        if session.stalled or session.stop_asked.is_set() or (limit is not None and session.budget.elapsed >= limit):
            raise Interrupted("Closing work was given up.", "stopped")

    engine.policy.load_adapter_state(progress.best_state)
    try:
        session.heldout_after = _score_heldout(session, engine, prepared, grader, "after", check)
    except (Interrupted, OutOfMemory, DiskFull, NotFinite, SamplerFailed, SandboxUnavailable) as error:
        with suppress(DiskFull):
            session.note(f"The held-out problems were not scored at the end ({error.code}).")
