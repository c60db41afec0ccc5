"""Checks before the weights load: data, verifier, tokenizer and window, in the order of what they cost.

Reads rows and the tokenizer, never the weights. What it returns is all that the rounds need beside the policy.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.config import CompositeVerifier, RunConfig, VerifierSettings
from ratchet.datasets import Dataset, conversation, load, worked_examples
from ratchet.engine.chat import Chat
from ratchet.engine.evaluate import EncodedPrompt
from ratchet.engine.model_files import ModelFiles, model_config
from ratchet.engine.policy import chosen_device, load_chat
from ratchet.engine.quantization import refuse_impossible
from ratchet.engine.sampler.choice import refuse_absent
from ratchet.errors import Conflict, IncompatibleData, InvalidSetting
from ratchet.records import Prompt
from ratchet.verifiers import compile_pattern, make_verifier, takes_function
from ratchet.verifiers.base import Tried, Verifier

# How many rows an error names.
_ROWS_NAMED = 20
# Learning rates that work for LoRA on models from this size on. Twenty steps at 5e-6 were measured to move nothing.
_USUAL_RATES = (2e-5, 1e-3)
_LARGE_PARAMETERS = 100_000_000


@dataclass(frozen=True)
class Prepared:
    """A run that has passed its checks. ``config`` is resolved, system prompt and worked examples included."""

    config: RunConfig
    verifier: Verifier
    chat: Chat
    files: ModelFiles
    train: tuple[EncodedPrompt, ...]
    validation: tuple[EncodedPrompt, ...]
    heldout: tuple[EncodedPrompt, ...]
    notes: tuple[str, ...]


def prepare(config: RunConfig, function: Callable[..., Any] | None = None) -> Prepared:
    """Check a run and make it ready to start.

    Args:
        config: Settings as given or as stored.
        function: The user's own verifier, for ``verifier.kind`` python.

    Raises:
        InvalidSetting, IncompatibleData, MetricRefused, SandboxUnavailable, ModelUnavailable: what is wrong, before
            any weights load.
    """
    config = config.resolved()
    device = chosen_device(config.device)
    refuse_absent(config.sampler)
    refuse_impossible(config.quantization, device)
    if config.reward.format_bonus == "pattern" and config.reward.format_pattern:
        compile_pattern(config.reward.format_pattern)
    dataset = load(
        config.data,
        validation_prompts=config.rl.validation_prompts,
        format_kind=config.reward.format_bonus or "off",
    )
    config = _with_prompt_setup(config, dataset)
    verifier = _verifier(config, function)
    try:
        _refuse_ungradable(verifier, dataset)
        tried = verifier.trial(dataset.train[0]) if isinstance(verifier, Tried) else ""
        chat, files = load_chat(config)
        splits, left_out = _encoded_splits(config, dataset, chat, model_config(files))
    except BaseException:
        verifier.close()
        raise
    notes = [*dataset.notes, *([tried] if tried else []), *left_out, *_advice(config, chat, len(splits[0]))]
    if config.quantization != "none" and device.type == "cpu":
        notes.append(f"Quantization is {config.quantization}: on a CPU it saves memory but no time.")
    train, validation, heldout = splits
    return Prepared(config, verifier, chat, files, train, validation, heldout, tuple(notes))


def _with_prompt_setup(config: RunConfig, dataset: Dataset) -> RunConfig:
    given = config.prompt.system_prompt
    prompt = config.prompt.model_copy(
        update={
            "system_prompt": dataset.instruction if given is None else given,
            "worked_examples": worked_examples(config.prompt, dataset),
        }
    )
    return config.model_copy(update={"prompt": prompt})


def _verifier(config: RunConfig, function: Callable[..., Any] | None) -> Verifier:
    settings = config.verifier
    if settings is None:
        raise ValueError("the settings are not resolved")
    if takes_function(settings) and function is None:
        raise Conflict(
            "This run is checked by a Python function of your own, which is not stored. Start or resume it from "
            "Python: ratchet.resume(folder, verifier=function)."
        )
    return make_verifier(settings, prefer_answer_tag=config.reward.format_bonus == "tags", function=function)


def _refuse_ungradable(verifier: Verifier, dataset: Dataset) -> None:
    for split, prompts in (("training", dataset.train), ("validation", dataset.validation)):
        if not prompts:
            raise IncompatibleData(f"There are no {split} rows. Give a dataset with rows for training and validation.")
        reasons = [(prompt.id, reason) for prompt in prompts if (reason := verifier.check_ground_truth(prompt))]
        if reasons:
            named = "; ".join(f"row {row}: {reason}" for row, reason in reasons[:_ROWS_NAMED])
            raise IncompatibleData(
                f"{len(reasons)} of {len(prompts)} {split} rows have a reference that the verifier cannot check: "
                f"{named}. Correct the rows or choose another verifier."
            )


def _encoded_splits(
    config: RunConfig, dataset: Dataset, chat: Chat, model_settings: dict[str, Any]
) -> tuple[tuple[tuple[EncodedPrompt, ...], ...], list[str]]:
    """Encode train, validation and held-out prompts and refuse or leave out those that do not fit the window."""
    window, named = _window(config, chat, model_settings)
    room = None if window is None else window - config.rl.max_answer_tokens
    if room is not None and room < 1:
        raise InvalidSetting(
            f"Longest answer is {config.rl.max_answer_tokens} tokens, but the {named} holds {window} tokens, prompt "
            "included. Choose a shorter Longest answer.",
            field="rl.max_answer_tokens",
        )
    splits, notes = [], []
    for split, prompts in (
        ("training", dataset.train),
        ("validation", dataset.validation),
        ("held-out", dataset.heldout),
    ):
        encoded = [EncodedPrompt(prompt, _encode(config, prompt, chat)) for prompt in prompts]
        fitting = encoded if room is None else [e for e in encoded if len(e.token_ids) <= room]
        if len(fitting) < len(encoded):
            if config.data.overlong == "refuse" or not fitting:
                first = next(e for e in encoded if len(e.token_ids) > (room or 0))
                left_out = " or set Over-long rows to leave_out" if fitting else ""
                raise IncompatibleData(
                    f"Row {first.prompt.id} of the {split} rows has a prompt of {len(first.token_ids)} tokens; with "
                    f"Longest answer {config.rl.max_answer_tokens} it does not fit the {named} of {window} tokens "
                    f"({len(encoded) - len(fitting)} of {len(encoded)} rows do not). Choose a shorter Longest answer"
                    f"{left_out}."
                )
            notes.append(f"{len(encoded) - len(fitting)} over-long {split} rows are left out.")
        splits.append(tuple(fitting))
    return tuple(splits), notes


def _window(config: RunConfig, chat: Chat, model_settings: dict[str, Any]) -> tuple[int | None, str]:
    """Return the tokens that prompt and answer share, and what to call the limit; None where none is known."""
    text = model_settings.get("text_config", model_settings)
    own = text.get("max_position_embeddings")
    if own is None and chat.tokenizer.model_max_length < 1 << 30:
        own = chat.tokenizer.model_max_length
    asked = config.window_tokens
    if asked is not None and own is not None and asked > own:
        raise InvalidSetting(
            f"Training window is {asked} tokens, but the model's own window is {own}. Choose {own} or less.",
            field="window_tokens",
        )
    return (asked, "training window") if asked is not None else (own, "model's window")


def _encode(config: RunConfig, prompt: Prompt, chat: Chat) -> tuple[int, ...]:
    examples = config.prompt.worked_examples
    if isinstance(examples, int):
        raise ValueError("the worked examples are not resolved")
    return chat.encode(conversation(prompt, system_prompt=config.prompt.system_prompt or "", examples=examples))


def data_hash(prepared: Prepared) -> str:
    """Return a hash over every prompt's tokens, ground truth and columns: rows edited meanwhile change the result."""
    digest = hashlib.sha256()
    for encoded in (*prepared.train, *prepared.validation, *prepared.heldout):
        row: list[Any] = [encoded.prompt.id, encoded.token_ids, encoded.prompt.ground_truth]
        if encoded.prompt.extras:  # a row's own tools and schema decide its grade
            row.append(dict(encoded.prompt.extras))
        digest.update(json.dumps(row, default=str).encode())
    return f"sha256:{digest.hexdigest()}"


