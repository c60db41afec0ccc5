"""The worker: one run, from its folder to its end. ``python -m ratchet.worker FOLDER`` works on a run and exits.

Joins the engine to the run folder: opens or resumes the run, watches clock and signals, writes every finished round
in an order that a kill cannot hurt, and turns whatever ended the rounds into an ending with the best adapter kept.
It takes no decision about learning (``engine/rounds.py``) and knows no database or web.
"""

import hashlib
import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ratchet.config import RunConfig
from ratchet.datasets import PromptStream
from ratchet.engine import checkpoint
from ratchet.engine.budget import TimeBudget
from ratchet.engine.build import Plan, new_engine, new_grader
from ratchet.engine.checkpoint import Progress
from ratchet.engine.distribution import SamplingSettings
from ratchet.engine.evaluate import score
from ratchet.engine.grading import Grader
from ratchet.engine.policy import Policy, load_policy
from ratchet.engine.prepare import Prepared, data_hash, prepare
from ratchet.engine.rounds import Engine, StopReason, Task, When, diagnosis, number_of_rounds, train
from ratchet.engine.sampler import Sampled, Sampler, SampleRequest
from ratchet.engine.sampler.choice import what_stops_vllm
from ratchet.errors import (
    Conflict,
    DiskFull,
    Interrupted,
    NoLearningSignal,
    NotFinite,
    OutOfMemory,
    RatchetError,
    SamplerFailed,
    SandboxUnavailable,
    VerifierFailing,
)
from ratchet.journal import RunFolder, write_atomically
from ratchet.readiness import advice_on_rate, highest_reward
from ratchet.records import Ending, Group, Rollout, RoundRecord, RunResult, RunStatus, Validation
from ratchet.round_lines import log_line, rollout_row

log = logging.getLogger(__name__)

# Faults that end a run early with its best adapter, once round 0 is scored.
_KEEPING: dict[type[RatchetError], Ending] = {
    VerifierFailing: "metric_failures",
    OutOfMemory: "out_of_memory",
    DiskFull: "disk_full",
    SamplerFailed: "sampler_failed",
    SandboxUnavailable: "sandbox_unavailable",
    NotFinite: "not_finite",
}
_WHY: dict[Ending, str] = {
    "all_rounds": "All rounds are done.",
    "nothing_left": "Every answer of the last rounds was right: there is nothing left to learn here.",
    "time_limit": "The time limit came near.",
    "stopped": "Stopped as asked.",
}
_RESUMABLE = (
    "stopped",
    "out_of_memory",
    "disk_full",
    "sampler_failed",
    "sandbox_unavailable",
    "error",
    "metric_failures",
)
_PINNED = ("ratchet-rl", "torch", "transformers", "peft")


@dataclass
class Watch:
    """What someone may want to see of a run under way. Every function may be left as it is."""

    on_event: Callable[[dict[str, Any]], None] = lambda event: None
    on_progress: Callable[[str, int, int], None] = lambda phase, done, total: None


