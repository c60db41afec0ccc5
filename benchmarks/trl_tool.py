"""TRL's side of a full round: its GRPOTrainer with transformers generation, held before each step until told to go.

A step's time is the wall clock from "step begins" to "step ends": generation, rewards, forward, backward, optimizer.
Fetching the prompts comes before it and logging is off, so neither counts.
"""

import tempfile
import time
from typing import Any

from channel import Channel, Clock, Round
from datasets import Dataset
from peers import base_model, lora
from transformers import AutoTokenizer
from trl import GRPOTrainer
from trl_parts import Held, TokenReward, trainer_settings
from workload import prompts_digest


class TimedTrainer(GRPOTrainer):
    """GRPOTrainer that notes how long it generated and what came out."""

    sampling_seconds = 0.0
    answer_tokens = 0
    digest = ""

    def _generate(self, prompts: list[Any]) -> Any:
        started = time.perf_counter()
        result = super()._generate(prompts)
        self.sampling_seconds = time.perf_counter() - started
        prompt_ids, completion_ids = result[0], result[1]
        self.answer_tokens = sum(len(ids) for ids in completion_ids)
        self.digest = prompts_digest(prompt_ids)
        return result


def main() -> None:
    channel = Channel()
    order = channel.order
    rewards = TokenReward(order["answers"])

    def report(clock: Clock) -> None:
        seconds, busy_cores = clock.read()
        channel.done(
            Round(
                seconds=seconds,
                sampling=trainer.sampling_seconds,
                busy_cores=busy_cores,
                answer_tokens=trainer.answer_tokens,
                groups_with_signal=rewards.groups_with_signal,
                prompts_digest=trainer.digest,
            )
        )

    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            model=base_model(order["model_folder"]),
            processing_class=AutoTokenizer.from_pretrained(order["model_folder"]),
            reward_funcs=rewards,
            # Answers of fixed length: the end token cannot be drawn.
            args=trainer_settings(order, folder, generation_kwargs={"min_new_tokens": order["answer_tokens"]}),
            train_dataset=Dataset.from_list([{"prompt": messages} for messages in order["conversations"]]),
            peft_config=lora(),
            callbacks=[Held(channel, report)],
        )
        channel.ready(
            trained_weights=sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad),
            micro_batch=f"{order['micro_batch']} answers",
        )
        trainer.train()


if __name__ == "__main__":
    main()
