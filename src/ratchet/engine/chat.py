"""The chat template through transformers: from messages to token ids and back to text, and which ids end an answer."""

from collections.abc import Sequence
from typing import Any

from ratchet.datasets.encoder import PLAIN_TEMPLATE, PromptEncoder, own_first
from ratchet.run.records import Message

# What transformers writes where a tokenizer sets no limit is far above any.
_NO_LIMIT = 1 << 30


class Chat:
    """A tokenizer with its chat template and end-of-sequence ids.

    Attributes:
        end_ids: Every token id that ends an answer: the tokenizer's own and all of the generation configuration.
        prompts: Encodes conversations.
        is_plain: The model brings no chat template, and the plain one is used.
        prefilled_think: The template already opens ``<think>`` for the answer.
    """

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], template_options: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        template = tokenizer.chat_template
        if template is None:
            tokenizer.chat_template = PLAIN_TEMPLATE
        own_beginning = tuple(tokenizer("a")["input_ids"][:1])
        limit = tokenizer.model_max_length

        def render(messages: list[Message], tools: Sequence[Any] | None, is_asked: bool) -> str:
            text = tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=is_asked, **template_options
            )
            return str(text)

        def tokenize(text: str) -> Sequence[int]:
            ids: Sequence[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            return ids

        self.prompts = PromptEncoder(
            render,
            tokenize,
            template=template if template is None else str(template),
            option_names=tuple(template_options),
            beginning=own_beginning if own_beginning == (tokenizer.bos_token_id,) else (),
            window=limit if limit < _NO_LIMIT else None,
            end_ids=own_first(tokenizer.eos_token_id, end_ids),
        )
        self.is_plain = self.prompts.is_plain
        self.prefilled_think = self.prompts.prefilled_think
        # Dropped from an answer's text wherever they stand. Other special tokens stay: some models write their
        # <think> tags as special tokens, and the verifier must see them.
        padding = {tokenizer.pad_token_id, tokenizer.bos_token_id}
        self._silent_ids = (end_ids | padding) - {None}

    def encode(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> tuple[int, ...]:
        """Return the token ids of a conversation, with the tools it offers, up to where the answer begins."""
        return self.prompts.encode(messages, tools)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer's tokens, end and padding tokens left out."""
        kept = [token for token in token_ids if token not in self._silent_ids]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))
