"""Which part of an answer is read, and the boxes in it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.verifiers.reading import part_to_read, read_boxes

THOUGHT = "<think>6</think> so <answer>7</answer> it is"


@pytest.mark.parametrize(
    ("read", "prefer_answer_tag", "part"),
    [
        (None, False, THOUGHT),
        ("whole", False, THOUGHT),
        ("whole", True, "7"),
        ("after_reasoning", False, " so <answer>7</answer> it is"),
        ("after_reasoning", True, "7"),
        ("answer_tag", False, "7"),
    ],
)
def test_the_asked_for_part_is_read(read, prefer_answer_tag, part):
    assert part_to_read(THOUGHT, read, prefer_answer_tag=prefer_answer_tag) == part


@pytest.mark.parametrize("text", ["7", "", "<answer>7", "7</answer>", "</answer>7<answer>", "<answer>7</answer>" * 2])
def test_without_exactly_one_answer_tag_there_is_none(text):
    assert part_to_read(text, "answer_tag") is None
    assert part_to_read(text, "whole", prefer_answer_tag=True) == text


def test_reasoning_that_is_never_closed_leaves_nothing_to_read():
    assert part_to_read("<think>7", "after_reasoning") is None


def test_the_last_end_of_reasoning_counts():
    assert part_to_read("<think>1</think>2</think>3", "after_reasoning") == "3"


@pytest.mark.parametrize(
    ("text", "contents", "is_balanced"),
    [
        (r"\boxed{7}", ("7",), True),
        (r"\boxed {7} and \boxed{8}", ("7", "8"), True),
        (r"\boxed{\frac{1}{\sqrt{2}}}", (r"\frac{1}{\sqrt{2}}",), True),
        (r"\boxed{\{1, 2\}}", (r"\{1, 2\}",), True),
        (r"\boxed{a \\ b}", (r"a \\ b",), True),
        (r"\boxed{\boxed{7}}", (r"\boxed{7}",), True),
        (r"\boxed{}", ("",), True),
        (r"\boxed{7} \boxed{8", ("7",), False),
        (r"\boxed{\frac{1}{2}", (), False),
        (r"\boxed{7\}", (), False),
        (r"\fbox{7} boxed{7} \boxed 7", (), True),
    ],
)
def test_boxes_are_read_with_their_braces_balanced(text, contents, is_balanced):
    assert read_boxes(text) == (contents, is_balanced)


@given(st.text(st.sampled_from("\\boxed{}<answer>/think> 7")))
def test_any_text_can_be_read(text):
    read_boxes(text)
    for read in ("whole", "after_reasoning", "answer_tag"):
        part_to_read(text, read, prefer_answer_tag=True)


@pytest.mark.parametrize("piece", [r"\boxed{", r"\boxed{1} ", "{", "}", "\\", "<answer>", "</think>"])
def test_a_hundred_kilobytes_are_read_at_once(piece):
    text = r"\boxed{" + piece * (100_000 // len(piece))
    started = time.perf_counter()
    read_boxes(text)
    part_to_read(text, "after_reasoning", prefer_answer_tag=True)
    assert time.perf_counter() - started < 10