@dataclass
class _Session:
    """One process's work on a run."""

    folder: RunFolder
    watch: Watch
    budget: TimeBudget
    progress: Progress | None = None
    heldout_before: float | None = None
    heldout_after: float | None = None
    stop_asked: threading.Event = field(default_factory=threading.Event)
    is_started: bool = False
    phase_seconds: dict[str, float] = field(default_factory=dict)

    def start(self, *, resumed: bool) -> None:
        """Enter the session in the journal: from now on, how it ends is how the run ends."""
        self.event("started", run=self.folder.run_id, resumed=resumed)
        self.is_started = True

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what comes before round 0, to name what took the time if there was too little."""
        started = self.budget.elapsed
        try:
            yield
        finally:
            self.phase_seconds[name] = self.budget.elapsed - started

    def event(self, kind: str, **fields: Any) -> None:
        self.watch.on_event(self.folder.append_event(kind, **fields))

    def why_stop(self, when: When) -> StopReason | None:
        if self.stop_asked.is_set():
            return "stopped"
        over = self.budget.is_over if when == "within" else not self.budget.allows_a_round
        return "time_limit" if over else None

    def check(self) -> None:
        if reason := self.why_stop("within"):
            raise Interrupted("Given up before the first round.", reason)


def run(
    folder: RunFolder,
    *,
    prepared: Prepared | None = None,
    function: Callable[..., Any] | None = None,
    watch: Watch | None = None,
    now: Callable[[], float] = time.monotonic,
) -> RunResult:
    """Work on a run until it ends; return how it ended.

    Args:
        folder: A run that was created, and perhaps worked on before.
        prepared: The checks' result, where they were just made for this run; they are repeated otherwise.
        function: The user's own verifier, for runs that have one.
        watch: Whom to tell.
        now: A clock in seconds.

    Raises:
        Conflict: the run is over, or another process works on it, or it cannot go on here to the same result.
        RatchetError: whatever failed the run before anything could be kept; it is in the journal too.
    """
    with folder.locked():
        config = folder.read_config()
        refuse_ended(folder)
        limit = config.limits.time_hours
        budget = TimeBudget(None if limit is None else limit * 3600, now)
        session = _Session(folder, watch or Watch(), budget)
        with _signals(session):
            # A run that cannot be resumed here is refused, and stays what it was: its session starts in ``_resumed``.
            if not folder.checkpoint_path.exists():
                session.start(resumed=False)
            try:
                prepared = prepared or prepare(config, function)
                ending, message = _rounds(session, prepared)
            except Exception as error:
                _record_failure(session, error)
                raise
            return _close(session, prepared, ending, message)


def refuse_ended(folder: RunFolder) -> None:
    """Refuse to work on a run that has nothing left to do.

    Raises:
        Conflict: it completed, failed for want of a signal, or used up its time.
    """
    ended = [event for event in folder.events() if event["event"] == "ended"]
    if not ended or ended[-1]["ending"] in _RESUMABLE:
        return
    status = str(ended[-1]["status"]).replace("_", " ")
    raise Conflict(
        f"Run {folder.run_id} is {status} ({str(ended[-1]['ending']).replace('_', ' ')}). Only a run that was stopped "
        "or interrupted can be resumed; start a new one for more rounds or more time."
    )


def refuse_unconfirmed(folder: RunFolder) -> None:
    """Refuse to begin a run whose verifier's report nobody has confirmed: one that was not made by the service.

    Runs that have begun go on, also those from before there were reports.

    Raises:
        Conflict: there is neither a confirmation in its record nor a checkpoint.
    """
    if "report" not in folder.read_run() and not folder.checkpoint_path.exists():
        raise Conflict(
            f"Run {folder.run_id} has not begun, and nobody has confirmed the report of its verifier. Start it anew "
            f"with its settings: ratchet train {folder.config_path}"
        )


def _rounds(session: _Session, prepared: Prepared) -> tuple[Ending, str]:
    """Set up engine and task, run the rounds, and turn what keeps an adapter into an ending."""
    config = prepared.config
    engine: Engine | None = None
    try:
        with session.phase("loading the model"):
            session.watch.on_progress("loading", 0, 1)
            engine = _engine(session, prepared, load_policy(config, prepared.chat, prepared.files))
        stream = PromptStream([encoded.prompt for encoded in prepared.train], config.seed)
        grader = new_grader(prepared)
        task = Task(stream, {e.prompt.id: e for e in prepared.train}, prepared.validation, grader)
        resumed = _resumed(session, engine, stream)
        advice = advice_on_rate(config, engine.policy.model.get_base_model().num_parameters())
        for note in (*prepared.notes, *filter(None, [advice])):
            session.event("note", text=note)
        if resumed is None:
            with session.phase("scoring the held-out problems"):
                _score_before(session, engine, prepared, grader)
        ending, message = _trained(session, config, engine, task, resumed)
        if ending not in ("stopped", "disk_full", "out_of_memory", "sampler_failed", "sandbox_unavailable"):
            _score_best(session, engine, prepared, grader)
        return ending, message
    except Interrupted as interrupted:
        return interrupted.reason, ""
    except tuple(_KEEPING) as error:
        # Before or after the rounds of a session that knows an adapter, such as a resumed one on a full disk.
        return _keeping(session, error)
    finally:
        if engine:
            engine.sampler.close()
        prepared.verifier.close()


def _trained(
    session: _Session, config: RunConfig, engine: Engine, task: Task, resumed: Progress | None
) -> tuple[Ending, str]:
    """Run the rounds; return how they ended and, for a fault that keeps the adapter, its message."""
    with session.phase("scoring the starting adapter") if resumed is None else nullcontext():
        try:
            return train(config, engine, task, _report(session, engine), session.why_stop, resumed), ""
        except Interrupted as interrupted:
            return interrupted.reason, ""
        except tuple(_KEEPING) as error:
            return _keeping(session, error)


def _keeping(session: _Session, error: RatchetError) -> tuple[Ending, str]:
    """Return the ending of a fault and its message where there is an adapter to keep; raise it again elsewhere."""
    if session.progress is None:
        raise error
    return _KEEPING[type(error)], str(error)


def _engine(session: _Session, prepared: Prepared, policy: Policy) -> Engine:
    """Build optimizer and sampler with what was fixed for the run, fixing it now if this is its first start."""

    def note(text: str) -> None:
        session.event("note", text=text)

    fixed = _fixed(session, prepared, policy, note)
    torch.set_num_threads(fixed["threads"])
    engine = new_engine(prepared, policy, Plan.stored(fixed), note)
    return replace(engine, sampler=_CountingSampler(engine.sampler, session.watch))


def _fixed(session: _Session, prepared: Prepared, policy: Policy, note: Callable[[str], None]) -> dict[str, Any]:
    """Return what must stay the same over all sessions of a run; refuse to go on where it cannot."""
    folder = session.folder
    record = folder.read_run()
    packages = _PINNED if prepared.config.quantization == "none" else (*_PINNED, "bitsandbytes")
    versions = {name: metadata.version(name) for name in packages}
    if "fixed" in record:
        fixed: dict[str, Any] = record["fixed"]
        for what, was, now in (
            ("base model", fixed["model_identity"], policy.identity),
            ("data", fixed["data_hash"], data_hash(prepared)),
            ("device", fixed["device"], policy.device.type),
        ):
            if was != now:
                raise Conflict(f"The run's {what} was {was} and is now {now}: it cannot go on to the same result.")
        if not fixed.keys() >= {"sampler", "forward", "batches"}:
            raise Conflict(
                "The run was begun by an older version of Ratchet, which computed otherwise. Start a new one."
            )
        _refuse_other_sampler(fixed["sampler"]["backend"], prepared.config, policy)
        if fixed["versions"] != {**versions, **_sampler_version(fixed)}:
            note("Package versions differ from the run's start: results may differ.")
        return fixed
    fixed = {
        "model_identity": policy.identity,
        "data_hash": data_hash(prepared),
        "device": policy.device.type,
        "dtype": str(policy.model.dtype).removeprefix("torch."),
        "attention": policy.model.config._attn_implementation,
        "threads": torch.get_num_threads(),
        **Plan.fitted(prepared, policy, note, folder.log).as_record(),
    }
    fixed["versions"] = {**versions, **_sampler_version(fixed)}
    folder.write_run({**record, "fixed": fixed})
    if fixed["sampler"]["backend"] == "vllm" or policy.device.type == "cuda":
        note(f"Answers are sampled by {fixed['sampler']['backend']}: {fixed['sampler']['why']}")
    return fixed


def _refuse_other_sampler(backend: str, config: RunConfig, policy: Policy) -> None:
    """Refuse to go on with another sampler than before: it would draw other answers."""
    if backend != "vllm":
        return
    if obstacle := what_stops_vllm(config.sampler, policy.device, policy.files, config.quantization):
        raise Conflict(f"The run's answers were sampled by vLLM, which cannot go on here: {obstacle}")


def _sampler_version(fixed: dict[str, Any]) -> dict[str, str]:
    """Return which vLLM is installed, by its package's name, where the run uses it."""
    if fixed["sampler"]["backend"] != "vllm":
        return {}
    # The builds for a CPU go by another name.
    names = metadata.packages_distributions().get("vllm", [])
    return {name: metadata.version(name) for name in sorted(set(names))}


