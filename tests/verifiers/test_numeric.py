"""Numbers: which texts are one, compared exactly and by the rule of math.isclose."""

import math
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.config import NumericVerifier
from ratchet.run.records import Prompt
from ratchet.verifiers import make_verifier
from ratchet.verifiers.numeric import read_number

MINUS = "\N{MINUS SIGN}"


def grade(text, truth, **settings):
    return make_verifier(NumericVerifier(**settings)).grade(text, Prompt(1, (), truth))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", Fraction(42)),
        (" -3.50\n", Fraction(-7, 2)),
        (f"{MINUS}3", Fraction(-3)),
        ("+.5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("007", Fraction(7)),
        ("6.02e23", Fraction(602 * 10**21)),
        ("1E-3", Fraction(1, 1000)),
        (f"1e{MINUS}3", Fraction(1, 1000)),
        ("1,234", Fraction(1234)),
        ("12,345,678.9", Fraction(123456789, 10)),
        ("1\u202f234", Fraction(1234)),
        ("-0", Fraction(0)),
        ("0e999999999", Fraction(0)),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_a_number_as_written_in_plain_text_is_read_exactly(text, value):
    assert read_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "-", "e5", ".", "1e", "1.2.3", "1,23", "12,34", "1234,567", "0,123", ",123", "1,234,", "1_000", "0x1F",
        "inf", "-Infinity", "nan", "1e400", "-1e400", "1.8e308", "1e999999999", "1e99999999999999999999", "5 km",
        "$5", "5%", "**5**", "5 6", "3/4", "- 5", "--5", "five", "x = 5", "1 234", "٣", "1e5.5", "1" * 1001,
    ],
)  # fmt: skip
def test_anything_else_is_unparseable(text):
    assert read_number(text) is None
    found = grade(text, "5")
    assert (found.outcome, found.correctness, found.parts) == ("unparseable", 0.0, {"numeric_accuracy": 0.0})


@pytest.mark.parametrize(
    ("text", "truth", "settings", "right"),
    [
        ("1.0", "1", {}, True),
        ("1.0000000000000000000001", "1", {}, False),  # equal as doubles
        ("9007199254740993", "9007199254740992", {}, False),  # 2**53 + 1, likewise
        ("1.3", "1", {"absolute_tolerance": 0.3}, True),  # as doubles the difference is 0.30000000000000004
        ("1.30001", "1", {"absolute_tolerance": 0.3}, False),
        ("-1", "1", {"absolute_tolerance": 2.0}, True),
        ("101", "100", {"relative_tolerance": 0.01}, True),  # 1 <= 0.01 * 101
        ("101.01", "100", {"relative_tolerance": 0.01}, True),  # 1.01 <= 0.01 * 101.01, the larger of the two
        ("99", "100", {"relative_tolerance": 0.01}, True),  # 1 <= 0.01 * 100
        ("98.99", "100", {"relative_tolerance": 0.01}, False),
        ("0.001", "0", {"relative_tolerance": 0.5}, False),  # nothing is relatively close to 0
        ("-5", "5", {"relative_tolerance": 2.0}, True),  # 10 <= 2 * 5
        ("1e-999999999", "0", {}, False),
        ("1e-999999999", "0", {"absolute_tolerance": 5e-324}, True),
        ("-1e-999999999", "1", {"relative_tolerance": 1.0}, False),  # just over 1
        ("1e-999999999", "1", {"relative_tolerance": 1.0}, True),  # just under 1
    ],
)
def test_the_tolerances_worked_by_hand(text, truth, settings, right):
    found = grade(text, truth, **settings)
    assert (found.outcome, found.correctness) == ("graded", float(right))
    assert found.parts == {"numeric_accuracy": float(right)}


SIXTEENTHS = st.integers(-4096, 4096).map(lambda n: n / 16)  # binary fractions: doubles are exact for them


@given(SIXTEENTHS, SIXTEENTHS, st.integers(0, 64).map(lambda n: n / 16), st.sampled_from([0.0, 0.125, 0.5, 1.0, 2.0]))
def test_the_rule_is_that_of_isclose(answered, expected, absolute, relative):
    found = grade(repr(answered), repr(expected), absolute_tolerance=absolute, relative_tolerance=relative)
    assert found.correctness == float(math.isclose(answered, expected, abs_tol=absolute, rel_tol=relative))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_double_is_read_as_it_is_printed(number):
    assert read_number(repr(number)) == Fraction(repr(number))
    assert float(read_number(repr(number))) == number


@pytest.mark.parametrize(
    "text", ["1e999999999", "1e-999999999", "0e-999999999", "9" * 1000, "0." + "0" * 990 + "1e1200"]
)
def test_no_number_takes_long(text):
    before = time.process_time()
    for _ in range(20):
        grade(text, "1", absolute_tolerance=0.1, relative_tolerance=0.1)
    assert time.process_time() - before < 1


@pytest.mark.parametrize(
    ("truth", "said"), [("1,234.5", None), ("5 km", "is not one finite number"), ("1e-500", "1e-400")]
)
def test_a_reference_must_be_one_number(truth, said):
    reason = make_verifier(NumericVerifier()).check_ground_truth(Prompt(1, (), truth))
    assert reason is None if said is None else said in reason
