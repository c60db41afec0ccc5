"""The losses of learning from given answers: sft from demonstrations, dpo from preferences.

sft: the mean over all answer tokens of a step of ``-log p``, prompts left out: TRL's ``SFTTrainer`` with its default
loss (nll) and prompts masked. The token that ends an answer counts, so that the policy learns to stop.

dpo (Rafailov et al. 2023, arXiv:2305.18290, equation 7): the mean over the pairs of a step of
``-log sigmoid(beta * (chosen - rejected))``, where each of the two is how much more likely the policy finds that answer
than the policy at the start of the run does, ``log p - log p_start``, summed over its tokens. TRL's ``DPOTrainer`` with
its default loss (sigmoid).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ratchet.engine.given_answers import Share, examples_of, label_logprobs, padding_id, pairs_of
from ratchet.engine.policy import Policy
from ratchet.run.records import EncodedPrompt


@dataclass(frozen=True)
class SftLoss:
    """The mean negative log-probability of a step's answer tokens, in nats."""

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
    """The mean DPO loss of a step's pairs, in nats: log 2 where the policy is the one that the run started from."""

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
