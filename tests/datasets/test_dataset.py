"""conversation and worked_examples: what the model is given around a row's own text."""

import pytest

from ratchet.config import PromptSettings, WorkedExample
from ratchet.datasets import Dataset, conversation, few_shot_examples
from ratchet.errors import InvalidSetting
from ratchet.run.records import Prompt

EXAMPLES = tuple(WorkedExample(user=f"q{number}", assistant=f"a{number}") for number in (1, 2, 3))


def turn(role, content):
    return {"role": role, "content": content}


def prompt(*messages):
    return Prompt(id=1, messages=messages, ground_truth="1")


def dataset(examples=EXAMPLES):
    return Dataset(train=(), validation=(), heldout=(), instruction="", examples=examples, notes=())


def test_system_prompt_then_examples_then_the_row():
    row = prompt(turn("user", "x"), turn("assistant", "y"), turn("user", "z"))
    assert conversation(row, system_prompt="be brief", examples=EXAMPLES[:1]) == (
        turn("system", "be brief"),
        turn("user", "q1"),
        turn("assistant", "a1"),
        *row.messages,
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ("ours", "theirs", [turn("system", "ours\n\ntheirs")]),
        ("", "theirs", [turn("system", "theirs")]),
        ("ours", None, [turn("system", "ours")]),
        ("", None, []),
    ],
)
def test_the_rows_own_system_message_follows_ours(ours, theirs, expected):
    own = [] if theirs is None else [turn("system", theirs)]
    assert list(conversation(prompt(*own, turn("user", "x")), system_prompt=ours, examples=())) == [
        *expected,
        turn("user", "x"),
    ]


def test_a_number_takes_the_first_examples_of_the_source():
    assert few_shot_examples(PromptSettings(few_shot_examples=2), dataset()) == EXAMPLES[:2]
    assert few_shot_examples(PromptSettings(), dataset()) == ()


def test_the_users_own_examples_are_taken_as_they_are():
    own = (WorkedExample(user="mine", assistant="too"),)
    assert few_shot_examples(PromptSettings(few_shot_examples=own), dataset(())) == own


@pytest.mark.parametrize(("examples", "words"), [(EXAMPLES, "only 3. Choose 3 or less"), ((), "none. Choose 0")])
def test_more_examples_than_the_source_brings_are_refused_with_the_count(examples, words):
    with pytest.raises(InvalidSetting, match=words) as refused:
        few_shot_examples(PromptSettings(few_shot_examples=4), dataset(examples))
    assert refused.value.field == "prompt.few_shot_examples"
