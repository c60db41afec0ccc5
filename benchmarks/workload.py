"""What both tools are given: the rows of the benchmark, the settings they share, and the reward.

Imports nothing heavy: the parent process must stay small, or its size would show in its children's peak memory.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

LEARNING_RATE = 2e-4
LORA_RANK = 8
LORA_ALPHA = 16
# Rewards of a group that differ by more than this carry a signal, as in Ratchet's engine/advantages.py.
REWARD_RESOLUTION = 1e-6


@dataclass(frozen=True)
class Workload:
    """One row: P prompts, G answers to each of exactly T tokens.

    ``ratchet_tokens`` and ``trl_answers`` are the micro-batches: tokens of a packed row, answers of a padded batch.
    None leaves Ratchet's to its own default. They are the best of what ``rounds.py sweep`` tries.
    """

    name: str
    model: str
    prompts: int
    answers: int
    answer_tokens: int
    system_prompt: str | None
    target: float
    ratchet_tokens: int | None
    trl_answers: int
    sweep_ratchet: tuple[int, ...]
    sweep_trl: tuple[int, ...]
    gradient_checkpointing: bool = False

    @property
    def batch(self) -> int:
        """Answers of a round, all of them in one optimizer step."""
        return self.prompts * self.answers

    def shrunk(self) -> "Workload":
        """Return the same row at a size that only shows whether the machinery works."""
        return replace(self, prompts=2, answers=4, answer_tokens=16, trl_answers=min(self.trl_answers, 8))

    def ratchet_settings(self) -> dict[str, Any]:
        """Return the run settings, as a user would write them, of one optimizer step a round."""
        prompt = {} if self.system_prompt is None else {"system_prompt": self.system_prompt}
        budget = {} if self.ratchet_tokens is None else {"micro_batch_tokens": self.ratchet_tokens}
        return {
            "model": self.model,
            "device": "cpu",
            "data": {"source": "math_pairs", "prompts": max(self.prompts, 8), "heldout": 0},
            "prompt": prompt,
            "reward": {"format_bonus": "off"},
            "rl": {
                "rounds": 1000,
                "prompts_per_round": self.prompts,
                "answers_per_prompt": self.answers,
                "max_answer_tokens": self.answer_tokens,
                "validation_prompts": 1,
                **budget,
            },
            "learning_rate": LEARNING_RATE,
            "lora": {"rank": LORA_RANK, "alpha": LORA_ALPHA},
        }


ROWS = {
    row.name: row
    for row in (
        Workload(
            name="tiny",
            model="tiny",
            prompts=16,
            answers=8,
            answer_tokens=32,
            system_prompt="",
            target=5.0,
            ratchet_tokens=512,
            trl_answers=64,
            sweep_ratchet=(256, 512, 1024, 2048),
            sweep_trl=(16, 32, 64, 128),
        ),
        Workload(
            name="smollm2-135m",
            model="smollm2-135m",
            prompts=4,
            answers=8,
            answer_tokens=48,
            # Math Pairs' own instruction, which makes prompts of 63 tokens.
            system_prompt=None,
            target=3.0,
            ratchet_tokens=512,
            trl_answers=8,
            sweep_ratchet=(256, 512, 1024, 2048),
            sweep_trl=(4, 8, 16, 32),
        ),
    )
}


def reward(token_ids: Sequence[int]) -> float:
    """Return a fixed number in [0, 1) of an answer's tokens, so that any two different answers of a group differ."""
    digest = hashlib.blake2b(",".join(map(str, token_ids)).encode(), digest_size=4).digest()
    return int.from_bytes(digest) / 2**32


def prompts_digest(prompts: Sequence[Sequence[int]]) -> str:
    """Return what a round's distinct prompts hash to, in whatever order and however often they come."""
    distinct = sorted({tuple(prompt) for prompt in prompts})
    return hashlib.sha256(repr(distinct).encode()).hexdigest()[:16]
