"""Settings that Ratchet brings along: the two demos. Data alone; flags are laid over them."""

from collections.abc import Mapping
from typing import Any

# Keys of the reports of the two demos as they are below: their answers and probes were read. A change of what a key is
# made of (data, prompt, verifier, reward, the shipped model) makes another one, which is then to be read again; a test
# says so.
SHIPPED_REPORTS: Mapping[str, str] = {
    "demo": "1eeb4a31d41f263010dc4cc828736a23",
    "real demo": "a1711dc606e5034932f2c21f49a5ffb4",
}


def demo_settings() -> dict[str, Any]:
    """The demo of the shipped tiny model: Math Pairs with numbers 1 to 9, a minute or so on two cores.

    The format bonus is off and there is no system prompt: the tiny model knows expressions and nothing else.
    """
    return {
        "model": "tiny",
        "data": {"source": "math_pairs"},
        "prompt": {"system_prompt": ""},
        "reward": {"format_bonus": "off"},
        "rl": {"rounds": 8, "prompts_per_round": 32, "answers_per_prompt": 8, "max_answer_tokens": 32},
        "learning_rate": 2e-3,
    }


def real_demo_settings() -> dict[str, Any]:
    """The demo of SmolLM2-135M-Instruct: numbers 1 to 5, three few-shot examples in the prompt."""
    return {
        "model": "smollm2-135m",
        "data": {"source": "math_pairs", "largest": 5, "heldout": 155},
        "prompt": {"system_prompt": "", "few_shot_examples": 3},
        "reward": {"format_bonus": "off"},
        "rl": {
            "rounds": 14,
            "prompts_per_round": 16,
            "answers_per_prompt": 8,
            "max_answer_tokens": 64,
            "validation_prompts": 64,
        },
        "learning_rate": 2e-4,
    }
