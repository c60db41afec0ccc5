"""Plain data that travels between the parts: frozen, serialisable, free of behaviour.

Dimensions used everywhere: P prompts in a round, G answers per prompt (the group size), B = P * G rollouts,
T tokens, V vocabulary, b rows of a micro-batch. Holds no settings (``config``) and no files (``run_folder.py``).
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ratchet.run.endings import Ending, RunStatus
from ratchet.verifiers.base import OUTCOMES as OUTCOMES
from ratchet.verifiers.base import Grade as Grade
from ratchet.verifiers.base import Message as Message
from ratchet.verifiers.base import Outcome as Outcome
from ratchet.verifiers.base import Prompt as Prompt

FinishReason = Literal["stop", "length"]

# A trial is one small round that predicts what the full run takes. An evaluation scores a model on a benchmark: it is
# queued, followed, stopped and resumed as runs are, and trains nothing.
RunKind = Literal["full", "trial", "evaluation"]
# What a run is to the run that it was made from.
RunRelation = Literal["retry", "duplicate", "continue", "trial"]


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt with the token ids that the policy is given for it.

    ``demonstration_ids`` and ``rejected_ids`` are the answers to learn from, each with the token that ends it; empty
    where the objective needs none.
    """

    prompt: Prompt
    token_ids: tuple[int, ...]
    demonstration_ids: tuple[int, ...] = ()
    rejected_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Completion:
    """What the policy wrote: token ids with the stop token, if it stopped by itself.

    ``logprobs`` are natural logs, one per token, under the distribution the tokens were drawn from (temperature,
    top-k and top-p applied); ``full_logprobs`` are those under the temperature alone, None where the sampler cannot
    tell. ``text`` leaves the stop token out.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    full_logprobs: tuple[float, ...] | None
    text: str
    finish: FinishReason


@dataclass(frozen=True)
class Rollout:
    """One completion with its grade and the reward made of it; ``format`` is 1 when the bonus was earned, else 0.

    ``watch`` is what the watch metric found, None without one. It is no part of the reward.
    """

    completion: Completion
    grade: Grade
    format: float
    reward: float
    watch: Grade | None = None


@dataclass(frozen=True)
class Group:
    """All rollouts of one prompt; ``prompt_token_ids`` is what the sampler was given."""

    prompt: Prompt
    prompt_token_ids: tuple[int, ...]
    rollouts: tuple[Rollout, ...]


def _is_none(value: object) -> bool:
    return value is None


class Record(BaseModel):
    """Base of what is written to the journal and read back, also by later versions."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Seconds(Record):
    """Wall-clock seconds of the parts of a round. Grading overlaps sampling: only what came after it is counted."""

    sampling: float = 0.0
    grading: float = 0.0
    update: float = 0.0
    validation: float = 0.0
    total: float = 0.0


class Validation(Record):
    """How the policy does on the validation sample: shares of 0..1 over ``prompts`` greedy answers.

    ``accuracy`` and ``reward`` are None, and ``outcomes`` empty, where no verifier graded answers (sft and dpo).
    ``watch`` is the mean of the watch metric over those answers on which it did not fail, None without one or where it
    failed on all; ``watch_failures`` counts the others by kind. ``loss`` is the mean loss over the sample, None for rl;
    of dpo, ``margin`` is the mean of beta times how much further the policy has moved towards the chosen answer than
    towards the rejected one, in nats, and ``preferred`` the share of pairs in which that is above 0.
    """

    prompts: int
    accuracy: float | None = None
    reward: float | None = None
    outcomes: dict[Outcome, int] = {}
    parts: dict[str, float] = {}
    answer_tokens: float = 0.0
    watch: float | None = None
    watch_failures: dict[str, int] = {}
    loss: float | None = None
    margin: float | None = None
    preferred: float | None = None

    def beats(self, other: "Validation") -> bool:
        """Whether this ranks strictly above another one of the same run: by accuracy, without one by lower loss.

        Raises:
            ValueError: one has what the other lacks.
        """
        if self.accuracy is not None and other.accuracy is not None:
            return self.accuracy > other.accuracy
        if self.accuracy is None and other.accuracy is None and self.loss is not None and other.loss is not None:
            return self.loss < other.loss
        raise ValueError("validations of different kinds cannot be ranked")


class Learned(Record):
    """What the update of a round did. ``kl`` is None when beta is 0, since it is not computed then.

    ``sampler_gap`` is the mean absolute difference of the log-probabilities of trainer and sampler at the round's
    start. The ``importance`` fields are the mean and the largest ratio of their probabilities before the cap, and the
    share of tokens whose ratio was lowered to it; None when nothing was corrected.
    """

    steps: int
    skipped_steps: int = 0
    loss: float | None = None
    gradient_norm: float | None = None
    kl: float | None = None
    clip_fraction: float | None = None
    sampler_gap: float | None = None
    importance_mean: float | None = None
    importance_max: float | None = None
    importance_capped: float | None = None
    tokens: int = 0


class RoundRecord(Record):
    """Everything a round reports: numbers only. Round 0 has a validation and nothing else.

    ``best_accuracy`` is that of ``best_round``, None where no verifier graded. ``reward``, ``accuracy`` and
    ``outcomes`` count every sampled answer, those of groups without signal too. ``entropy`` is the mean negative
    log-probability of the sampled tokens, an unbiased estimate in nats; None where the sampler cannot tell it.
    ``watch`` and ``watch_failures`` are those of the sampled answers, as in a validation. ``cost`` is what the run had
    cost when the round ended. ``oldest_rollouts`` is the first round whose samples were kept when this one ended,
    where older ones were removed. Of sft and dpo, which sample none, a round has the losses alone.
    """

    round: int
    validation: Validation
    best_round: int
    best_accuracy: float | None
    seconds: Seconds
    prompt_ids: list[int] = []
    reward: float | None = None
    accuracy: float | None = None
    format: float | None = None
    parts: dict[str, float] = {}
    groups: int = 0
    informative_groups: int = 0
    outcomes: dict[Outcome, int] = {}
    failures: dict[str, int] = {}
    answer_tokens: float | None = None
    entropy: float | None = None
    watch: float | None = None
    watch_failures: dict[str, int] = {}
    learned: Learned | None = None
    # Neither is there where it says nothing: without a price no cost is shown anywhere.
    cost: float | None = Field(default=None, exclude_if=_is_none)
    oldest_rollouts: int | None = Field(default=None, exclude_if=_is_none)

    @property
    def signal_fraction(self) -> float:
        """Share of groups whose rewards differed, 0 for round 0."""
        return self.informative_groups / self.groups if self.groups else 0.0


class RunResult(Record):
    """How a run ended: what ``ratchet train --json`` prints last and ``ratchet.train`` returns.

    Accuracies are None where no verifier graded, losses (of the validation sample) for rl.
    """

    run: str
    folder: str
    status: RunStatus
    ending: Ending
    message: str
    rounds_done: int
    best_round: int | None = None
    start_accuracy: float | None = None
    best_accuracy: float | None = None
    start_loss: float | None = None
    best_loss: float | None = None
    heldout_before: float | None = None
    heldout_after: float | None = None
    highest_reward: float | None = None
    adapter: str | None = None
    seconds: float = 0.0
    cost: float | None = Field(default=None, exclude_if=_is_none)
    currency: str | None = Field(default=None, exclude_if=_is_none)
