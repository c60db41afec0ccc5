"""What TRL's programs share: the reward, the trainer's settings, and holding it until the parent says go."""

from typing import Any

from channel import Channel
from transformers import TrainerCallback
from trl import GRPOConfig
from workload import LEARNING_RATE, groups_with_signal, reward


class TokenReward:
    """Grades by the tokens alone, and counts the groups of the round whose rewards differ."""

    __name__ = "token_reward"

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self.groups_with_signal = 0

    def __call__(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        rewards = [reward(ids) for ids in completion_ids]
        self.groups_with_signal = groups_with_signal(rewards, self._answers)
        return rewards


class Held(TrainerCallback):
    """Holds the trainer before each step until the parent says go, and calls back afterwards."""

    def __init__(self, channel: Channel, report: Any) -> None:
        self._channel = channel
        self._report = report
        self._clock: Any = None

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._clock = self._channel.wait_for_go()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self._report(self._clock)


def trainer_settings(order: dict[str, Any], folder: str, **given: Any) -> GRPOConfig:
    """What makes a step one round of the same work: same loss, one optimizer step."""
    batch = order["prompts"] * order["answers"]
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=order["micro_batch"],
        # All answers of a round are generated in one batch and enter one optimizer step.
        gradient_accumulation_steps=batch // order["micro_batch"],
        num_generations=order["answers"],
        max_completion_length=order["answer_tokens"],
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
        **given,
    )
