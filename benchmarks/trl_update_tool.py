"""TRL's side of the update alone: its GRPOTrainer on given answers, held before each step until the parent says go.

The answers come through ``rollout_func``, TRL's own door for answers from elsewhere, which here only hands out lists.
The clock starts when ``_generate_and_score_completions`` has returned, so neither that nor rewards nor padding count:
what is left is TRL's loss, backward pass and optimizer step.
"""

import os
import tempfile
from typing import Any

from channel import Channel, Clock, Round
from datasets import Dataset
from peers import base_model, lora
from transformers import AutoTokenizer
from trl import GRPOTrainer
from trl_parts import Held, TokenReward, trainer_settings
from workload import made_up_groups, prompts_digest

# It would warn that rollout_func is experimental.
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"


class TimedTrainer(GRPOTrainer):
    """GRPOTrainer that notes when its answers were there, and what they were."""

    clock = Clock()
    answer_tokens = 0
    digest = ""

    def _generate_and_score_completions(self, inputs: list[Any]) -> Any:
        batch = super()._generate_and_score_completions(inputs)
        self.answer_tokens = int(batch["completion_mask"].sum())
        self.digest = _digest(batch)
        self.clock = Clock()
        return batch


def main() -> None:
    channel = Channel()
    order = channel.order
    rewards = TokenReward(order["answers"])
    model = base_model(order["model_folder"])
    sizes = (order["prompts"], order["answers"], order["prompt_tokens"], order["answer_tokens"])
    groups = made_up_groups(*sizes, model.config.vocab_size)

    def given(prompts: list[str], trainer: Any) -> dict[str, Any]:
        handed_out = {number: iter(answers) for number, (_, answers) in enumerate(groups)}
        numbers = [int(prompt) for prompt in prompts]
        return {
            "prompt_ids": [groups[number][0] for number in numbers],
            "completion_ids": [next(handed_out[number]) for number in numbers],
            "logprobs": None,
        }

    def report(clock: Clock) -> None:
        seconds, busy_cores = trainer.clock.read()
        channel.done(
            Round(
                seconds=seconds,
                busy_cores=busy_cores,
                answer_tokens=trainer.answer_tokens,
                prompts_digest=trainer.digest,
                groups_with_signal=rewards.groups_with_signal,
            )
        )

    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            model=model,
            processing_class=AutoTokenizer.from_pretrained(order["model_folder"]),
            reward_funcs=rewards,
            args=trainer_settings(order, folder),
            train_dataset=Dataset.from_list([{"prompt": str(number)} for number in range(len(groups))]),
            peft_config=lora(),
            rollout_func=given,
            callbacks=[Held(channel, report)],
        )
        channel.ready(
            trained_weights=sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad),
            micro_batch=f"{order['micro_batch']} answers",
        )
        trainer.train()


def _digest(batch: dict[str, Any]) -> str:
    """What the whole sequences hash to; all are of one length, so nothing is padded."""
    pairs = zip(batch["prompt_ids"].tolist(), batch["completion_ids"].tolist(), strict=True)
    return prompts_digest([[*prompt, *answer] for prompt, answer in pairs])


if __name__ == "__main__":
    main()
