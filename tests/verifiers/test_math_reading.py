"""Where the expression in an answer is found, without looking into it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.verifiers.exact_number import read_exact
from ratchet.verifiers.math_reading import last_expression, read_answer, read_ground_truth


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("The answer is 42.", "42"),
        ("The answer is **42**.", "42"),
        ("x = 5", "5"),
        ("60 + 13 = 73", "73"),
        ("10-3", "10-3"),
        ("is -5", "-5"),
        ("COVID-19", "19"),
        ("- 73 apples", "73"),
        ("so 3/4 of it", "3/4"),
        ("2 1/2", "2 1/2"),
        ("I have a 5", "5"),
        ("x + 2", "x + 2"),
        ("2x.", "2x"),
        ("12 cm^2", "12"),
        ("73 km/h", "73"),
        ("(1, 2)", "(1, 2)"),
        ("on [1,2).", "[1,2)"),
        ("the values are 1, 2", "2"),
        ("1,234", "1,234"),
        ("3 million people", r"3\text{ million}"),
        (r"x is \frac{1}{2}.", r"\frac{1}{2}"),
        (r"She pays \$73.", r"\$73"),
        ("It costs $18.90 and $7", "7"),
        ("We get $7$ after $2$ rounds.", "2"),
        ("We get $7$ after 2 rounds.", "2"),
        ("$ x = 5 $", "x = 5"),
        ("$1$ and $2$", "1, 2"),
        ("$a$, $b$, or $c$", "a, b, c"),
        ("First $3$, then $4$", "4"),
        (r"\(7\).", "7"),
        (r"\[ 60 + 13 = 73 \]", "60 + 13 = 73"),
        ("$$x$$", "x"),
        ("f(2) = 5", "5"),
        ("√2", r"\sqrt{2}"),
        ("3√(x+1)", r"3\sqrt{x+1}"),
        ("10²", "10^{2}"),
        ("5 \N{MULTIPLICATION SIGN} 10⁻³", "5 \N{MULTIPLICATION SIGN} 10^{-3}"),
        ("5x²", "5x^{2}"),
        ("5x²y", "5x^{2}y"),
        ("2π", r"2\pi"),
        ("½", r"\frac{1}{2}"),
        ("12½ cups", r"\frac{25}{2}"),
        ("1+2½", r"1+\frac{5}{2}"),
        ("12 m²", "12"),
        ("5 Äpfel für 73€", "73"),
        ("73°C", "73"),
        ("<b>73</b>", "73"),
        ("<<60+13=73>>73", "73"),
        ("so => 73", "73"),
        ("5 -> 73", "73"),
        ("x ≈ 5.2", "5.2"),
        ("3 dozen", r"3\text{ dozen}"),
    ],
)
def test_the_last_expression_is_found(text, expression):
    assert last_expression(text) == expression


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none at all",
        "sqrt(2)",
        "2pi",
        "pi/2",
        "3 alpha + 2",
        "log 5",
        "5 + sqrt(2)",
        "∛8",
        "³√8",
        "√2x",
        "√ 2",
        "2ⁿ",
        "101₂",
        "log₂ 8",
        "12 xθ",
        "x₂ + 5",
        "5\N{GREEK SMALL LETTER ALPHA}",
        "12θ",
        "12 θ",
        "5∞",
        "1\N{FRACTION SLASH}2",
        "5‰",
        "0.3̅",
        "1,200 ½",
        "x ≥ 5",
        "3 ≤ x ≤ 5",
        "x > 5",
        "x < 5",
        "5 < x",
        "x >= 5",
        "x != 5",
        "x ≠ 5",
        "±5",
        "x ∈ 5",
    ],
)
def test_an_expression_that_cannot_be_read_whole_is_not_read_in_part(text):
    assert last_expression(text) is None


@pytest.mark.parametrize(
    ("text", "require_boxed", "expressions"),
    [
        (r"$5$ \boxed{7} 8", False, ("7",)),
        (r"\boxed{7} \boxed{ 7 } \boxed{8}", False, ("7", "8")),
        (r"Put it in \boxed{}: \boxed{7}", False, ("7",)),
        (r"\boxed{}", False, ()),
        (r"7 \boxed{8", False, ()),
        ("$7$", True, ()),
        ("$7$", False, ("7",)),
        (r"\boxed{" + "1" * 2_001 + "}", False, ()),
        ("".join(rf"\boxed{{{n}}}" for n in range(17)), False, ()),
    ],
)
def test_boxes_come_before_everything_else(text, require_boxed, expressions):
    assert read_answer(text, require_boxed=require_boxed) == expressions


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("42", "42"),
        (r"$\frac12$", r"\frac12"),
        (r"\(x\)", "x"),
        (r"so \boxed{5}", "5"),
        ("The answer is $5$.", "5"),
        (r"x \in (1,2)", r"x \in (1,2)"),
        ("no solution", "no solution"),
        ("", None),
        ("1" * 2_001, None),
    ],
)
def test_a_reference_is_read_whole(text, expression):
    assert read_ground_truth(text) == expression


@pytest.mark.parametrize(
    ("latex", "value"),
    [
        ("1,234.5", "2469/2"),
        ("12 345", "12345"),
        ("1 2/3", "5/3"),
        ("-3/4", "-3/4"),
        (r"\frac{-1}{2}", "-1/2"),
        (r"\frac12", "1/2"),
        (r"2\frac{1}{2}", "5/2"),
        ("2 1/2", "5/2"),
        (r"0.1\overline{6}", "1/6"),
        (r"1.5 \times 10^{-3}", "3/2000"),
        ("1e3", "1000"),
        (".5", "1/2"),
    ],
)
def test_plain_numbers_are_read_exactly(latex, value):
    assert str(read_exact(latex).value) == value


@pytest.mark.parametrize(
    "latex", ["", "x", "1+1", "5 6", "10^5", "1,2", "3.1.4", r"\frac{1}{0}", "1/0", "9" * 401, "."]
)
def test_anything_else_is_no_plain_number(latex):
    assert read_exact(latex) is None


@given(st.text(st.sampled_from("$\\()[]{}boxedfrac,.+-/^ 12xk%\n")))
def test_any_text_can_be_searched(text):
    read_answer(text, require_boxed=False)
    read_ground_truth(text)
    read_exact(text)


PIECES = [
    "(",
    "$",
    "$a$,",
    "1 ",
    "x+",
    ". ",
    r"\boxed{",
    r"\text{",
    r"\(",
    "1,",
    "\\",
    "^2",
    "a1 ",
    "- ",
    "3 cm ",
    "$1 ",
    "√(",
    "√1",
    "1²",
    "²",
    "5½",
    "<b",
    "> 5",
]


@pytest.mark.parametrize("piece", PIECES)
def test_a_hundred_kilobytes_are_searched_at_once(piece):
    text = piece * (100_000 // len(piece))
    started = time.perf_counter()
    read_answer(text, require_boxed=False)
    assert time.perf_counter() - started < 20
