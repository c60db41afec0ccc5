"""TRL's side of a pair: its GRPOTrainer with transformers generation, held before each step until the parent says go.

A step's time is the wall clock from "step begins" to "step ends": generation, rewards, forward, backward, optimizer.
Fetching the prompts comes before it and logging is off, so neither counts.
"""

import tempfile
import time
from typing import Any

import torch
from channel import Channel, Round
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from workload import LEARNING_RATE, LORA_ALPHA, LORA_RANK, REWARD_RESOLUTION, prompts_digest, reward


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


class TokenReward:
    """Grades by the tokens alone, and counts the groups of the round whose rewards differ."""

    __name__ = "token_reward"

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self.groups_with_signal = 0

    def __call__(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        rewards = [reward(ids) for ids in completion_ids]
        groups = [rewards[start : start + self._answers] for start in range(0, len(rewards), self._answers)]
        self.groups_with_signal = sum(max(group) - min(group) > REWARD_RESOLUTION for group in groups)
        return rewards


class Stopwatch(TrainerCallback):
    """Holds the trainer before each step and reports the step afterwards."""

    def __init__(self, channel: Channel, rewards: TokenReward) -> None:
        self._channel = channel
        self._rewards = rewards
        self.trainer: TimedTrainer | None = None
        self._started = self._cpu_started = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._started, self._cpu_started = self._channel.wait_for_go()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        seconds = time.perf_counter() - self._started
        if self.trainer is None:
            raise RuntimeError("the stopwatch was not given its trainer")
        self._channel.done(
            Round(
                seconds=seconds,
                sampling=self.trainer.sampling_seconds,
                busy_cores=(time.process_time() - self._cpu_started) / seconds,
                answer_tokens=self.trainer.answer_tokens,
                groups_with_signal=self._rewards.groups_with_signal,
                prompts_digest=self.trainer.digest,
            )
        )


def main() -> None:
    channel = Channel()
    order = channel.order
    rewards = TokenReward(order["answers"])
    watch = Stopwatch(channel, rewards)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            model=AutoModelForCausalLM.from_pretrained(order["model_folder"], dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(order["model_folder"]),
            reward_funcs=rewards,
            args=settings(order, folder),
            train_dataset=Dataset.from_list([{"prompt": messages} for messages in order["conversations"]]),
            peft_config=LoraConfig(
                r=LORA_RANK, lora_alpha=LORA_ALPHA, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
            ),
            callbacks=[watch],
        )
        watch.trainer = trainer
        channel.ready(
            trained_weights=sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad),
            micro_batch=order["trl_answers"],
        )
        trainer.train()


def settings(order: dict[str, Any], folder: str) -> GRPOConfig:
    """Return what makes a step one round of the same work: same loss, one optimizer step, answers of fixed length."""
    batch = order["prompts"] * order["answers"]
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=order["trl_answers"],
        # All answers of a round are generated in one batch and enter one optimizer step.
        gradient_accumulation_steps=batch // order["trl_answers"],
        num_generations=order["answers"],
        max_completion_length=order["answer_tokens"],
        generation_kwargs={"min_new_tokens": order["answer_tokens"]},
        temperature=1.0,
        beta=0.0,
        loss_type="grpo",
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_steps=1000,
        use_cpu=True,
        bf16=False,
        fp16=False,
        gradient_checkpointing=order["gradient_checkpointing"],
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


if __name__ == "__main__":
    main()
