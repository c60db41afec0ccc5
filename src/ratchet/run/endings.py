"""How runs end: which fault keeps the adapter, what may go on, and the sentences that say why.

Plain tables and sentences, shared by the worker, which ends its own run, and by whoever has to end one from outside.
Loads no torch.
"""

from ratchet.errors import (
    DiskFull,
    NoLearningSignal,
    NotFinite,
    OutOfMemory,
    RatchetError,
    SamplerFailed,
    SandboxUnavailable,
    VerifierFailing,
)
from ratchet.run.records import Ending, RunStatus

# Faults that end a run early with its best adapter, once round 0 is scored.
KEEPING: dict[type[RatchetError], Ending] = {
    VerifierFailing: "metric_failures",
    OutOfMemory: "out_of_memory",
    DiskFull: "disk_full",
    SamplerFailed: "sampler_failed",
    SandboxUnavailable: "sandbox_unavailable",
    NotFinite: "not_finite",
}
WHY: dict[Ending, str] = {
    "all_rounds": "All rounds are done.",
    "target": "The target is reached.",
    "nothing_left": "Every answer of the last rounds was right: there is nothing left to learn here.",
    "time_limit": "The time limit came near.",
    "cost_limit": "The cost cap came near.",
    "stopped": "Stopped as asked.",
}
# Endings after which a run may go on to the result that it would have had.
RESUMABLE: frozenset[Ending] = frozenset(
    {
        "stopped",
        "out_of_memory",
        "stalled",
        "disk_full",
        "sampler_failed",
        "sandbox_unavailable",
        "error",
        "metric_failures",
    }
)
# Endings after which the kept adapter is not scored: the machine cannot, or the user wants no more work done.
UNSCORED: frozenset[Ending] = frozenset(
    {"stopped", "stalled", "disk_full", "out_of_memory", "sampler_failed", "sandbox_unavailable"}
)
_COMPLETE: frozenset[Ending] = frozenset({"all_rounds", "nothing_left"})
# Endings that fail a run whatever it has on disk: nobody can say what the adapter is worth.
_FAILED: frozenset[Ending] = frozenset({"no_learning_signal", "error"})
# What to do about an ending, where no fault was raised whose own message says it.
REMEDIES: dict[Ending, str] = {
    "stalled": "If a step of this model really takes so long, raise Stall limit; the run goes on with ratchet resume.",
    "out_of_memory": "Choose fewer Answers per prompt, a shorter Longest answer, a smaller Micro batch or Sampling "
    "budget, or a device with more memory; the run goes on with ratchet resume.",
    "disk_full": "Free some space; the run goes on with ratchet resume.",
    "stopped": "It goes on with ratchet resume.",
    "time_limit": "To go on learning, start a run from this adapter, or one with a higher Time limit.",
    "cost_limit": "To go on learning, start a run from this adapter, or one with a higher Cost cap.",
    "target": "To go on learning, start a run from this adapter, or one with a higher Target.",
    "nothing_left": "To go on learning, start a run from this adapter with harder prompts.",
    "error": "It goes on with ratchet resume.",
}
# Endings that are no fault: a command that followed such a run to a kept adapter succeeds.
GOOD: frozenset[Ending] = frozenset({"all_rounds", "target", "nothing_left", "time_limit", "cost_limit", "stopped"})


def status_of(ending: Ending, *, has_adapter: bool) -> RunStatus:
    """Return the status of a run that ended so; ``has_adapter`` tells whether round 0 was scored."""
    if ending in _FAILED:
        return "failed"
    if not has_adapter:
        return "cancelled" if ending == "stopped" else "failed"
    return "completed" if ending in _COMPLETE else "stopped_early"


def target_reached(accuracy: float | None, target_percent: float | None) -> bool:
    """Tell whether a validation accuracy (0..1) has come up to the target; never without one of them."""
    # A share such as 57 of 100 times 100 is a little less than 57 in floating point.
    return target_percent is not None and accuracy is not None and accuracy >= target_percent / 100 - 1e-9


def ending_of(error: Exception) -> Ending:
    """Return the ending that a fault stands for; "error" for every other one."""
    if isinstance(error, NoLearningSignal):
        return "no_learning_signal"
    return next((name for kind, name in KEEPING.items() if isinstance(error, kind)), "error")
