"""Warnings before a run starts. None of them stops it."""

from ratchet.config import PRESETS, CompositeVerifier, Objective, RunConfig, VerifierSettings
from ratchet.datasets.encoder import PromptEncoder

# Learning rates that work for LoRA on models from this size on. rl and sft: twenty steps at 5e-6 were measured to move
# nothing. dpo takes far smaller steps: TRL's default is 1e-6, ten times that for LoRA.
_USUAL_RATES: dict[Objective, tuple[float, float]] = {"rl": (2e-5, 1e-3), "sft": (2e-5, 1e-3), "dpo": (1e-6, 2e-4)}
_LARGE_PARAMETERS = 100_000_000


def advice(config: RunConfig, encoder: PromptEncoder | None, prompts: int, device: str) -> list[str]:
    """Warnings about the settings.

    Args:
        config: Resolved, system prompt and few-shot examples included.
        encoder: What is known of the model's chat template; None where it is not known yet.
        prompts: How many training prompts there are.
        device: Where the run will be.
    """
    return [
        *([] if encoder is None else _on_template(config, encoder)),
        *_on_prompt(config),
        *_on_size(config, prompts),
        *_on_reward(config),
        *_on_quantization(config, device),
        *_on_preset(config),
    ]


def highest_reward(config: RunConfig) -> float:
    """The reward of a correct answer in the form that the prompt teaches.

    1, unless a format bonus is on whose form neither the system prompt nor a few-shot example shows: a model that
    is never told of it does not earn it.
    """
    mark = {"tags": "<answer>", "boxed": "\\boxed"}.get(config.reward.format_bonus or "off")
    examples = config.prompt.few_shot_examples
    shown = [] if isinstance(examples, int) else [example.assistant for example in examples]
    taught = [config.prompt.system_prompt or "", *shown]
    if mark is None or any(mark in text for text in taught):
        return 1.0
    return 1 / (1 + config.reward.format_weight)


def advice_on_rate(config: RunConfig, model_parameters: int) -> str | None:
    """A warning about the learning rate for a model of that size; None if it is usual."""
    low, high = _USUAL_RATES[config.objective]
    if model_parameters < _LARGE_PARAMETERS or low <= config.rate <= high or _on_preset(config):
        return None
    effect = "20 steps hardly change the adapter" if config.rate < low else "training may collapse"
    return (
        f"Learning rate is {config.rate:g}; for LoRA on a model of {model_parameters / 1e6:.0f} million "
        f"parameters {low:g} to {high:g} is usual; at this rate {effect}."
    )


def _on_preset(config: RunConfig) -> list[str]:
    if config.preset is None or config.rate != PRESETS[config.preset].learning_rate:
        return []
    low, high = _USUAL_RATES[config.objective]
    return [
        f"Learning rate is {config.rate:g} by the preset {config.preset}. For LoRA on models above 100 million "
        f"parameters {low:g} to {high:g} is usual: 20 steps at 5e-06 hardly change such an adapter."
    ]


def _on_template(config: RunConfig, encoder: PromptEncoder) -> list[str]:
    notes = []
    if encoder.is_plain:
        notes.append("The model has no chat template; a plain one (Question: ... Answer: ...) is used.")
    if encoder.unread_options:
        names = ", ".join(encoder.unread_options)
        notes.append(f"The model's chat template ignores these Chat template options: {names}.")
    if encoder.reasons and config.reward.format_bonus != "tags" and _reads_whole(config.verifier):
        notes.append(
            "The model's chat template opens a reasoning block (<think>), and the verifier checks the whole answer, "
            "reasoning included. Set verifier.read to after_reasoning to check only what follows </think>."
        )
    return notes


def _reads_whole(verifier: VerifierSettings | None) -> bool:
    """Whether a verifier, or one of its parts, reads answers as a whole."""
    if isinstance(verifier, CompositeVerifier):
        return any(_reads_whole(part.verifier) for part in verifier.parts)
    return verifier is not None and verifier.read == "whole"


def _on_prompt(config: RunConfig) -> list[str]:
    is_told = config.prompt.system_prompt or config.prompt.few_shot_examples or config.model == "tiny"
    if is_told or config.verifier is None:
        return []
    return ["Nothing in the prompt tells the model where to put its answer: no system prompt, no few-shot examples."]


def _on_size(config: RunConfig, prompts: int) -> list[str]:
    if config.tuning is not None:
        size = config.tuning.batch_size
        if prompts >= size:
            return []
        return [f"Batch size is {size}, but there are {prompts} training rows: each step uses every row once."]
    if prompts >= config.rl.prompts_per_round:
        return []
    there = "is 1 training prompt" if prompts == 1 else f"are {prompts} training prompts"
    return [f"Prompts per round is {config.rl.prompts_per_round}, but there {there}: each round uses all of them once."]


def _on_reward(config: RunConfig) -> list[str]:
    if config.objective != "rl" or (highest := highest_reward(config)) == 1:
        return []
    return [
        f"Nothing in the prompt asks for the form of the format bonus ({config.reward.format_bonus}). A correct "
        f"answer without it earns {highest:.2f}, so that is the highest reward the model can learn to reach."
    ]


def _on_quantization(config: RunConfig, device: str) -> list[str]:
    if config.quantization == "none" or device != "cpu":
        return []
    return [f"Quantization is {config.quantization}: on a CPU it saves memory but no time."]
