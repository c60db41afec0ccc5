"""The last number of a text: what counts as one, how it is written, and what it costs to find."""

import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.config import FinalNumberVerifier
from ratchet.run.records import Prompt
from ratchet.verifiers import make_verifier
from ratchet.verifiers.final_number import last_number


def prompt(ground_truth):
    return Prompt(id=1, messages=({"role": "user", "content": "?"},), ground_truth=ground_truth)


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        ("so 73.", "73", "73"),
        ("1,234,567.50", "1234567.50", "1,234,567.50"),
        (r"1{,}234 and 10,\!080", "10080", r"10,\!080"),
        (r"5\,000 km", "5000", r"5\,000"),
        ("1,2,3", "3", "3"),
        ("12,34", "34", "34"),
        ("1,234,5", "5", "5"),
        ("0,123", "123", "123"),
        ("-73", "-73", "-73"),
        ("\N{MINUS SIGN}73", "-73", "\N{MINUS SIGN}73"),
        ("+73", "73", "+73"),
        ("x=-73", "-73", "-73"),
        ("x = - 73", "-73", "73"),
        ("- 73 apples", "73", "73"),
        ("10-3", "3", "3"),
        ("(10)-3", "3", "3"),
        ("COVID-19", "19", "19"),
        ("**-5**", "-5", "-5"),
        (r"-\$73", "-73", "73"),
        ("-$1,000", "-1000", "1,000"),
        (".5", "0.5", ".5"),
        ("-.5", "-0.5", "-.5"),
        ("No.5", "5", "5"),
        ("2.5e-3", "0.0025", "2.5e-3"),
        ("1E3", "1000", "1E3"),
        ("73euros", "73", "73"),
        ("73km/h", "73", "73"),
        ("__73__ and _74_", "74", "74"),
        ("3/4", "4", "4"),
        ("9**9**9", "9", "9"),
        ("2024-05-06", "6", "06"),
        ("73\u00a0000", "73000", "73\u00a0000"),
        ("12\u202f345\u202f678.5", "12345678.5", "12\u202f345\u202f678.5"),
        ("72\u00a073", "73", "73"),
        ("73\u00a0km", "73", "73"),
        ("273 K", "273", "273"),
        ("73kids", "73", "73"),
        ("12 m²", "12", "12"),
        ("7 thousand, so 7000", "7000", "7000"),
    ],
)
def test_the_last_number_is_found(text, value, written):
    assert last_number(text) == (Decimal(value), written)


@pytest.mark.parametrize(
    "text", ["", "none", "x2", "H2O", "3.1.4", "192.168.0.1", "x_2", "x_{2}", "abc_12", "12\N{SUPERSCRIPT TWO}"[2:]]
)
def test_names_indices_and_versions_hold_no_number(text):
    assert last_number(text) is None


@pytest.mark.parametrize(
    "written",
    [
        "73²",
        "73₈",
        "73⁻¹",
        "√73",
        "√(73)",
        "∛73",
        "73½",
        "73 ½",
        "73k",
        "73K",
        "73 k",
        "73 million",
        "73 Billions",
        "73 thousand",
        "73-hundred",
        "73 hundredths",
        "73 dozen",
        "**73** million",
        r"$73\text{ million}$",
    ],
)
def test_a_number_that_is_part_of_a_larger_one_is_not_read(written):
    assert last_number(f"72, then {written}").value is None
    assert last_number(f"{written} or rather 74").value == 74


def test_too_many_digits_end_the_search_unread():
    assert last_number("73 and " + "9" * 41).value is None
    assert last_number("73 and 1e99999").value is None
    assert last_number("9" * 40).value == Decimal("9" * 40)


@pytest.mark.parametrize(
    ("ground_truth", "problem"),
    [
        ("seventy", "no number"),
        ("", "no number"),
        ("9" * 41, "40 digits"),
        ("3/4", "expression"),
        (r"\frac{3}{4}", "expression"),
        ("1, 2", "expression"),
        ("73 million", "larger number"),
        ("73", None),
        ("1,234", None),
        ("$18.90", None),
        ("60 + 13 = 73\n#### 73", None),
        ("She has 60 and buys 13, so 73.", None),
    ],
)
def test_a_reference_must_be_one_number(ground_truth, problem):
    said = make_verifier(FinalNumberVerifier()).check_ground_truth(prompt(ground_truth))
    assert (problem in said) if problem else said is None


def test_what_is_said_of_a_reference_does_not_repeat_it():
    assert "12321" not in make_verifier(FinalNumberVerifier()).check_ground_truth(prompt("12321/12321"))


@given(st.text(), st.text())
def test_any_text_gets_a_grade(text, ground_truth):
    grade = make_verifier(FinalNumberVerifier()).grade(text, prompt(ground_truth))
    assert grade.outcome in ("graded", "unparseable")
    assert grade.correctness in (0.0, 1.0)


@given(st.text(st.sampled_from("0123456789.,-+eE_{}\\!$= x\N{MINUS SIGN}")))
def test_any_text_of_digits_and_signs_gets_a_grade(text):
    make_verifier(FinalNumberVerifier()).grade(text, prompt("1"))


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=3))
def test_every_written_number_is_read_back(number):
    for text in (f"so {number}", f"**{number:,}**", rf"\boxed{{{number}}}", f"the answer is {number}."):
        assert last_number(text).value == number


@pytest.mark.parametrize(
    "piece", ["7", "7,", "1,234", "-", "7.", ".", "{,}", "1e", "= ", "$-", "_7", "x7", "1e9,", "7\u00a0", "√(", "²"]
)
def test_a_hundred_kilobytes_are_read_at_once(piece):
    text = piece * (100_000 // len(piece))
    started = time.perf_counter()
    last_number(text)
    assert time.perf_counter() - started < 20
