"""Learning from answers that the data gives, sft and dpo: steps and their rates, log-probabilities and losses.

Steps are arithmetic over a run's settings and its number of rows, so that a resumed run needs no state of a scheduler.
Log-probabilities come from TRL's output layer over the policy's model.

Two parts of TRL are used, its collators, which pad rows into a batch, and its fused output layer, which makes no logits
of a whole batch. Its trainers are not: they can neither leave out a step whose gradient is not finite, nor be asked
between micro-batches whether to go on, nor go on to the same bytes without checkpoint folders of their own; and setting
one up changes the policy (a second adapter, 16 bits for that of a quantized model, other devices). That the losses made
here are those of its trainers on the same rows, and so is a whole run, is tested against them.

TRL is imported in functions: nothing else needs it.

Dimensions: b rows of a micro-batch, T tokens of its longest.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ratchet.config import DpoSettings, SftSettings
from ratchet.engine.policy import Policy
from ratchet.run.records import EncodedPrompt

Tuning = SftSettings | DpoSettings


def rows_per_step(settings: Tuning, rows: int) -> int:
    """How many rows a step takes: none twice."""
    return min(settings.batch_size, rows)


def number_of_steps(settings: Tuning, rows: int) -> int:
    """How many steps the epochs take; the last one has what is left of the rows."""
    return -(-settings.epochs * rows // rows_per_step(settings, rows))


def steps_of_round(number: int, rounds: int, steps: int) -> range:
    """Return the steps, counted from 0, of round ``number`` (from 1): shares of all steps, as even as can be."""
    return range((number - 1) * steps // rounds, number * steps // rounds)


def rate_at(step: int, steps: int, rate: float, settings: Tuning) -> float:
    """Return the learning rate of a step, counted from 0: a rise from 0 over the warm-up, then the schedule.

    As transformers' schedules (optimization.py of version 5.24), which TRL's trainers use. A run with a warm-up takes
    its first step at rate 0, and none takes one at the end's 0.
    """
    warmup = math.ceil(settings.warmup_share * steps)
    if step < warmup:
        return rate * step / warmup
    if settings.schedule == "constant":
        return rate
    done = (step - warmup) / (steps - warmup)
    return rate * ((1 - done) if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done)))


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

    The policy has the output layer of ``add_output_layer``. ``input_ids``, ``attention_mask`` and ``labels``: (b, T).
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


@dataclass(frozen=True)
class SftLoss:
    """The mean negative log-probability of a step's answer tokens, in nats; prompts are left out.

    The default loss of TRL's ``SFTTrainer`` (nll). The token that ends an answer counts: the policy learns to stop.
    """

    policy: Policy

    def tokens(self, row: EncodedPrompt) -> int:
        """How many tokens a row has in a batch."""
        return len(row.token_ids) + len(row.demonstration_ids)

    def share(self, rows: Sequence[EncodedPrompt], step: Sequence[EncodedPrompt]) -> Share:
        """Return the share of some rows in the step's loss."""
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        batch = DataCollatorForLanguageModeling(pad_token_id=padding_id(self.policy))(examples_of(rows))
        answer_tokens = sum(len(row.demonstration_ids) for row in step)
        return Share(-label_logprobs(self.policy, batch).sum() / answer_tokens)


@dataclass(frozen=True)
class DpoLoss:
    """The mean DPO loss of a step's pairs, in nats: log 2 where the policy is the one that the run started from.

    ``-log sigmoid(beta * (chosen - rejected))``, where each of the two is ``log p - log p_start``, summed over the
    answer's tokens (Rafailov et al. 2023, arXiv:2305.18290, equation 7): the default of TRL's ``DPOTrainer`` (sigmoid).
    """

    policy: Policy
    beta: float

    def tokens(self, row: EncodedPrompt) -> int:
        """How many tokens a pair has in a batch: both answers, each with the prompt and padded to the longer."""
        return 2 * (len(row.token_ids) + max(len(row.demonstration_ids), len(row.rejected_ids)))

    def share(self, rows: Sequence[EncodedPrompt], step: Sequence[EncodedPrompt]) -> Share:
        """Return the share of some pairs in the step's loss, and how their margins are."""
        margins = self.beta * self._difference(rows)  # (b,)
        loss = -logsigmoid(margins).sum() / len(step)
        return Share(loss, float(margins.detach().sum()), int((margins > 0).sum()))

    def _difference(self, rows: Sequence[EncodedPrompt]) -> Tensor:
        """How much further the policy has moved towards the chosen answers than towards the others, (b,)."""
        from trl.trainer.dpo_trainer import DataCollatorForPreference

        batch = DataCollatorForPreference(pad_token_id=padding_id(self.policy))(pairs_of(rows))
        batch["labels"] = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100)
        with torch.no_grad(), self.policy.as_reference():
            at_start = label_logprobs(self.policy, batch).sum(dim=1)  # (2 b,), the chosen ones first
        answers = label_logprobs(self.policy, batch).sum(dim=1)
        chosen, rejected = (answers - at_start).chunk(2)
        return chosen - rejected