def highest_reward(config: RunConfig) -> float:
    """Return the reward of a right answer in the form that the prompt teaches.

    1, unless a format bonus is on whose form neither the system prompt nor a worked example shows: a model that is
    never told of it does not earn it.
    """
    mark = {"tags": "<answer>", "boxed": "\\boxed"}.get(config.reward.format_bonus or "off")
    examples = config.prompt.worked_examples
    shown = [] if isinstance(examples, int) else [example.assistant for example in examples]
    taught = [config.prompt.system_prompt or "", *shown]
    if mark is None or any(mark in text for text in taught):
        return 1.0
    return 1 / (1 + config.reward.format_weight)


def advice_on_rate(config: RunConfig, model_parameters: int) -> str | None:
    """Return what to know of the learning rate for a model of that size, once it is loaded; None if it is usual."""
    low, high = _USUAL_RATES
    if model_parameters < _LARGE_PARAMETERS or low <= config.learning_rate <= high:
        return None
    effect = "twenty steps will hardly move it" if config.learning_rate < low else "training may collapse"
    return (
        f"Learning rate is {config.learning_rate:g}; for LoRA on a model of {model_parameters / 1e6:.0f} million "
        f"parameters {low:g} to {high:g} is usual, and {effect}."
    )


def _advice(config: RunConfig, chat: Chat, prompts: int) -> Sequence[str]:
    """Return what a user should know before the run starts; nothing here stops it."""
    notes = []
    if chat.is_plain:
        notes.append("The model brings no chat template; a plain one (Question: ... Answer: ...) is used.")
    if chat.reasons and config.reward.format_bonus != "tags" and _reads_whole(config.verifier):
        notes.append(
            "The model's chat template reasons (<think>), and the verifier reads the whole answer, reasoning included. "
            "Set verifier.read to after_reasoning to check what comes after </think>."
        )
    if not config.prompt.system_prompt and not config.prompt.worked_examples and config.model != "tiny":
        notes.append("Nothing in the prompt says where the answer goes: neither a system prompt nor worked examples.")
    if prompts < config.rl.prompts_per_round:
        notes.append(
            f"Prompts per round is {config.rl.prompts_per_round}, but there are {prompts} training prompts: each round "
            "takes each of them once."
        )
    if (highest := highest_reward(config)) < 1:
        notes.append(
            f"Nothing in the prompt asks for the form of the format bonus ({config.reward.format_bonus}): a right "
            f"answer without it earns {highest:.2f}, which is then the highest reachable reward."
        )
    return notes


def _reads_whole(verifier: VerifierSettings | None) -> bool:
    """Tell whether a verifier, or one of its parts, reads answers as a whole."""
    if isinstance(verifier, CompositeVerifier):
        return any(_reads_whole(part.verifier) for part in verifier.parts)
    return verifier is not None and verifier.read == "whole"
