"""The format bonus beyond the labelled cases: hostile texts and the user's own patterns."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.errors import InvalidSetting
from ratchet.verifiers import compile_pattern, earns_format


@pytest.mark.parametrize("pattern", ["(", "[a-", "*", "(?P<a>x)(?P<a", "a{2,1}"])
def test_an_invalid_pattern_is_refused_with_its_setting(pattern):
    with pytest.raises(InvalidSetting, match="not a regular expression") as caught:
        compile_pattern(pattern)
    assert caught.value.field == "reward.format_pattern"


@pytest.mark.parametrize("pattern", [r"(a|a)*b", r"(a+)+b", r"(.*)*b", r"(a*)*(a*)*(a*)*b"])
def test_a_pattern_that_backtracks_without_end_is_not_earned(pattern):
    started = time.perf_counter()
    assert not earns_format("a" * 5_000 + "c", "pattern", compile_pattern(pattern))
    assert time.perf_counter() - started < 20


def test_no_bonus_is_earned_where_it_is_off():
    assert not earns_format("<think>a</think><answer>7</answer>", "off")


def test_a_missing_pattern_is_our_fault_and_not_the_policys():
    with pytest.raises(ValueError, match="compiled pattern"):
        earns_format("x", "pattern")


def test_a_box_inside_a_box_is_not_one_box():
    assert not earns_format(r"\boxed{\boxed{7}}", "boxed")


PIECES = st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", " ", "\n", "7", "\\boxed{", "}"])


@given(st.lists(PIECES).map("".join))
def test_tags_are_earned_only_by_each_tag_once_in_order(text):
    if earns_format(text, "tags"):
        order = [text.index(tag) for tag in ("<think>", "</think>", "<answer>", "</answer>")]
        assert order == sorted(order)
        assert text.count("<think>") == text.count("<answer>") == 1
    assert earns_format(text, "tags", prefilled_think=True) == earns_format("<think>" + text, "tags")
    earns_format(text, "boxed")


@pytest.mark.parametrize("piece", ["<think>", " ", "<answer>", "</think> <answer>", "\n", r"\boxed{"])
def test_a_hundred_kilobytes_are_judged_at_once(piece):
    text = "<think>" + piece * (100_000 // len(piece))
    started = time.perf_counter()
    for kind in ("tags", "boxed"):
        assert not earns_format(text, kind)
    assert time.perf_counter() - started < 10
