"""What the model demands of settings and rows: a loss that suits it, and prompts that fit its context length."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from ratchet.config import CompositeVerifier, Loss, RunConfig, ToolCallVerifier
from ratchet.datasets import Dataset, conversation
from ratchet.datasets.dataset import offered_tools
from ratchet.datasets.encoder import PromptEncoder
from ratchet.errors import IncompatibleData, InvalidSetting
from ratchet.models.model_files import text_settings
from ratchet.readiness.fault_list import Faults
from ratchet.run.records import EncodedPrompt, Message, Prompt
from ratchet.verifiers.tool_calls import BadTools, read_tools


class Window(NamedTuple):
    """The tokens that prompt and answer share, None where no limit is known, and what to call the limit."""

    tokens: int | None
    name: str


@dataclass(frozen=True)
class Fitted:
    """The encoded rows that fit the window, and what to tell of the others."""

    train: tuple[EncodedPrompt, ...] = ()
    validation: tuple[EncodedPrompt, ...] = ()
    heldout: tuple[EncodedPrompt, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return max((len(one.token_ids) for one in (*self.train, *self.validation, *self.heldout)), default=0)


def refuse_experts(experts: int, loss: Loss | None) -> None:
    """Refuse losses with a ratio per token for a mixture-of-experts model.

    Its experts change with the smallest update, which blows such ratios up (Zheng et al. 2025, arXiv:2507.18071,
    section 5.3); gspo's ratio per answer was made for them.

    Raises:
        InvalidSetting: the model is one and the loss is not gspo; None stands for a loss without ratios.
    """
    if loss is not None and experts > 1 and loss != "gspo":
        raise InvalidSetting(
            f"Loss is {loss}, but the base model is a mixture of {experts} experts, for which ratios per token are "
            "unstable. Choose gspo. Training such models is experimental.",
            field="rl.loss",
        )


def left_out(name: str, towers: str) -> tuple[str, ...]:
    """Name the part of a model that is not loaded; nothing for text models, whose ``towers`` is empty."""
    return (f"{name} is also a model for {towers}: only its text part is loaded and trained.",) if towers else ()


def preset_for_experts(config: RunConfig, experts: int) -> RunConfig:
    """Choose the one loss that suits a mixture-of-experts model, where the user chose none."""
    if experts <= 1 or config.objective != "rl" or "loss" in config.rl.model_fields_set:
        return config
    return config.model_copy(update={"rl": config.rl.model_copy(update={"loss": "gspo"})})


def on_experts(config: RunConfig, experts: int) -> str | None:
    """A note on training a mixture-of-experts model; None for others."""
    if experts <= 1:
        return None
    loss = "" if config.objective != "rl" else " Loss is gspo, the only one for such models."
    return f"The base model is a mixture of {experts} experts; training such models is experimental.{loss}"


def window_of(config: RunConfig, settings: Mapping[str, Any], tokenizer_limit: int | None) -> Window:
    """The context window of a run.

    Args:
        config: Its Context length, if given, must not exceed the model's own.
        settings: The model's config.json, empty where it is not known.
        tokenizer_limit: What stands in for the model's own window where that is not known.

    Raises:
        InvalidSetting: Context length exceeds the model's own, or Max answer tokens leaves no room for a prompt.
    """
    own = text_settings(settings).get("max_position_embeddings")
    own = own if isinstance(own, int) else tokenizer_limit
    asked = config.window_tokens
    if asked is not None and own is not None and asked > own:
        raise InvalidSetting(
            f"Context length is {asked} tokens, but the model's own is {own}. Choose {own} or less.",
            field="window_tokens",
        )
    window = Window(own, "model's context length") if asked is None else Window(asked, "context length")
    if window.tokens is not None and window.tokens <= answer_room(config):
        raise InvalidSetting(
            f"Max answer tokens is {config.rl.max_answer_tokens}, but the {window.name} is {window.tokens} tokens, "
            "prompt included. Lower Max answer tokens.",
            field="rl.max_answer_tokens",
        )
    return window


def fit(config: RunConfig, dataset: Dataset, encoder: PromptEncoder, window: Window, faults: Faults) -> Fitted:
    """Encode train, validation and held-out prompts; refuse or leave out those that do not fit the window.

    Args:
        config: Resolved, system prompt and few-shot examples included.
        dataset: The rows.
        encoder: What makes token ids of a conversation.
        window: What the longest prompt and answer must fit.
        faults: Where a split's fault goes: the template fails on a row, or rows do not fit and are not left out.
    """
    splits: dict[str, tuple[EncodedPrompt, ...]] = {}
    notes = [] if encoder.takes_tools else _on_tools(config, dataset.train)
    for split, prompts in (
        ("training", dataset.train),
        ("validation", dataset.validation),
        ("held-out", dataset.heldout),
    ):
        with faults.gathered():
            encoded = [_encoded(config, prompt, encoder, split) for prompt in prompts]
            splits[split] = tuple(_fitting(config, encoded, window, split, notes))
    train, validation, heldout = (splits.get(split, ()) for split in ("training", "validation", "held-out"))
    return Fitted(train, validation, heldout, tuple(notes))


def _turns(config: RunConfig, prompt: Prompt) -> tuple[Message, ...]:
    examples = config.prompt.few_shot_examples
    if isinstance(examples, int):
        raise ValueError("the few-shot examples are not resolved")
    return conversation(prompt, system_prompt=config.prompt.system_prompt or "", examples=examples)


def _on_tools(config: RunConfig, prompts: Sequence[Prompt]) -> list[str]:
    """Say which prompts name none of the tools that answers to them are to call, for a template that tells of none."""
    verifier = config.verifier
    parts = [part.verifier for part in verifier.parts] if isinstance(verifier, CompositeVerifier) else [verifier]
    if not any(isinstance(part, ToolCallVerifier) for part in parts):
        return []
    untold = []
    for prompt in prompts:
        with suppress(BadTools, KeyError):  # which is a fault of its own
            names = read_tools(prompt.extras["tools"])
            if not any(name in message["content"] for name in names for message in _turns(config, prompt)):
                untold.append(prompt.id)
    if not untold:
        return []
    return [
        f"In {len(untold)} of {len(prompts)} training rows the prompt names none of the row's tools, in row "
        f"{untold[0]} first, and the model's chat template does not render tools. List the tools in the prompts or "
        "in the System prompt."
    ]


def answer_room(config: RunConfig) -> int:
    """Tokens that an answer sampled by the run may have, 0 where it samples none."""
    return config.rl.max_answer_tokens if config.objective == "rl" or config.verifier is not None else 0


def longest_given(encoded: EncodedPrompt) -> int:
    """Tokens of the longer answer that a row contains, 0 where it contains none."""
    return max(len(encoded.demonstration_ids), len(encoded.rejected_ids))


def _row_tokens(encoded: EncodedPrompt, sampled: int) -> int:
    return len(encoded.token_ids) + max(sampled, longest_given(encoded))


def _encoded(config: RunConfig, prompt: Prompt, encoder: PromptEncoder, split: str) -> EncodedPrompt:
    turns, tools = _turns(config, prompt), offered_tools(prompt)
    try:
        answers = _answers(config, prompt, encoder, turns, split)
        return EncodedPrompt(prompt, encoder.encode(turns, tools), *answers)
    except InvalidSetting as error:
        raise InvalidSetting(f"Row {prompt.id} of the {split} rows: {error}", error.field) from error


def _answers(
    config: RunConfig, prompt: Prompt, encoder: PromptEncoder, turns: Sequence[Message], split: str
) -> tuple[tuple[int, ...], ...]:
    """Encode the answers that the objective learns from; held-out problems are answered by the model alone."""
    if config.objective == "rl" or split == "held-out":
        return ()
    given = [prompt.demonstration, *([prompt.rejected] if config.objective == "dpo" else [])]
    return tuple(encoder.encode_answer(turns, answer) if answer else () for answer in given)


def _fitting(
    config: RunConfig, encoded: Sequence[EncodedPrompt], window: Window, split: str, notes: list[str]
) -> Sequence[EncodedPrompt]:
    if window.tokens is None:
        return encoded
    # Answers are sampled to every prompt in rl; where a verifier scores sft or dpo, to those that are scored.
    sampled = answer_room(config) if config.objective == "rl" or split != "training" else 0
    fitting = [one for one in encoded if _row_tokens(one, sampled) <= window.tokens]
    left_out = len(encoded) - len(fitting)
    if not left_out:
        return encoded
    if config.data.overlong == "refuse" or not fitting:
        first = next(one for one in encoded if _row_tokens(one, sampled) > window.tokens)
        given = longest_given(first)
        if given > sampled:
            length, advice = f"with an answer of {given}", "Raise Context length, shorten the rows"
        else:
            length, advice = f"with Max answer tokens {sampled}", "Lower Max answer tokens"
        way_out = " or set Over-long rows to leave_out" if fitting else ""
        raise IncompatibleData(
            f"Row {first.prompt.id} of the {split} rows has a prompt of {len(first.token_ids)} tokens; {length} it "
            f"exceeds the {window.name} of {window.tokens} tokens ({left_out} of {len(encoded)} rows do). "
            f"{advice}{way_out}."
        )
    notes.append(f"{left_out} over-long {split} rows are left out.")
    return fitting
