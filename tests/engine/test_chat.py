"""The chat template in its varieties: none, no system role, an opened <think>; and what is left of an answer's tokens."""

import pytest
from tokenizers.processors import TemplateProcessing

from ratchet.engine.chat import Chat
from ratchet.errors import InvalidSetting

from .models import BOS, EOS, PAD, TURN, UNKNOWN, character_tokenizer

SYSTEM = {"role": "system", "content": "be terse"}
USER = {"role": "user", "content": "2+2"}
ASSISTANT = {"role": "assistant", "content": "4"}
TURNS = "{% for m in messages %}|{{ m.role }}: {{ m.content }}{% endfor %}"
OPEN = "{% if add_generation_prompt %}|assistant: {% endif %}"


def chat_of(template, end_ids=(EOS,), options=None, **tokenizer):
    own = character_tokenizer(**tokenizer)
    own.chat_template = template
    return Chat(own, frozenset(end_ids), options or {})


def text_of(chat, *messages):
    return chat.tokenizer.decode(chat.encode(messages))


def test_a_template_is_used_as_it_is_up_to_where_the_answer_begins():
    chat = chat_of(TURNS + OPEN)
    assert not chat.is_plain
    assert text_of(chat, SYSTEM, USER, ASSISTANT, USER) == (
        "|system: be terse|user: 2+2|assistant: 4|user: 2+2|assistant: "
    )


def test_special_tokens_are_those_of_the_template_alone():
    chat = chat_of("<bos>" + TURNS + "<turn>")
    ids = chat.encode([USER])
    assert (ids[0], ids[-1]) == (BOS, TURN)
    assert ids.count(BOS) == 1


def test_without_a_template_turns_are_marked_by_plain_words():
    chat = chat_of(None)
    assert chat.is_plain
    assert text_of(chat, SYSTEM, USER, ASSISTANT, USER) == (
        "be terse\n\nQuestion: 2+2\nAnswer: 4<eos>\n\nQuestion: 2+2\nAnswer:"
    )
    assert not chat.prefilled_think


def test_without_a_template_a_beginning_is_written_if_the_tokenizer_writes_one():
    # As for base models of Llama and Gemma, which are lost without it.
    tokenizer = character_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    ids = Chat(tokenizer, frozenset({EOS}), {}).encode([USER])
    assert ids[0] == BOS
    assert ids.count(BOS) == 1
    assert ids[1:] == chat_of(None).encode([USER])


def test_a_template_writes_the_beginning_itself_even_if_the_tokenizer_would():
    tokenizer = character_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    tokenizer.chat_template = "<bos>" + TURNS
    assert Chat(tokenizer, frozenset({EOS}), {}).encode([USER]).count(BOS) == 1


def test_a_template_that_refuses_the_system_role_finds_it_in_the_first_user_turn():
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TURNS + OPEN
    assert text_of(chat_of(refusing), SYSTEM, USER, ASSISTANT, USER) == (
        "|user: be terse\n\n2+2|assistant: 4|user: 2+2|assistant: "
    )
    assert text_of(chat_of(refusing), USER) == "|user: 2+2|assistant: "


def test_a_template_that_silently_drops_the_system_message_is_found_out():
    dropping = "{% for m in messages if m.role != 'system' %}|{{ m.role }}: {{ m.content }}{% endfor %}" + OPEN
    assert text_of(chat_of(dropping), SYSTEM, USER) == "|user: be terse\n\n2+2|assistant: "


def test_the_messages_given_are_not_changed():
    messages = [dict(SYSTEM), dict(USER)]
    chat_of("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + TURNS).encode(messages)
    assert messages == [SYSTEM, USER]


@pytest.mark.parametrize(
    ("opening", "is_prefilled"),
    [("<think>", True), ("<think>\n", True), ("<think>\n\n</think>\n\n", False), ("", False)],
)
def test_a_template_that_opens_think_is_recognised(opening, is_prefilled):
    template = TURNS + "{% if add_generation_prompt %}|assistant: " + opening + "{% endif %}"
    assert chat_of(template).prefilled_think == is_prefilled


THINKING = (
    TURNS
    + "{% if add_generation_prompt %}|{% if enable_thinking is false %}<think></think>{% else %}<think>{% endif %}{% endif %}"
)


def test_template_options_reach_the_template():
    assert chat_of(THINKING).prefilled_think
    off = chat_of(THINKING, options={"enable_thinking": False})
    assert not off.prefilled_think
    assert text_of(off, USER) == "|user: 2+2|<think></think>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('never') }}",
        "{{ nothing.at.all }}",
        "{% for",
        "{{ messages + 1 }}",
        "{{ 1 // 0 }}",
        "{{ 2.0 ** 9999 }}",
    ],
)
def test_a_template_that_always_fails_is_a_setting_to_check(template):
    with pytest.raises(InvalidSetting, match="chat template failed on a conversation of 1 turns") as caught:
        chat_of(template)
    assert caught.value.field == "prompt.template_options"


def test_an_error_names_no_text_of_a_conversation():
    picky = "{% if 'secret' in messages[-1].content %}{{ raise_exception(messages[-1].content) }}{% endif %}" + TURNS
    with pytest.raises(InvalidSetting) as caught:
        chat_of(picky).encode([{"role": "user", "content": "secret"}])
    assert "secret" not in str(caught.value)


def test_end_padding_and_beginning_are_no_text_wherever_they_stand():
    chat = chat_of(TURNS, end_ids=(EOS, TURN))
    a, b = chat.tokenizer("ab", add_special_tokens=False)["input_ids"]
    assert chat.decode([BOS, a, PAD, b, TURN, EOS, a]) == "aba"


def test_other_special_tokens_stay_since_verifiers_read_them():
    chat = chat_of(TURNS, end_ids=(EOS,))
    a = chat.tokenizer("a", add_special_tokens=False)["input_ids"][0]
    assert chat.decode([TURN, a, UNKNOWN]) == "<turn>a<unk>"


@pytest.mark.parametrize("pad", [None, "<eos>"])
def test_padding_that_is_missing_or_the_end_token_is_no_trouble(pad):
    chat = chat_of(TURNS, pad_token=pad)
    a = chat.tokenizer("a", add_special_tokens=False)["input_ids"][0]
    assert chat.decode([a, EOS]) == "a"


def test_spaces_of_an_answer_are_left_alone():
    chat = chat_of(TURNS, clean_up_tokenization_spaces=True)
    text = "a , b . c 's\n d"
    assert chat.decode(chat.tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_no_tokens_are_no_text():
    assert chat_of(TURNS).decode([]) == ""


def test_a_template_that_writes_nothing_is_refused_since_no_answer_can_follow_nothing():
    with pytest.raises(InvalidSetting, match="no token at all") as caught:
        chat_of("{# nothing #}").encode([{"role": "user", "content": "2+2"}])
    assert caught.value.field == "prompt.template_options"
