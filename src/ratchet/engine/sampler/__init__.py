"""What a sampler is, from prompts to a stream of finished completions, and what it asks of a model.

``Sampler`` is what a run uses; ``DecodingBatch`` stands between the bookkeeping of sampling (``in_process``) and the
ways to compute it. A batch knows no requests, limits, random numbers or ends.

Dimensions: b rows, V vocabulary.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ratchet.engine.distribution import SamplingSettings
from ratchet.run.records import Completion

NOT_FINITE = (
    "The model's output is not a finite number (NaN or infinity), so no token can be drawn. If training got it there, "
    "choose a lower Learning rate; if it was so from the start, the base model is damaged."
)


@dataclass(frozen=True)
class SampleRequest:
    """One prompt and how many answers to it are wanted.

    ``random_key`` together with the answer's number seeds the generator of each answer, so that no answer depends on
    what else is in the batch. Unused when sampling is greedy. ``longest`` is a limit in tokens for each answer beside
    the call's own. It ends answers and plans no batch, so that speed measured with it is that of answers that stop
    on their own.
    """

    prompt_token_ids: tuple[int, ...]
    answers: int
    random_key: tuple[int, ...] = ()
    longest: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.longest is not None and (len(self.longest) != self.answers or min(self.longest, default=1) < 1):
            raise ValueError(f"longest must be {self.answers} limits of one token or more, got {self.longest}")

    def limit(self, answer: int, max_answer_tokens: int) -> int:
        """Return after how many tokens an answer is cut off."""
        return max_answer_tokens if self.longest is None else min(max_answer_tokens, self.longest[answer])


@dataclass(frozen=True)
class Sampled:
    """One finished completion: which request, which of its answers, and what was written."""

    request: int
    answer: int
    completion: Completion


class Sampler(Protocol):
    """Writes answers with the policy as it is at the time of the call."""

    def sample(
        self,
        requests: Sequence[SampleRequest],
        settings: SamplingSettings,
        max_answer_tokens: int,
        check: Callable[[], None],
    ) -> Generator[Sampled]:
        """Yield every answer once, in the order in which they finish; close the generator to give up early.

        ``check`` is called between decoding steps and raises to give up. Raises OutOfMemory(stage="sampling"),
        NotFinite where the model's output is NaN or infinite, and SamplerFailed where an engine of its own died.
        """

    def rest(self) -> None:
        """Give back what memory it can until the next ``sample``: the update is about to need it. Never raises."""

    def close(self) -> None:
        """Give back everything for good."""


class DecodingBatch(Protocol):
    """Rows with their keys and values, and the logits of each row's next token.

    ``logits`` is (b, V), one row each in the order in which the rows came; it is read after ``admit`` and ``advance``,
    not between ``keep`` and the ``advance`` or ``admit`` that follows.

    A batch that ``branches`` can continue one row in several ways, so answers that have written the same so far are
    one row to it.
    """

    logits: Tensor
    branches: bool

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> Any:
        """Compute prompts, each of which goes on after the common prefix; return what ``admit`` takes them from."""

    def admit(self, prompts: Any, owners: Sequence[int]) -> None:
        """Begin one row for each of ``owners``, after the rows there are.

        Args:
            prompts: What ``prefill`` returned. It may be admitted from again later.
            owners: For each new row which of these prompts it continues; a prompt may have several.
        """

    def keep(self, staying: Tensor) -> None:
        """Let go of all rows but ``staying``: int64 on the CPU, rising, maybe none.

        If the batch branches, a row may be named several times, one after the other: it becomes so many rows.
        """

    def advance(self, tokens: Tensor) -> None:
        """Give every row its new token, (b,) int64 on the policy's device, and compute the logits after it."""


class Batches(Protocol):
    """Makes batches of one kind, and holds what they share."""

    def batch(self, common_prefix: tuple[int, ...], most_rows: int) -> AbstractContextManager[DecodingBatch]:
        """Return a batch of the policy as it is now, for one call of the sampler.

        Args:
            common_prefix: What all prompts begin with, maybe nothing; computed at once. At least one token of each
                prompt is not part of it.
            most_rows: How many rows there may be at a time.
        """

    def rest(self) -> None:
        """Let go of memory that can be had again, until the next batch."""
