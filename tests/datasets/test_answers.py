"""Token ids of given answers: what the model would have to write after the prompt, and the token that ends it."""

import pytest

from ratchet.datasets.encoder import PLAIN_TEMPLATE, own_first
from ratchet.datasets.tokens import open_encoder
from ratchet.models.model_files import find

from .test_tokens import byte_level, folder_of

USER = {"role": "user", "content": "2 + 5"}
# As Gemma's: the turn ends with a token of its own, which the generation configuration names and the tokenizer does not.
TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENS_THINK = TURNS.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")


def encoder_of(path, template, **config):
    return open_encoder(
        find(str(folder_of(path, byte_level(), template, {"model_type": "llama", **config}))), "main", {}
    )


def ids(text):
    return tuple(byte_level().encode(text, add_special_tokens=False).ids)


def test_the_tiny_models_answer_worked_by_hand():
    encoder = open_encoder(find("tiny"), "main", {})
    prompt, answer = encoder.encode([USER]), encoder.encode_answer([USER], "2 + 5 = 7")
    token = {text: byte for byte, text in enumerate(["<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"])}
    assert (prompt[0], *prompt[-2:]) == (token["<|user|>"], token["<|end|>"], token["<|assistant|>"])
    # The answer's own tokens and the one that ends it: 2, " +", " 5", " ", "=", " 7", <|end|>.
    assert len(answer) == 7
    assert answer[:3] == prompt[1:4]
    assert answer[-1] == token["<|end|>"]
    assert set(answer[:-1]).isdisjoint(token.values())


def test_what_follows_the_token_that_ends_the_turn_is_no_part_of_the_answer(tmp_path):
    encoder = encoder_of(tmp_path / "model", TURNS, eos_token_id=byte_level().token_to_id("<|im_end|>"))
    assert encoder.encode_answer([USER], " 7 ") == ids("7<|im_end|>")


def test_the_template_is_trained_as_it_ends_a_turn_and_not_as_the_tokenizer_ends_a_text(tmp_path):
    end = byte_level().token_to_id("<|im_end|>")
    assert encoder_of(tmp_path / "model", TURNS, eos_token_id=[end]).encode_answer([USER], "7")[-1] == end
    # Nothing says that <|im_end|> ends an answer: the tokenizer's own token does.
    assert encoder_of(tmp_path / "bare", TURNS).encode_answer([USER], "7") == ids("7</s>")


def test_a_model_without_a_template_answers_as_the_plain_one_shows(tmp_path):
    assert "{{ message.content }}{{ eos_token }}" in PLAIN_TEMPLATE
    assert encoder_of(tmp_path / "model", None).encode_answer([USER], "7") == ids(" 7</s>")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("7", "</think>\n\n7</s>"), ("<think>2 + 5</think>7", "2 + 5</think>7</s>")],
    ids=["without reasoning", "with reasoning"],
)
def test_reasoning_that_the_template_opens_is_opened_once_and_closed(answer, expected, tmp_path):
    assert encoder_of(tmp_path / "model", OPENS_THINK).encode_answer([USER], answer) == ids(expected)


def test_a_template_that_writes_an_empty_reasoning_before_answers_has_it_in_the_answer(tmp_path):
    template = TURNS.replace("\n{{ m.content", "\n{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content")
    end = byte_level().token_to_id("<|im_end|>")
    encoder = encoder_of(tmp_path / "model", template, eos_token_id=end)
    assert encoder.encode_answer([USER], "7") == ids("<think></think>7<|im_end|>")


def test_a_prompt_with_its_answer_is_what_the_template_writes_of_the_conversation(tmp_path):
    end = byte_level().token_to_id("<|im_end|>")
    encoder = encoder_of(tmp_path / "model", TURNS, eos_token_id=end)
    earlier = [USER, {"role": "assistant", "content": "7"}, {"role": "user", "content": "12 * 4"}]
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in earlier)
    whole = ids(f"{text}<|im_start|>assistant\n48<|im_end|>")
    assert encoder.encode(earlier) + encoder.encode_answer(earlier, "48") == whole


def test_the_tokenizers_own_end_comes_first():
    assert own_first(7, {9, 7, 3}) == (7, 3, 9)
    assert own_first(None, frozenset({9, 3})) == (3, 9)
