"""From a conversation to the token ids that the model is given: the rules around a chat template, whoever renders it.

The engine renders and tokenizes with transformers, the checks before a run with ``tokens.py``; both do it through
``PromptEncoder``, so that they agree on everything else.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from ratchet.errors import InvalidSetting
from ratchet.run.records import Message

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
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}},
}


def own_first(own: int | None, end_ids: Collection[int]) -> tuple[int, ...]:
    """The ids that end an answer in a fixed order, the tokenizer's own before those of the model's settings."""
    return (*(() if own is None else (own,)), *sorted(set(end_ids) - {own}))


class PromptEncoder:
    """Encodes conversations for one model with one set of template options.

    Attributes:
        is_plain: The model brings no chat template, and the plain one is used.
        prefilled_think: The template already opens ``<think>`` for the answer.
        reasons: The template knows of ``<think>``, and has not already closed it for the answer.
        window: How many tokens the tokenizer's own settings allow, None where they set no limit.
        takes_tools: The template tells the model of the tools that it is given.
        unread_options: The names of template options that the template does not read.
    """

    def __init__(
        self,
        render: Callable[[list[Message], Sequence[Any] | None, bool], str],
        tokenize: Callable[[str], Sequence[int]],
        *,
        template: str | None,
        option_names: Sequence[str],
        beginning: tuple[int, ...],
        window: int | None,
        end_ids: Sequence[int] = (),
    ) -> None:
        """Try the template on conversations of ours.

        Args:
            render: Applies the chat template to messages and tools, up to where the answer begins if the third argument
                is true, else to the end of the last turn; may fail in any way.
            tokenize: Turns text into ids, adding no special tokens.
            template: The model's own template; None if it brings none, and ``render`` applies ``PLAIN_TEMPLATE``.
            option_names: The names of the template options that ``render`` passes on.
            beginning: The id that the tokenizer writes before a text by itself; written before plain prompts, whose
                template writes none, since some base models are lost without theirs.
            window: The tokenizer's own limit in tokens.
            end_ids: Every id that ends an answer, the tokenizer's own first.

        Raises:
            InvalidSetting: the template fails on a conversation of one turn.
        """
        self._apply, self._tokenize = render, tokenize
        self.is_plain = template is None
        self.window = window
        self.unread_options = tuple(name for name in option_names if name not in (template or ""))
        self._beginning = beginning if self.is_plain else ()
        self._end_ids = tuple(end_ids)
        self._takes_system = self._accepts([{"role": "system", "content": _PROBE}, {"role": "user", "content": "u"}])
        opening = self._render([{"role": "user", "content": "u"}])
        self.prefilled_think = opening.rstrip().endswith("<think>")
        self.takes_tools = self._shows_tools()
        self.reasons = "<think>" in (template or "") and not opening.rstrip().endswith("</think>")

    def encode(self, messages: Sequence[Message], tools: Sequence[Any] | None = None) -> tuple[int, ...]:
        """The token ids of a conversation up to where the answer begins.

        ``tools`` are the row's own, as the OpenAI API takes them; a template that knows no tools is given none.

        Raises:
            InvalidSetting: the template fails on it, or makes nothing of it.
        """
        # The template of a model writes the special tokens itself.
        ids = self._beginning + tuple(
            self._tokenize(self._render(self._turns(messages), tools if self.takes_tools else None))
        )
        if not ids:
            raise InvalidSetting(
                f"The model's chat template makes no token at all of a conversation of {len(messages)} turns. "
                "Check Chat template options, or choose an instruction-tuned model.",
                field="prompt.template_options",
            )
        return ids

    def encode_answer(self, messages: Sequence[Message], answer: str) -> tuple[int, ...]:
        """The token ids of an answer to a conversation, as the model would have to write them after ``encode``.

        What the template writes for the answer's turn, up to the token that ends it. Where the template writes the turn
        otherwise once it is there than where it is asked for, or never ends it, the answer stands as it is, with the
        tokenizer's own end token. There, reasoning that the template has opened is closed: by the answer's own
        ``</think>``, else at once.

        Raises:
            InvalidSetting: the template fails on it.
        """
        turns = self._turns(messages)
        asked = self._render(turns)
        whole = self._render([*turns, {"role": "assistant", "content": answer}], is_asked=False)
        if whole.startswith(asked):
            ids = tuple(self._tokenize(whole[len(asked) :]))
            ends = [place for place, token in enumerate(ids) if token in self._end_ids]
            if ends:
                return ids[: ends[-1] + 1]
        text = answer
        if self.prefilled_think:
            text = answer.removeprefix("<think>") if answer.startswith("<think>") else f"</think>\n\n{answer}"
        ids = tuple(self._tokenize(text))
        return ids + self._end_ids[:1]

    def _turns(self, messages: Sequence[Message]) -> list[Message]:
        """The messages, a system message moved into the first user turn for templates that refuse it."""
        if self._takes_system or messages[0]["role"] != "system":
            return list(messages)
        system, first, *rest = messages
        return [{"role": "user", "content": f"{system['content']}\n\n{first['content']}"}, *rest]

    def _render(self, messages: list[Message], tools: Sequence[Any] | None = None, *, is_asked: bool = True) -> str:
        try:
            return self._apply(messages, tools, is_asked)
        except Exception as error:  # a template is a program, and fails in any way that programs do
            raise InvalidSetting(
                f"The model's chat template failed on a conversation of {len(messages)} turns "
                f"({type(error).__name__}). Check Chat template options, or choose an instruction-tuned model.",
                field="prompt.template_options",
            ) from error

    def _accepts(self, messages: list[Message]) -> bool:
        try:
            return messages[0]["content"] in self._render(messages)
        except InvalidSetting:
            return False  # it refuses the message

    def _shows_tools(self) -> bool:
        try:
            return _PROBE in self._render([{"role": "user", "content": "u"}], [_PROBE_TOOL])
        except InvalidSetting:
            return False  # it refuses tools
