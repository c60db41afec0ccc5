"""How runs end: one table. A new ending is a name in ``Ending`` and a row of ``ENDINGS``.

What a row says holds everywhere: for the worker, which ends its own run, for whoever ends one whose worker cannot
(``end_stalled_run.py``), for what may be done afterwards, and for exit codes. The database stores the word alone.
"""

from dataclasses import dataclass
from typing import Literal

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

# A draft has settings and no folder yet; a queued run waits for a slot; a starting one has not scored round 0; a saving
# one is closing. The last four are ends.
RunStatus = Literal[
    "draft", "queued", "starting", "training", "saving", "completed", "stopped_early", "failed", "cancelled"
]
ENDS: tuple[RunStatus, ...] = ("completed", "stopped_early", "failed", "cancelled")
AT_WORK: tuple[RunStatus, ...] = ("starting", "training", "saving")

Ending = Literal[
    "all_rounds",
    "target",
    "nothing_left",
    "time_limit",
    "cost_limit",
    "stopped",
    "metric_failures",
    "out_of_memory",
    "stalled",
    "disk_full",
    "sampler_failed",
    "sandbox_unavailable",
    "not_finite",
    "no_learning_signal",
    "error",
]


@dataclass(frozen=True)
class EndingRule:
    """What an ending means.

    Attributes:
        status: Of a run that has an adapter, which is one whose round 0 was scored.
        status_without_adapter: Of every other run.
        resumable: Whether the run may continue to the result that it would have had.
        scored: Whether the kept adapter is scored on the held-out problems. Not where the machine cannot, or the user
            wants no more work done.
        good: Whether it is no fault: a command that followed such a run to a kept adapter succeeds.
        fault: The error that ends a run so. Its own message says why and what to do.
        why: What happened, as a sentence, where no error says it.
        remedy: What to do, as a sentence, where no error says it.
        limit: The setting that was reached, by its title.
    """

    status: RunStatus = "stopped_early"
    status_without_adapter: RunStatus = "failed"
    resumable: bool = False
    scored: bool = True
    good: bool = False
    fault: type[RatchetError] | None = None
    why: str = ""
    remedy: str = ""
    limit: str = ""

    @property
    def keeps_adapter(self) -> bool:
        """Whether the best adapter is kept. After other endings nobody can say what it is worth."""
        return self.status != "failed"


ENDINGS: dict[Ending, EndingRule] = {
    "all_rounds": EndingRule("completed", good=True, why="All rounds are done."),
    "nothing_left": EndingRule(
        "completed",
        good=True,
        why="Every answer of the last rounds was right: there is nothing left to learn here.",
        remedy="To continue learning, start a run from this adapter with harder prompts.",
    ),
    "target": EndingRule(
        good=True,
        why="The target is reached.",
        remedy="To continue learning, start a run from this adapter, or one with a higher Target.",
        limit="Target",
    ),
    "time_limit": EndingRule(
        good=True,
        why="The time limit came near.",
        remedy="To continue learning, start a run from this adapter, or one with a higher Time limit.",
        limit="Time limit",
    ),
    "cost_limit": EndingRule(
        good=True,
        why="The cost cap came near.",
        remedy="To continue learning, start a run from this adapter, or one with a higher Cost cap.",
        limit="Cost cap",
    ),
    "stopped": EndingRule(
        status_without_adapter="cancelled",
        resumable=True,
        scored=False,
        good=True,
        why="Stopped as asked.",
        remedy="Resume with: ratchet resume.",
    ),
    "metric_failures": EndingRule(resumable=True, fault=VerifierFailing),
    "out_of_memory": EndingRule(
        resumable=True,
        scored=False,
        fault=OutOfMemory,
        remedy="Choose fewer Answers per prompt, lower Max answer tokens, a smaller Micro batch or Sampling budget, or "
        "a device with more memory; then resume with: ratchet resume.",
    ),
    "stalled": EndingRule(
        resumable=True,
        scored=False,
        remedy="If a step of this model really takes so long, raise Stall limit; then resume with: ratchet resume.",
    ),
    "disk_full": EndingRule(
        resumable=True, scored=False, fault=DiskFull, remedy="Free some space; then resume with: ratchet resume."
    ),
    "sampler_failed": EndingRule(resumable=True, scored=False, fault=SamplerFailed),
    "sandbox_unavailable": EndingRule(resumable=True, scored=False, fault=SandboxUnavailable),
    "not_finite": EndingRule(fault=NotFinite),
    "no_learning_signal": EndingRule("failed", fault=NoLearningSignal),
    "error": EndingRule("failed", resumable=True, remedy="Resume with: ratchet resume."),
}
# Faults that end a run early with its best adapter, once round 0 is scored.
KEEPING_FAULTS = tuple(rule.fault for rule in ENDINGS.values() if rule.fault and rule.keeps_adapter)


def status_of(ending: Ending, *, has_adapter: bool) -> RunStatus:
    """Status of a run that ended so; ``has_adapter``: its round 0 was scored."""
    rule = ENDINGS[ending]
    return rule.status if has_adapter else rule.status_without_adapter


def is_resumable(ending: Ending | None) -> bool:
    """Whether a run that ended so may be resumed; not where it has not ended."""
    return ending is not None and ENDINGS[ending].resumable


def ending_of(error: Exception) -> Ending:
    """Ending that a fault stands for; "error" for every other one."""
    return next((name for name, rule in ENDINGS.items() if rule.fault and isinstance(error, rule.fault)), "error")


def target_reached(accuracy: float | None, target_percent: float | None) -> bool:
    """Whether a validation accuracy (0..1) has come up to the target; never without one of them."""
    # A share such as 57 of 100 times 100 is a little less than 57 in floating point.
    return target_percent is not None and accuracy is not None and accuracy >= target_percent / 100 - 1e-9
