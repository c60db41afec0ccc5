"""What the sampler asks of a model: a batch of rows that each hold a prompt and what was written after it.

One protocol between the bookkeeping of sampling (``in_process``) and the ways to compute it. A batch knows no
requests, limits, random numbers or ends; the caller says which rows to begin, continue and drop.

Dimensions: b rows, V vocabulary.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor


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


__all__ = ["Batches", "DecodingBatch"]