def _resumed(session: _Session, engine: Engine, stream: PromptStream) -> Progress | None:
    """Go back to the last checkpoint, if there is one, and bring folder and journal into line with it."""
    folder = session.folder
    if not folder.checkpoint_path.exists():
        folder.drop_rollouts_after(-1)
        return None
    progress, active_seconds = checkpoint.restore(folder.checkpoint_path, engine.policy, engine.learner.optimizer)
    stream.restore(progress.stream_state)
    events = list(folder.events())
    session.start(resumed=True)
    session.progress = progress
    # A session that ended in good order also knows the seconds of the round it gave up.
    ended = [event.get("seconds", 0.0) for event in events if event["event"] == "ended"]
    session.budget.used_before = max([active_seconds, *ended])
    folder.drop_rollouts_after(progress.rounds_done)
    journaled = {event["record"]["round"] for event in events if event["event"] == "round"}
    for record in progress.records:
        if record.round:
            session.budget.record_round(record.seconds.total)
        if record.round not in journaled:
            session.event("round", record=record.model_dump())
    before = [event["accuracy"] for event in events if event["event"] == "heldout" and event["when"] == "before"]
    session.heldout_before = before[-1] if before else None
    files = engine.policy.adapter_files(progress.best_state)
    if not folder.holds_adapter(files):  # written again needlessly it would need room that a full disk lacks
        folder.stage_adapter(files)
        folder.put_adapter()
    return progress


