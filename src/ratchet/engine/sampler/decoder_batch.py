"""The decoding batch of our own decoder, and the choice between it and transformers' forward pass.

The merged weights are a second copy of the model. They are kept from one call to the next while the adapter stays the
same (validation, then the next round), and let go of before the update.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from ratchet.engine.decoder.decoding import DecoderBatch, MergedDecoder
from ratchet.engine.memory import give_back, is_out_of_memory, out_of_memory_as
from ratchet.engine.packing import common_prefix
from ratchet.engine.policy import Policy
from ratchet.engine.sampler.batch import Batches
from ratchet.engine.sampler.transformers_batch import TransformersBatches

log = logging.getLogger(__name__)

BatchKind = Literal["decoder", "transformers"]

# Log-probabilities of the two may differ by rounding.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}
_STEPS_TRIED = 3


class DecoderBatches:
    """See ``Batches``."""

    def __init__(self, policy: Policy) -> None:
        if policy.decoder is None:
            raise ValueError("this model has no decoder of ours")
        self._policy = policy
        self._weights = policy.decoder
        self._merged: MergedDecoder | None = None
        self._versions: list[int] = []

    @contextmanager
    def batch(self, common_prefix: tuple[int, ...], most_rows: int) -> Iterator[DecoderBatch]:
        """Return a batch of the policy as it is now."""
        versions = [parameter._version for parameter in self._policy.parameters]
        if self._merged is None or versions != self._versions:
            self._merged = None  # before the new one is made
            with torch.no_grad():
                self._merged, self._versions = MergedDecoder(self._weights), versions
        yield DecoderBatch(self._merged, common_prefix, most_rows)

    def rest(self) -> None:
        """Let go of the merged weights."""
        self._merged = None
        give_back(self._policy.merged_bytes)


def batches_of(kind: BatchKind, policy: Policy) -> Batches:
    """What makes batches of that kind."""
    return DecoderBatches(policy) if kind == "decoder" else TransformersBatches(policy)


def chosen_kind(
    policy: Policy, prompts: Sequence[tuple[int, ...]], tell: Callable[[str], None] = log.info
) -> BatchKind:
    """Return the faster kind if its log-probabilities after some prompts are those of transformers.

    ``tell`` is given a line of numbers about what was tried.

    Raises:
        OutOfMemory: with stage "sampling".
    """
    tolerance = _TOLERANCE.get(policy.model.dtype)
    if policy.decoder is None or tolerance is None:
        return "transformers"
    with out_of_memory_as("sampling"), policy.with_working_adapter():
        expected = _tried(TransformersBatches(policy), prompts)
        try:
            found = _tried(DecoderBatches(policy), prompts)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            if is_out_of_memory(error):
                raise
            tell(f"sampling batches=decoder refused error={type(error).__name__}")
            return "transformers"
    gap = float((found - expected).abs().max())
    tell(f"sampling batches=decoder gap={gap:.2e}")
    return "decoder" if gap <= tolerance else "transformers"


def _tried(batches: Batches, prompts: Sequence[tuple[int, ...]]) -> Tensor:
    """Return the log-probabilities of every next token after the prompts and after some tokens more."""
    with batches.batch(prompts[0][: common_prefix(prompts)], len(prompts)) as batch:
        batch.admit(batch.prefill(prompts), range(len(prompts)))
        steps = [batch.logits.log_softmax(dim=-1)]
        for step in range(_STEPS_TRIED):
            batch.advance(torch.tensor([prompt[step % len(prompt)] for prompt in prompts], device=batch.logits.device))
            steps.append(batch.logits.log_softmax(dim=-1))
    return torch.cat(steps)
