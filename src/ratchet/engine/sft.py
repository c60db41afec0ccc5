"""The loss of learning from demonstrations: how unlikely the policy finds the tokens of the given answers.

The mean over all answer tokens of a step of ``-log p``, prompts left out: TRL's ``SFTTrainer`` with its default loss
(nll) and prompts masked. The token that ends an answer counts, so that the policy learns to stop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.engine.given_answers import Share, examples_of, label_logprobs, padding_id
from ratchet.engine.policy import Policy
from ratchet.run.records import EncodedPrompt


@dataclass(frozen=True)
class SftLoss:
    """The mean negative log-probability of a step's answer tokens, in nats."""

    policy: Policy

    def tokens(self, row: EncodedPrompt) -> int:
        """Return how many tokens a row has in a batch."""
        return len(row.token_ids) + len(row.demonstration_ids)

    def share(self, rows: Sequence[EncodedPrompt], step: Sequence[EncodedPrompt]) -> Share:
        """Return the share of some rows in the step's loss."""
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        batch = DataCollatorForLanguageModeling(pad_token_id=padding_id(self.policy))(examples_of(rows))
        answer_tokens = sum(len(row.demonstration_ids) for row in step)
        return Share(-label_logprobs(self.policy, batch).sum() / answer_tokens)
