"""What counts as equal: known false positives and false negatives of graders, and an oracle that computes otherwise."""

import random
from fractions import Fraction

import math_verify
import pytest
import sympy

from ratchet.verifiers.math_equality import are_equal, find, is_too_large
from ratchet.verifiers.math_expression import expression

EQUAL = [
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
    (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
    (r"\sqrt{2}\sqrt{3}", r"\sqrt{6}"),
    (r"2^{1/2}", r"\sqrt{2}"),
    (r"e^{i\pi}", "-1"),
    ("(1+i)^2", "2i"),
    (r"1+i", r"\sqrt{2}e^{i\pi/4}"),
    (r"\sin^2 x", r"1-\cos^2 x"),
    (r"\sinh x", r"\frac{e^x-e^{-x}}{2}"),
    (r"\sin(30^\circ)", r"\frac{1}{2}"),
    (r"90^\circ", "90"),
    (r"0.\overline{3}", r"\frac13"),
    (r"1.5 \times 10^3", "1500"),
    (r"3\text{ million}", "3000000"),
    ("0.1+0.2", "0.3"),
    ("0.5x", r"\frac{x}{2}"),
    (r"\frac{x^2-1}{x-1}", "x+1"),
    (r"\sum_{i=1}^{n} i", r"\frac{n(n+1)}{2}"),
    (r"\int_0^1 x dx", r"\frac12"),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"),
    ("2x+4y-3=0", r"y = \frac{3}{4} - \frac{x}{2}"),
    ("x^2/4+y^2/3=1", "3x^2+4y^2=12"),
    ("x=1", "2x+2=4"),
    ("5", "x = 5"),
    ("5", "5 = x"),
    ("6", "3+3=6"),
    ("x>3", r"(3,\infty)"),
    ("x>3", "3<x"),
    (r"\pm 2", "-2, 2"),
    ("1,2", "2,1"),
    ("(1,2)", "1,2"),
    (r"\left\{ 1, 2 \right\}", r"\{2, 1\}"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}"),
    (r"\text{no solution}", "No solution"),
    (r"\text{yes}", "yes"),
    ("A", r"\textbf{(A)}"),
    (r"5\text{ cm}", "5"),
    (r"5\,\mathrm{cm}^2", r"5 \text{ square centimeters}"),
    (r"12\text{ meters}", r"12\text{ m}"),
    ("9\\%", "9"),
    ("9\\%", "0.09"),
    ("101_2", "101"),
    ("12:30", "12:30"),
    (r"\unknown{3}", r"\unknown{3}"),
    ("2^{100000}", "4^{50000}"),
    ("9^{9^9}", "9^{9^9}"),
    (r"\sqrt(2)", r"\sqrt{2}"),
    (r"\text{13}", "13"),
    (r"10\,000", "10000"),
    ("10 000x", "10000x"),
    ("5/3", "1 2/3"),
    (r"3\text{ hundred thousand}", "300000"),
    (r"5\text{ cm^2}", r"5\text{ cm}^2"),
    (r"5\text{ cm²}", "5"),
    (r"5\text{ mph}", r"5\text{ miles per hour}"),
    (r"9.8\text{ m/s}^2", r"9.8\text{ meters per second squared}"),
    (r"12\text{ AM}", r"12\text{ a.m.}"),
    (r"5\text{ apples}", r"5\text{ apple}"),
    (r"5\text{ USD}", "5 dollars"),
    (r"7\text{ or }8", "8, 7"),
    (r"1-\frac{1}{\mathrm{e}}", r"1-\frac{1}{e}"),
    ("(1,2)", "1<x<2"),
    ("[1,2)", r"1 \le t < 2"),
    (r"(-\infty,2]", r"2 \ge x"),
    ("1, 2, 2", "2, 1, 2"),
    (r"\frac12, 0.5, 3", r"3, \frac{1}{2}, \frac{2}{4}"),
    (r"\sqrt{4}, \sqrt{4}", "2, 2"),
    (r"\{1, 2\}", r"\{1, 2, 2\}"),
]

UNEQUAL = [
    ("1, 2", "1, 2, 2"),
    ("1, 2, 2", "1, 2"),
    ("1, 2, 2", "1, 1, 2"),
    ("-2, 2, 2", r"\pm 2"),
    ("(1,2)", "1<x<3"),
    ("(1,2)", r"1 \le x<2"),
    ("(1,2)", "1<x<2<y"),
    (r"(-\infty,2)", "2x<4"),  # the inequality that was to be solved
    (r"\frac13", "0.333"),
    (r"\frac13", "0.333333333333"),
    (r"\frac13", r"33.333333\%"),
    (r"\sqrt{2}", "1.41421356237309"),
    (r"\pi", "3.14159265358979"),
    ("e", "2.718281828459045"),
    (r"\frac{1}{10000001}", r"\frac{1}{10000002}"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}"),
    (r"\sqrt{2}+10^{-16}", r"\sqrt{2}"),
    ("10^{100}", "10^{100}+1"),
    ("9^{9^9}", "9^{9^9}+1"),
    ("R-r", "0"),
    (r"\pi(R^2-r^2)", "0"),
    ("X+1", "x+1"),
    ("3t", "3"),
    ("2ab", "2"),
    ("5c", "5"),
    ("f(x)", "g(x)"),
    ("f(x)", "f(y)"),
    ("f'(x)=2x", "f(x)=2x"),
    ("A^T", "A"),
    ("x^2+1=0", "x^2+2=0"),
    ("x^2+y^2+1=0", "x^2+y^2+5=0"),
    ("e^x=0", "e^x=-1"),
    ("x=1", "2x+2=6"),
    ("x=5", "y=5"),
    ("5", "2+2=5"),
    ("6", "x=5=6"),
    ("x=1,y=2", "x=2,y=1"),
    (r"x \neq 2", r"x \neq 3"),
    ("12:00", "1:00"),
    (r"\frac{1}{0}", r"\frac{2}{0}"),
    (r"\{1,2\}", "(1,2)"),
    ("(1,2)", r"\{1,2\}"),
    ("[1,2]", "(1,2)"),
    ("(1,2)", "2,1"),
    ("1,2", "(2,1)"),
    ("(1,1,2)", "(1,2,2)"),
    (r"\pm 2021", "2021"),
    (r"5\text{ cm}", r"5\text{ km}"),
    ("3", r"3\text{ million}"),
    (r"12\text{ PM}", r"12\text{ AM}"),
    (r"3\text{ south}", r"3\text{ north}"),
    (r"5\text{ km/h}", r"5\text{ m/s}"),
    (r"5\text{ cm}^3", r"5\text{ cm}^2"),
    (r"5\text{ cubic cm}", r"5\text{ cm^2}"),
    (r"5\text{ euros}", r"5\text{ dollars}"),
    ("5 euros", "5 dollars"),
    ("7", r"7\text{ or }8"),
    ("56", "5 6"),
    ("30x", "5 6x"),
    ("12/3", "1 2/3"),
    ("1 2/3", "12/3"),
    ("11/2", "1 1/2"),
    ("101_2", "10 1_2"),
    ("101_2", "101_3"),
    ("101_2", "5"),
    ("101", "101_2"),
    (r"\cos 20^\circ", r"\cos 20"),
    (r"\text{east}", r"\text{seat}"),
    (r"\text{yes}", r"\text{no}"),
    (r"\mathbb{R}", r"\mathbb{Z}"),
    ("x_1", "x_2"),
    (r"\sqrt{x^2}", "x"),
    (r"\ln|x|", r"\ln x"),
    ("x^2+C", "x^2"),
    (r"x^{2}y", "x^{2y}"),
    ("5!", "5"),
    ("a+bi", "a-bi"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal_expressions_are_found_equal(gold, answer):
    assert are_equal(expression(gold), expression(answer))


@pytest.mark.parametrize(("gold", "answer"), UNEQUAL)
def test_unequal_expressions_are_not(gold, answer):
    assert not are_equal(expression(gold), expression(answer))


@pytest.mark.parametrize(
    "latex",
    [
        "5 6",
        "1 0",
        r"5\,6",
        "5 6x",
        r"3\text{ or 4 or 5 or 6}",
        r"7\text{ (or 8)}",
        r"3\text{ or }",
        r"3\text{ not}",
        r"{3\text{ or 4}}",
        r"3\text{ dozen}",
        r"3\mathrm{ million}",
        r"3\text{ hundredths}",
        r"3\text{ squared}",
        r"2\text{ pi}",
        r"3\text{!}",
        r"3\text{ + x}",
        r"3\text{²}",
    ],
)
def test_what_cannot_be_read_whole_is_not_readable(latex):
    assert not expression(latex).is_readable


@pytest.mark.parametrize(
    "latex", ["9^{9^9}", "9^{9^{9^9}}", "(10!)!", "((10!)!)!", "100000000!", "(x+y+z)^{5000}", "2^{2^{40}}"]
)
def test_numbers_that_nobody_would_write_out_are_not_computed(latex):
    assert is_too_large(expression(latex).form)


@pytest.mark.parametrize(
    "latex", ["2^{100}", "100!", "x^{100}", "(x+1)^{20}", "10^{-10}", "0^0", "n!", "2^x", "e^{-x^7}", r"\pi^2"]
)
def test_ordinary_powers_are(latex):
    assert not is_too_large(expression(latex).form)


@pytest.mark.parametrize(
    ("text", "ground_truth", "finding"),
    [
        (r"\boxed{7} \boxed{7.0}", "7", {"outcome": "graded", "is_correct": True}),
        (r"\boxed{\frac12} \boxed{0.5}", "7", {"outcome": "graded", "is_correct": False}),
        (r"\boxed{\sqrt{8}} \boxed{2\sqrt2}", r"2\sqrt{2}", {"outcome": "graded", "is_correct": True}),
        (r"\boxed{7} \boxed{8}", "7", {"outcome": "unparseable"}),
        (r"\boxed{8} \boxed{9}", "7", {"outcome": "unparseable"}),
        (r"\boxed{@@@ \frac}", "7", {"outcome": "unparseable"}),
        ("7", "", {"outcome": "ungradable"}),
    ],
)
def test_several_boxes_must_agree(text, ground_truth, finding):
    assert find(text, ground_truth, require_boxed=False) == finding


def rational(generator):
    return Fraction(generator.randint(-99, 99), generator.choice([1, 1, 2, 3, 4, 5, 8, 10]))


def spellings(number):
    """Ways to write a fraction that a grader must take as one."""
    top, bottom = number.numerator, number.denominator
    yield rf"\frac{{{top}}}{{{bottom}}}"
    yield rf"\dfrac{{{top * 3}}}{{{bottom * 3}}}"
    yield f"{top}/{bottom}"
    yield rf"-\frac{{{-top}}}{{{bottom}}}"
    if bottom in (1, 2, 4, 5, 8, 10):
        yield f"{float(number)}"
        yield f"{float(number):.6f}"


def test_fractions_in_any_spelling_agree_with_python():
    generator = random.Random(0)
    for _ in range(300):
        gold, answer = rational(generator), rational(generator)
        answer = gold if generator.random() < 0.5 else answer
        for spelling in spellings(answer):
            written = generator.choice(list(spellings(gold)))
            assert are_equal(expression(written), expression(spelling)) == (gold == answer), (written, spelling)


def test_simple_expressions_agree_with_sympy_and_with_math_verify():
    """The oracle builds both sides itself, so it shares no parser with the verifier."""
    generator = random.Random(1)
    x = sympy.Symbol("x", real=True)
    for _ in range(40):
        a, b, c = (generator.randint(1, 9) for _ in range(3))
        gold, gold_latex = a * (x + b) ** 2 + c * sympy.sqrt(a), rf"{a}(x+{b})^2+{c}\sqrt{{{a}}}"
        d = c + generator.choice([0, 1])
        answer = sympy.expand(a * (x + b) ** 2) + d * sympy.sqrt(a)
        answer_latex = rf"{a}x^2+{2 * a * b}x+{a * b * b}+{d}\sqrt{{{a}}}"
        is_same = sympy.simplify(gold - answer) == 0
        assert are_equal(expression(gold_latex), expression(answer_latex)) == is_same
        parsed = [math_verify.parse(f"${latex}$", parsing_timeout=None) for latex in (gold_latex, answer_latex)]
        assert math_verify.verify(*parsed, timeout_seconds=None) == is_same
