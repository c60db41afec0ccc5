"""Log-probabilities of answers that the data gives, for sft and dpo: by TRL's output layer over the policy's model.

Two parts of TRL are used, its collators, which pad rows into a batch, and its fused output layer, which makes no logits
of a whole batch. Its trainers are not: they can neither leave out a step whose gradient is not finite, nor be asked
between micro-batches whether to go on, nor go on to the same bytes without checkpoint folders of their own; and setting
one up changes the policy (a second adapter, 16 bits for that of a quantized model, other devices). That the losses made
here are those of its trainers on the same rows, and so is a whole run, is tested against them.

TRL is imported in functions: nothing else needs it.

Dimensions: b rows of a micro-batch, T tokens of its longest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ratchet.engine.policy import Policy
from ratchet.run.records import EncodedPrompt


@dataclass(frozen=True)
class Share:
    """What a micro-batch adds to the loss of its step, with gradient, and what dpo counts of its pairs."""

    loss: Tensor
    margin_sum: float = 0.0
    preferred: int = 0


class GivenLoss(Protocol):
    """The loss of an objective that learns from given answers."""

    def tokens(self, row: EncodedPrompt) -> int:
        """How many tokens a row has in a batch."""

    def share(self, rows: Sequence[EncodedPrompt], step: Sequence[EncodedPrompt]) -> Share:
        """Return the share of some rows of a step in the loss of all of them: shares add up, however it is split."""


def add_output_layer(policy: Policy) -> None:
    """Give the policy's model TRL's fused output layer, beside its own, which goes on working as before."""
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(policy.model.get_base_model())


def label_logprobs(policy: Policy, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the natural log-probabilities of a batch's labels, (b, T - 1); 0 where the label is -100.

    Args:
        policy: With the output layer of ``add_output_layer``.
        batch: ``input_ids``, ``attention_mask`` and ``labels``, each (b, T).
    """
    inputs = {name: batch[name].to(policy.device) for name in ("input_ids", "attention_mask", "labels")}
    logprobs: Tensor = policy.model(**inputs, use_cache=False, fused_lm_head=True).log_probs
    return logprobs


def padding_id(policy: Policy) -> int:
    """What rows are padded with; it is masked, so any id does where the tokenizer has none for it."""
    return int(policy.chat.tokenizer.pad_token_id or 0)


def micro_batches(
    loss: GivenLoss, step: Sequence[EncodedPrompt], budget_tokens: int
) -> Iterator[Sequence[EncodedPrompt]]:
    """Split a step's rows, short ones first, so that none takes more tokens than the budget, padding included.

    A row is never split: one that exceeds the budget is alone.
    """
    batch: list[EncodedPrompt] = []
    for row in sorted(step, key=loss.tokens):
        if batch and (len(batch) + 1) * loss.tokens(row) > budget_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def examples_of(rows: Sequence[EncodedPrompt]) -> list[dict[str, Any]]:
    """Return rows as TRL's collator for demonstrations takes them: a label per token, -100 in prompts."""
    return [
        {
            "input_ids": [*row.token_ids, *row.demonstration_ids],
            "labels": [-100] * len(row.token_ids) + list(row.demonstration_ids),
        }
        for row in rows
    ]


def pairs_of(rows: Sequence[EncodedPrompt]) -> list[dict[str, Any]]:
    """Return rows as TRL's collator for preferences takes them."""
    return [
        {
            "prompt_ids": list(row.token_ids),
            "chosen_ids": list(row.demonstration_ids),
            "rejected_ids": list(row.rejected_ids),
        }
        for row in rows
    ]
