"""What all tools of a row are given alike: settings, the reward, made-up tokens and prescribed lengths.

Imports nothing heavy: the parent process must stay small, or its size would show in its children's peak memory.
"""

import hashlib
import math
import random
from collections.abc import Sequence

LEARNING_RATE = 2e-4
LORA_RANK = 8
LORA_ALPHA = 16
# Rewards of a group that differ by more than this carry a signal, as in Ratchet's engine/advantages.py.
REWARD_RESOLUTION = 1e-6
# Ids below are special tokens of the models used here; made-up texts leave them out.
_FIRST_ORDINARY_ID = 20
# Of an answer of uneven length: mean of the exponential distribution before it is cut off at the longest answer.
_UNEVEN_MEAN_SHARE = 0.245


def reward(token_ids: Sequence[int]) -> float:
    """Return a fixed number in [0, 1) of an answer's tokens, so that any two different answers of a group differ."""
    digest = hashlib.blake2b(",".join(map(str, token_ids)).encode(), digest_size=4).digest()
    return int.from_bytes(digest) / 2**32


def groups_with_signal(rewards: Sequence[float], answers: int) -> int:
    """Count the groups, which lie one after the other, whose rewards differ."""
    groups = [rewards[start : start + answers] for start in range(0, len(rewards), answers)]
    return sum(max(group) - min(group) > REWARD_RESOLUTION for group in groups)


def prompts_digest(prompts: Sequence[Sequence[int]]) -> str:
    """What a round's distinct prompts hash to, in whatever order and however often they come."""
    distinct = sorted({tuple(prompt) for prompt in prompts})
    return hashlib.sha256(repr(distinct).encode()).hexdigest()[:16]


def made_up_tokens(seed: int, count: int, vocabulary: int) -> list[int]:
    """Return random ordinary tokens, the same in every process."""
    generator = random.Random(seed)
    return [generator.randrange(_FIRST_ORDINARY_ID, vocabulary) for _ in range(count)]


def made_up_groups(
    prompts: int, answers: int, prompt_tokens: int, answer_tokens: int, vocabulary: int
) -> list[tuple[list[int], list[list[int]]]]:
    """Return prompts with their answers, all of made-up tokens."""
    return [
        (
            made_up_tokens(1000 * number, prompt_tokens, vocabulary),
            [made_up_tokens(1000 * number + answer, answer_tokens, vocabulary) for answer in range(1, answers + 1)],
        )
        for number in range(1, prompts + 1)
    ]


def answer_lengths(count: int, longest: int, *, uneven: bool) -> list[int]:
    """How many tokens each answer has: all the longest, or quantiles of a skewed distribution, shuffled.

    The skewed one is exponential, cut off at the longest answer: with a longest of 128 the mean is 31. Most answers of
    a language model end early and a few do not end at all, which is what it imitates.
    """
    if not uneven:
        return [longest] * count
    mean = _UNEVEN_MEAN_SHARE * longest
    quantiles = [-mean * math.log(1 - (number + 0.5) / count) for number in range(count)]
    lengths = [min(longest, max(2, round(value))) for value in quantiles]
    lengths[-1] = longest
    random.Random(0).shuffle(lengths)
    return lengths
