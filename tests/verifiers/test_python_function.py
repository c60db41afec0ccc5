"""The user's own function: what it may be, what it may return, and what becomes of it when it breaks."""

import functools
import math
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from ratchet.config import PythonVerifier
from ratchet.errors import InvalidSetting
from ratchet.run.records import Grade, Prompt
from ratchet.verifiers import identity, make_verifier

PROMPT = Prompt(id=3, messages=({"role": "user", "content": "?"},), ground_truth="7", extras={"limit": 2})


def exact(answer, ground_truth):
    return float(answer.strip() == ground_truth)


def grade(function, text="7", **settings):
    return make_verifier(PythonVerifier(**settings), function=function).grade(text, PROMPT)


@pytest.mark.parametrize(
    ("returned", "correctness"),
    [
        (1.0, 1.0),
        (0, 0.0),
        (0.25, 0.25),
        (True, 1.0),
        (False, 0.0),
        (np.float32(0.5), 0.5),
        (np.True_, 1.0),
        (np.array(0.5), 0.5),
        (Fraction(1, 2), 0.5),
        (Decimal("0.5"), 0.5),
    ],
)
def test_a_number_in_range_is_the_grade(returned, correctness):
    assert grade(lambda answer, ground_truth: returned) == Grade(correctness, "graded")


@pytest.mark.parametrize(
    "returned",
    [
        None,
        math.nan,
        math.inf,
        -math.inf,
        "1.0",
        b"1",
        [1.0],
        (1.0,),
        {},
        1.0001,
        -0.1,
        10**400,
        1j,
        np.array([1.0]),
        Grade(math.nan, "graded"),
        Grade(1.0, "unparseable"),
        Grade(0.0, "cut_off"),
        Grade(2.0, "graded"),
        Grade(1.0, "graded", parts={"f1": math.inf}),
        Grade(1.0, "graded", parts={"f1": np.array([1.0])}),
        Grade(1.0, "graded", parts={1: 1.0}),
        Grade(1.0, "graded", parts=None),
        Grade(None, "graded"),
        Grade(0.5, "failed", failure="time"),
    ],
    ids=repr,
)
def test_anything_else_is_a_failed_answer(returned):
    assert grade(lambda answer, ground_truth: returned) == Grade(0.0, "failed", failure="result")


def test_a_grade_of_its_own_is_kept():
    own = Grade(0.5, "graded", parts={"f1": 0.25})
    assert grade(lambda answer, ground_truth: own) == own


def test_a_grade_of_its_own_becomes_plain_floats():
    own = Grade(np.float32(0.5), "graded", parts={"f1": np.float64(0.25), "exact": np.True_})
    kept = grade(lambda answer, ground_truth: own)
    assert kept == Grade(0.5, "graded", parts={"f1": 0.25, "exact": 1.0})
    assert {type(number) for number in (kept.correctness, *kept.parts.values())} == {float}


@pytest.mark.parametrize("kind", ["load", "execution", "result", "time", "memory", "output"])
def test_a_known_kind_of_failure_is_kept(kind):
    own = Grade(0.0, "failed", failure=kind)
    assert grade(lambda answer, ground_truth: own) == own


@pytest.mark.parametrize("failure", ["the answer was 7", "", None, ["time"], np.array(["time", "time"])])
def test_any_other_text_of_a_failure_is_not_passed_on(failure):
    assert grade(lambda answer, ground_truth: Grade(0.0, "failed", failure=failure)) == Grade(
        0.0, "failed", failure="execution"
    )


def test_a_grade_that_did_not_fail_names_no_failure():
    assert grade(lambda answer, ground_truth: Grade(1.0, "graded", failure="7")) == Grade(1.0, "graded")


@pytest.mark.parametrize("error", [ValueError, KeyError, RecursionError, MemoryError, SystemExit])
def test_a_function_that_raises_fails_the_answer_alone(error):
    def broken(answer, ground_truth):
        raise error("7")

    assert grade(broken) == Grade(0.0, "failed", failure="execution")


def test_ctrl_c_is_not_swallowed():
    def interrupted(answer, ground_truth):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade(interrupted)


def test_a_third_argument_is_the_prompt():
    assert grade(lambda answer, ground_truth, prompt: prompt.extras["limit"] / 4).correctness == 0.5


def test_an_optional_third_argument_keeps_its_default():
    assert grade(lambda answer, ground_truth, tolerance=0.5: tolerance).correctness == 0.5


def test_only_the_read_part_reaches_the_function():
    assert grade(exact, "6 <answer>7</answer>", read="answer_tag").correctness == 1.0
    assert grade(exact, "7", read="answer_tag") == Grade(0.0, "unparseable")


async def asynchronous(answer, ground_truth):
    return 1.0


@pytest.mark.parametrize(
    "function",
    [
        lambda: 1.0,
        lambda answer: 1.0,
        lambda a, b, c, d: 1.0,
        lambda answer, *, ground_truth: 1.0,
        asynchronous,
        7,
        functools.partial(exact, ground_truth="7"),
    ],
)
def test_what_cannot_be_called_with_two_or_three_arguments_is_refused(function):
    with pytest.raises(InvalidSetting) as caught:
        make_verifier(PythonVerifier(), function=function)
    assert caught.value.field == "verifier"


@pytest.mark.parametrize("function", [max, functools.partial(exact), type("Callable", (), {"__call__": exact})])
def test_odd_callables_are_refused_or_graded_but_never_raise(function):
    try:
        verifier = make_verifier(PythonVerifier(), function=function)
    except InvalidSetting:
        return
    assert verifier.grade("7", PROMPT).outcome in ("graded", "failed")


def test_the_identity_names_the_function_and_its_source():
    first, again = identity(exact), identity(exact)
    assert (first.module, first.name) == (exact.__module__, "exact")
    assert len(first.source_hash) == 64
    assert first == again == identity(functools.partial(exact))
    assert first != identity(asynchronous)


@pytest.mark.parametrize("function", [len, sys.intern, str.__eq__, "7".__eq__, eval("lambda a, b: 1.0")])
def test_a_function_without_source_has_an_empty_hash(function):
    assert identity(function).source_hash == ""
