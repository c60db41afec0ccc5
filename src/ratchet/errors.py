"""The vocabulary of faults: one class per owner, so that message, exit code and ending follow from the type.

    RatchetError
    +-- InvalidSetting      the setting: a value is out of range or does not go with another
    +-- IncompatibleData    the data: rows that cannot be trained on, named by number
    +-- NotReady            several of these at once, before a run starts
    +-- NotFound, Conflict  the state: no such run, or not in a state that allows the request
    +-- VerifierFailing, MetricRefused   the metric: too many answers could not be graded, or it cannot be used at all
    +-- OutOfMemory, DiskFull, ModelUnavailable, SamplerFailed, SandboxUnavailable, StorageUnavailable   the machine
    +-- NotFinite           the numbers: NaN or infinity twice in a row
    +-- NoLearningSignal    the task: every answer of every round scored alike
    +-- Interrupted         the clock or the user: the round under way is given up

Messages hold what happened with the actual value, the limit it met, and what to do. They never hold the text
of a prompt, an answer or a ground truth: rows are named by number. Only the message is kept in ``args``, so
every error survives a pipe between processes.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

Stage = Literal["sampling", "update", "validation", "loading"]
# Why a round under way is given up, or no other one starts.
StopReason = Literal["time_limit", "cost_limit", "stopped", "stalled"]


class RatchetError(Exception):
    """Base of every error that Ratchet raises on purpose. Its text is meant for the user."""

    code: ClassVar[str] = "error"
    fields: ClassVar[tuple[str, ...]] = ()  # what a class is made of besides its message, for a pipe

    def __reduce__(self) -> tuple[type["RatchetError"], tuple[Any, ...]]:
        return type(self), (str(self), *(getattr(self, name) for name in self.fields))


class InvalidSetting(RatchetError):
    """A setting cannot be used as given. The user corrects it.

    ``field`` is the dotted key of the first setting concerned, empty where no single one is to blame.
    """

    code = "invalid_setting"
    fields = ("field",)

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class IncompatibleData(RatchetError):
    """Rows that cannot be used with these settings; up to 20 of them are named by number."""

    code = "incompatible_data"


class NotReady(RatchetError):
    """Several faults keep a run from starting: settings, data, or what the machine lacks. ``faults`` holds them."""

    code = "not_ready"

    def __init__(self, faults: Sequence[RatchetError]) -> None:
        listed = " ".join(f"({number}) {fault}" for number, fault in enumerate(faults, start=1))
        super().__init__(f"This run cannot start: {len(faults)} problems. {listed}")
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[type["NotReady"], tuple[tuple[RatchetError, ...]]]:
        return type(self), (self.faults,)


class NotFound(RatchetError):
    """There is no run, file or round of that name."""

    code = "not_found"


class Conflict(RatchetError):
    """The thing exists, but its state does not allow what was asked."""

    code = "conflict"


class VerifierFailing(RatchetError):
    """The verifier failed on more than a tenth of a round's graded answers."""

    code = "metric_failures"


class MetricRefused(RatchetError):
    """A metric of the user's own cannot be used: it does not load, or is no function of (answer, reference)."""

    code = "metric_refused"


class OutOfMemory(RatchetError):
    """The device ran out of memory. ``stage`` says where, since the remedies differ."""

    code = "out_of_memory"
    fields = ("stage",)

    def __init__(self, message: str, stage: Stage = "sampling") -> None:
        super().__init__(message)
        self.stage: Stage = stage


class DiskFull(RatchetError):
    """The run folder cannot be written because the disk has no room."""

    code = "disk_full"


class ModelUnavailable(RatchetError):
    """The base model or an adapter is missing, unreadable, or of a kind that cannot be trained here."""

    code = "model_unavailable"


class StorageUnavailable(RatchetError):
    """The storage of artifacts cannot be reached, read or written. Never ends a run."""

    code = "storage_unavailable"


class SamplerFailed(RatchetError):
    """The engine that writes the answers cannot be started, or it died twice in one call."""

    code = "sampler_failed"


class SandboxUnavailable(RatchetError):
    """Untrusted code cannot be run safely on this machine, so it is not run. ``reason`` and ``remedy`` say why.

    Never the fault of what should have run there.
    """

    code = "sandbox_unavailable"

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"The sandbox does not work on this machine: {reason} {remedy}".rstrip())
        self.reason = reason
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["SandboxUnavailable"], tuple[str, str]]:
        return type(self), (self.reason, self.remedy)


class NotFinite(RatchetError):
    """The loss or the gradient was NaN or infinite in two steps in a row, or the model's output while sampling."""

    code = "not_finite"


class NoLearningSignal(RatchetError):
    """Since the start, every answer to every prompt scored the same as the others."""

    code = "no_learning_signal"


class Interrupted(RatchetError):
    """The round under way was given up: the time ran out, or someone asked to stop. Not a fault."""

    code = "interrupted"
    fields = ("reason",)

    def __init__(self, message: str, reason: StopReason = "stopped") -> None:
        super().__init__(message)
        self.reason: StopReason = reason
