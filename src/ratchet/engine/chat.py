"""The chat template: from messages to token ids, from token ids to text, and which tokens end an answer."""

from collections.abc import Sequence
from typing import Any

from ratchet.errors import InvalidSetting
from ratchet.records import Message

# For models that bring no chat template. Nothing but the text itself marks the turns, so any tokenizer can read it.
PLAIN_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}\n\n"
    "{% elif message.role == 'user' %}Question: {{ message.content }}\n"
    "{% else %}Answer: {{ message.content }}{{ eos_token }}\n\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)

# No template writes this itself, so that one which drops the system message is found out.
_PROBE = "ratchet-7f3a"


class Chat:
    """A tokenizer with its chat template and end-of-sequence ids.

    Attributes:
        end_ids: Every token id that ends an answer: the tokenizer's own and all of the generation configuration.
        is_plain: The model brings no chat template, and the plain one is used.
        prefilled_think: The template already opens ``<think>`` for the answer.
        reasons: The template knows of ``<think>``, and has not already closed it for the answer.
    """

    def __init__(self, tokenizer: Any, end_ids: frozenset[int], template_options: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.end_ids = end_ids
        self._options = dict(template_options)
        self.is_plain = tokenizer.chat_template is None
        if self.is_plain:
            tokenizer.chat_template = PLAIN_TEMPLATE
        # The plain template writes no special token at the beginning, and some base models are lost without theirs.
        own_beginning = tuple(tokenizer("a")["input_ids"][:1])
        self._beginning = own_beginning if self.is_plain and own_beginning == (tokenizer.bos_token_id,) else ()
        self._takes_system = self._accepts([{"role": "system", "content": _PROBE}, {"role": "user", "content": "u"}])
        opening = self._render([{"role": "user", "content": "u"}])
        self.prefilled_think = opening.rstrip().endswith("<think>")
        self.reasons = "<think>" in str(tokenizer.chat_template) and not opening.rstrip().endswith("</think>")
        # Dropped from an answer's text wherever they stand. Other special tokens stay: some models write their
        # <think> tags as special tokens, and the verifier must see them.
        padding = {tokenizer.pad_token_id, tokenizer.bos_token_id}
        self._silent_ids = (end_ids | padding) - {None}

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the token ids of a conversation up to where the answer begins."""
        text = self._render(self._turns(messages))
        # The template of a model writes the special tokens itself.
        ids = self._beginning + tuple(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        if not ids:
            raise InvalidSetting(
                f"The model's chat template makes no token at all of a conversation of {len(messages)} turns. "
                "Check Chat template options, or choose an instruction-tuned model.",
                field="prompt.template_options",
            )
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer's tokens, end and padding tokens left out."""
        kept = [token for token in token_ids if token not in self._silent_ids]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _turns(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages, a system message moved into the first user turn for templates that refuse it."""
        if self._takes_system or messages[0]["role"] != "system":
            return list(messages)
        system, first, *rest = messages
        return [{"role": "user", "content": f"{system['content']}\n\n{first['content']}"}, *rest]

    def _render(self, messages: Sequence[Message]) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **self._options
            )
        except Exception as error:  # a template is a program, and fails in any way that programs do
            raise InvalidSetting(
                f"The model's chat template failed on a conversation of {len(messages)} turns "
                f"({type(error).__name__}). Check Chat template options, or choose an instruction-tuned model.",
                field="prompt.template_options",
            ) from error
        return str(text)

    def _accepts(self, messages: Sequence[Message]) -> bool:
        try:
            return messages[0]["content"] in self._render(messages)
        except InvalidSetting:
            return False  # it refuses the message
