"""Samplers: from prompts to a stream of finished completions. One protocol, so that one can replace another."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ratchet.engine.distribution import SamplingSettings
from ratchet.run.records import Completion


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


__all__ = ["SampleRequest", "Sampled", "Sampler"]