def _report(session: _Session, engine: Engine) -> Callable[[RoundRecord, Sequence[Group], Progress], None]:
    """Return what stores a finished round: rollouts, then the checkpoint with the record, then the event."""

    def report(record: RoundRecord, groups: Sequence[Group], progress: Progress) -> None:
        folder = session.folder
        is_best = record.best_round == record.round
        if groups:
            folder.write_rollouts(record.round, (rollout_row(group) for group in groups))
        if is_best:
            # Written before the checkpoint and put in place after it: on a full disk both stay those of one round.
            folder.stage_adapter(engine.policy.adapter_files(progress.best_state))
        content = checkpoint.packed(progress, engine.policy, engine.learner.optimizer, session.budget.elapsed)
        write_atomically(folder.checkpoint_path, content)
        session.progress = progress
        if is_best:
            folder.put_adapter()
        if record.round:
            session.budget.record_round(record.seconds.total)
        folder.log(log_line(record))
        session.event("round", record=record.model_dump())

    return report


def _score_before(session: _Session, engine: Engine, prepared: Prepared, grader: Grader) -> None:
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


def _heldout_event(session: _Session, when: str, summary: Validation) -> float:
    session.event("heldout", when=when, accuracy=summary.accuracy, prompts=summary.prompts, outcomes=summary.outcomes)
    return summary.accuracy


def _score_best(session: _Session, engine: Engine, prepared: Prepared, grader: Grader) -> None:
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
            session.event("note", text=f"The held-out problems were not scored at the end ({error.code}).")


def _give_up_if(session: _Session) -> Callable[[], None]:
    """Return a check for closing work: it may use the time kept for closing, but not pass the limit itself."""

    def check() -> None:
        limit = session.budget.limit_seconds
        if session.stop_asked.is_set() or (limit is not None and session.budget.elapsed >= limit):
            raise Interrupted("Closing work was given up.", "stopped")

    return check


def _close(session: _Session, prepared: Prepared, ending: Ending, message: str) -> RunResult:
    """Write the closing event and return the result."""
    folder, progress = session.folder, session.progress
    status: RunStatus
    if progress is None:
        status = "cancelled" if ending == "stopped" else "failed"
        message = message or _nothing_kept(session, ending)
    else:
        status = "completed" if ending in ("all_rounds", "nothing_left") else "stopped_early"
        message = f"{message or _WHY[ending]} {_kept(prepared, progress)}"
    records = progress.records if progress else []
    checksum = adapter_file_checksum(folder) if progress else None
    result = RunResult(
        run=folder.run_id,
        folder=str(folder.path),
        status=status,
        ending=ending,
        message=message,
        rounds_done=progress.rounds_done if progress else 0,
        best_round=progress.best_round if progress else None,
        start_accuracy=records[0].validation.accuracy if records else None,
        best_accuracy=records[-1].best_accuracy if records else None,
        heldout_before=session.heldout_before,
        heldout_after=session.heldout_after,
        highest_reward=highest_reward(prepared.config),
        adapter=str(folder.adapter_path) if progress else None,
        seconds=round(session.budget.elapsed, 3),
    )
    fields = result.model_dump(exclude={"run", "folder", "adapter"})
    try:
        session.event("ended", **fields, adapter_sha256=checksum)
        folder.log(f"ended ending={ending} rounds_done={result.rounds_done} best_round={result.best_round}")
    except DiskFull:
        log.error("the end of the run could not be written down: the disk is full")
    return result


