"""What a trial measured and predicts, as plain data: numbers and settings, no texts.

Made by ``engine/trial_round.py`` and ``worker/trial_job.py``, kept in the trial's folder, shown by the surfaces. Knows
neither torch nor files. Bytes of the host are those that the process holds above what it held before the model was
loaded.
"""

from typing import Literal

from pydantic import Field

from ratchet.run.records import Outcome, Record

REPORT_VERSION = 1
# Above this share of a device's or the host's memory little is left for what a trial cannot see.
MEMORY_WARNING = 0.9

PhaseName = Literal["checking", "loading", "sampling", "grading", "update", "validation", "saving"]


class HoldsFor(Record):
    """What the numbers hold for: with another of these they may be others.

    ``identity`` is the commit or the checksum of the base model's files; ``window_tokens`` is None where no limit is
    known.
    """

    device: str
    model: str
    revision: str
    identity: str = ""
    quantization: str
    sampler: str = ""
    prompts_per_round: int
    answers_per_prompt: int
    max_answer_tokens: int
    longest_prompt_tokens: int
    window_tokens: int | None
    lora_rank: int
    lora_alpha: int


class Phase(Record):
    """One phase as it was measured; peaks are None where the machine does not tell them.

    ``device_bytes`` are the GPU's memory in use, ``device_reserved_bytes`` with what PyTorch keeps at hand.
    """

    name: PhaseName
    seconds: float
    host_bytes: int | None = None
    device_bytes: int | None = None
    device_reserved_bytes: int | None = None


class Answers(Record):
    """What became of the starting model's answers to the trial's training prompts, numbers alone."""

    prompts: int
    answers: int
    groups: int
    informative_groups: int
    reward: float
    accuracy: float
    format: float
    outcomes: dict[Outcome, int]
    failures: dict[str, int] = Field(default_factory=dict)
    mean_tokens: float
    longest_tokens: int

    def share(self, outcome: Outcome) -> float:
        """Share of answers with that outcome."""
        return self.outcomes.get(outcome, 0) / self.answers


class Estimate(Record):
    """The full run as the trial predicts it: seconds, peaks in bytes, and cost where a price is set.

    ``seconds`` is ``preparation`` + ``validation`` for round 0 + ``rounds`` x ``round`` + ``heldout``; ``round`` holds
    a round's sampling, grading, update, validation and saving. ``is_rough`` tells that the trial had no time to fill a
    batch as the full run does, and was scaled up from a small one.
    """

    rounds: int
    seconds: float
    preparation: float
    sampling: float
    grading: float
    update: float
    validation: float
    saving: float
    heldout: float
    is_rough: bool = False
    host_bytes: int | None = None
    host_phase: PhaseName | None = None
    host_share: float | None = None
    device_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_phase: PhaseName | None = None
    device_share: float | None = None
    cost: float | None = None
    currency: str = ""

    @property
    def round(self) -> float:
        """Seconds of one round."""
        return self.sampling + self.grading + self.update + self.validation + self.saving


class TrialReport(Record):
    """What a trial found. An unfinished one has the phases it measured, no estimate, and what to ``fix_first``."""

    report_version: int = REPORT_VERSION
    made_at: str
    holds_for: HoldsFor | None = None
    training_prompts: int = 0
    validation_prompts: int = 0
    phases: list[Phase] = Field(default_factory=list)
    answers: Answers | None = None
    estimate: Estimate | None = None
    advice: list[str] = Field(default_factory=list)
    fix_first: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether the trial came to its end and predicts the full run."""
        return self.estimate is not None
