"""A trial as a worker runs it: set up as the full run is, measured, stored, and ended without an adapter.

What is measured is ``engine/trial_round.py``; what it means, ``engine/prediction.py``. An interrupted trial leaves the
phases that it measured and what to fix first.
"""

from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Any

from ratchet.engine import checkpoint
from ratchet.engine.build import EngineBudgets, new_grader
from ratchet.engine.checkpoint import Progress
from ratchet.engine.memory import MemoryMeter, device_limit
from ratchet.engine.policy import chosen_device, device_name, load_policy
from ratchet.engine.prediction import advice, answers_of, predicted
from ratchet.engine.prepare import Prepared
from ratchet.engine.round_parts import Engine
from ratchet.engine.trial_round import MOST_PROMPTS, Measured, PhaseLog, TrialRound, size_of
from ratchet.errors import DiskFull, Interrupted, RatchetError
from ratchet.files import write_atomically
from ratchet.models.footprint import host_memory
from ratchet.models.model_files import model_config
from ratchet.readiness import window_of
from ratchet.run.endings import Ending, status_of
from ratchet.run.events import Planned, TrialDone
from ratchet.run.records import RoundRecord, RunResult, Seconds, Validation
from ratchet.run.round_lines import rollout_row
from ratchet.run.trial_report import Estimate, HoldsFor, TrialReport
from ratchet.worker.out_of_memory import memory_in_words
from ratchet.worker.session import Session
from ratchet.worker.training_job import engine_of


def work(session: Session, prepared: Prepared, *, is_checked: bool) -> RunResult:
    """Make a trial, store what it found, and return how it ended.

    ``is_checked``: the checks were made before the session began, so that its clock does not count them.

    Raises:
        RatchetError: what failed it; the phases that were measured are stored.
    """
    log = PhaseLog(MemoryMeter(chosen_device(prepared.config.device)))
    if not is_checked:
        log.note("checking", session.budget.elapsed)
    found: dict[str, Any] = {"made_at": datetime.now(UTC).isoformat(timespec="seconds")}
    ending: Ending = "all_rounds"
    message = "The trial is done. It leaves no adapter."
    try:
        _measure(session, prepared, log, found)
    except Interrupted as interrupted:
        ending = interrupted.reason
        message = found["fix_first"] = _given_up(session, ending, log)
    except Exception as error:
        known = isinstance(error, RatchetError)
        found["fix_first"] = str(error) if known else f"Something unforeseen failed ({type(error).__name__})."
        with suppress(DiskFull):  # the fault itself is worth more
            _store(session, found, log)
        raise
    finally:
        prepared.close()
    is_finished = _store(session, found, log).is_finished
    status = "completed" if is_finished else status_of(ending, has_adapter=False)
    return session.end_without_adapter(status, ending, message)


def _measure(session: Session, prepared: Prepared, log: PhaseLog, found: dict[str, Any]) -> None:
    """Set up the engine, make the passes, and put what they mean into ``found``."""
    config = prepared.config
    found["holds_for"] = held = _holds_for(prepared)
    engine: Engine | None = None
    try:
        with log.phase("loading"), session.phase("loading"):
            session.on_progress("loading", 0, 1)
            engine = engine_of(session, prepared, load_policy(config, prepared.chat, prepared.files))
        policy, plan = engine.policy, EngineBudgets.stored(session.folder.read_run()["fixed"])
        found["holds_for"] = held.model_copy(update={"identity": policy.identity, "sampler": plan.sampler.backend})
        for note in prepared.notes:
            session.note(note)
        session.check()
        size = size_of(prepared, policy, plan)
        session.event(Planned(rounds=1, prompts=min(size.prompts, MOST_PROMPTS)))
        with memory_in_words(session, prepared):
            measured = TrialRound(config, engine, new_grader(prepared), log, session.check).measure(
                prepared, size, lambda: _seconds_left(session)
            )
        answers = answers_of(measured.groups)
        prompts = {"training_prompts": len(measured.groups), "validation_prompts": measured.validation_prompts}
        found |= {"answers": answers, **prompts}
        with log.phase("saving"):
            _save(session, engine, measured)
        load = policy.memory_load(held.longest_prompt_tokens, config.rl.max_answer_tokens)
        estimate = _with_shares(predicted(config, measured, size, log.phases, load), log, policy.device)
        found |= {"estimate": estimate, "advice": advice(config, answers, estimate, load)}
    finally:
        if engine:
            engine.sampler.close()


def _seconds_left(session: Session) -> float:
    stop_at = session.budget.stop_at
    return inf if stop_at is None else stop_at - session.budget.elapsed


def _holds_for(prepared: Prepared) -> HoldsFor:
    config = prepared.config
    everything = (*prepared.train, *prepared.validation, *prepared.heldout)
    window = window_of(config, model_config(prepared.files, config.revision), prepared.chat.prompts.window)
    return HoldsFor(
        device=device_name(config.device),
        model=config.model,
        revision=config.revision,
        quantization=config.quantization,
        prompts_per_round=min(config.rl.prompts_per_round, len(prepared.train)),
        answers_per_prompt=config.rl.answers_per_prompt,
        max_answer_tokens=config.rl.max_answer_tokens,
        longest_prompt_tokens=max(len(one.token_ids) for one in everything),
        window_tokens=window.tokens,
        lora_rank=config.lora.rank,
        lora_alpha=config.lora.alpha,
    )


def _save(session: Session, engine: Engine, measured: Measured) -> None:
    """Do what stores a round, in the same order, and leave the answers alone: nothing may continue a trial."""
    folder = session.folder
    folder.write_rollouts(1, (rollout_row(group) for group in measured.groups))
    nothing = Validation(prompts=0, accuracy=0.0, reward=0.0, outcomes={})
    record = RoundRecord(round=1, validation=nothing, best_round=0, best_accuracy=0.0, seconds=Seconds())
    progress = Progress([record], engine.policy.adapter_state(), {})
    content = checkpoint.packed(progress, engine.policy, engine.learner.optimizer, session.budget.elapsed)
    scratch = folder.path / ".trial.tmp"
    try:
        write_atomically(scratch, content)
    finally:
        scratch.unlink(missing_ok=True)


def _with_shares(estimate: Estimate, log: PhaseLog, device: Any) -> Estimate:
    """Add which share of the host's and of the device's memory the full run is expected to take."""
    total, base = device_limit(device), log.meter.base
    host = None if estimate.host_bytes is None or base is None else (base + estimate.host_bytes) / host_memory()
    reserved = estimate.device_reserved_bytes
    share = None if reserved is None or total is None else reserved / total
    return estimate.model_copy(update={"host_share": host, "device_share": share})


def _given_up(session: Session, ending: Ending, log: PhaseLog) -> str:
    if ending != "time_limit":
        return "Stopped as asked, before the trial was done."
    limit = session.budget.limit_seconds or 0.0
    took = max(log.phases.values(), key=lambda phase: phase.seconds, default=None)
    what = "before anything was measured" if took is None else f"{took.name} took {took.seconds:.0f} seconds of it"
    return (
        f"The trial's {limit / 60:.3g} minutes, the lower of Trial minutes and Time limit, were over: {what}. Raise "
        "Trial minutes, or choose lower Max answer tokens or fewer Answers per prompt."
    )


def _store(session: Session, found: dict[str, Any], log: PhaseLog) -> TrialReport:
    report = TrialReport(**found, phases=list(log.phases.values()))
    write_atomically(session.folder.trial_path, report.model_dump_json(indent=1).encode())
    session.event(TrialDone(report=report.model_dump(mode="json")))
    return report