def _kept(prepared: Prepared, progress: Progress) -> str:
    rounds = number_of_rounds(prepared.config, len(prepared.train))
    if progress.best_round == 0:
        kept = "No round beat the starting point on validation, so training brought no gain; the starting adapter is "
        kept += "kept."
    else:
        kept = f"The adapter of round {progress.best_round} is kept."
    learned_from = progress.records[1:]
    # Fewer rounds than it takes to call the task at fault; said all the same.
    if learned_from and not any(record.informative_groups for record in learned_from):
        kept += f" {diagnosis(learned_from)}"
    return f"{progress.rounds_done} of {rounds} rounds done. {kept}"


def _nothing_kept(session: _Session, ending: Ending) -> str:
    phases = session.phase_seconds
    if ending == "time_limit":
        longest = max(phases, key=lambda name: phases[name])
        return (
            f"The time limit passed before the starting adapter was scored: {longest} took {phases[longest]:.0f} of "
            f"{session.budget.elapsed:.0f} seconds. Raise Time limit."
        )
    return f"Stopped while {list(phases)[-1]}, before the first round, so there is no adapter to keep."


def _record_failure(session: _Session, error: Exception) -> None:
    """Put a failure into the journal: our own words for known faults, the traceback in the log for others.

    A session that had not started changes nothing: the run was refused and is what it was.
    """
    if not session.is_started:
        return
    known = isinstance(error, RatchetError)
    ending: Ending = "error"
    if isinstance(error, NoLearningSignal):
        ending = "no_learning_signal"
    for kind, name in _KEEPING.items():
        if isinstance(error, kind):
            ending = name
    message = str(error) if known else f"Something unforeseen failed ({type(error).__name__}); see run.log."
    try:
        if not known:
            frames = traceback.extract_tb(error.__traceback__)
            places = " < ".join(f"{Path(f.filename).name}:{f.lineno}:{f.name}" for f in reversed(frames))
            # Not the exception's text: it may quote what a model wrote.
            session.folder.log(f"error type={type(error).__name__} at {places}")
        done = session.progress.rounds_done if session.progress else 0
        seconds = round(session.budget.elapsed, 3)
        session.event("ended", status="failed", ending=ending, message=message, rounds_done=done, seconds=seconds)
    except DiskFull:
        log.error("the failure could not be written down: the disk is full")


def adapter_file_checksum(folder: RunFolder) -> str | None:
    """Return the SHA-256 of the kept adapter's weights file, None where there is none."""
    path = folder.adapter_path / "adapter_model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


class _CountingSampler:
    """A sampler that tells how many answers are finished."""

    def __init__(self, sampler: Sampler, watch: Watch) -> None:
        self._sampler = sampler
        self._watch = watch

    def sample(
        self,
        requests: Sequence[SampleRequest],
        settings: SamplingSettings,
        max_answer_tokens: int,
        check: Callable[[], None],
    ) -> Generator[Sampled]:
        total = sum(request.answers for request in requests)
        phase = "scoring" if settings.greedy else "sampling"
        self._watch.on_progress(phase, 0, total)
        with closing(self._sampler.sample(requests, settings, max_answer_tokens, check)) as stream:
            for done, sampled in enumerate(stream, start=1):
                yield sampled
                self._watch.on_progress(phase, done, total)
        self._watch.on_progress("updating" if phase == "sampling" else "scored", 0, 0)

    def rest(self) -> None:
        self._sampler.rest()

    def close(self) -> None:
        self._sampler.close()


@contextmanager
def _signals(session: _Session) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run in good order; a second SIGINT ends the process at once."""

    def ask(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and session.stop_asked.is_set():
            raise KeyboardInterrupt
        session.stop_asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def main() -> int:
    """Work on the run in the folder named on the command line; 0 if it ended with an adapter."""
    try:
        folder = RunFolder.find(sys.argv[1])
        refuse_unconfirmed(folder)
        result = run(folder)
    except RatchetError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    sys.stdout.write(result.model_dump_json() + "\n")
    return 0 if result.adapter else 1


if __name__ == "__main__":
    sys.exit(main())
