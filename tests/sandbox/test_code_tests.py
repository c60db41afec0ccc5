"""Reading tests: every form of public datasets becomes the same two kinds, and nothing of them is run."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.sandbox.code_tests import AssertTests, BadTests, IoTests, read_tests, same_output

OWN = {"type": "io", "cases": [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "", "stdout": "0"}]}
PAIRS = IoTests(("1 2\n", ""), ("3\n", "0"))


@pytest.mark.parametrize(
    "form",
    [
        OWN,
        {"inputs": ["1 2\n", ""], "outputs": ["3\n", "0"]},
        {"inputs": [["1 2", ""], []], "outputs": [["3", ""], ["0"]]},
        [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}, {"output": "0"}],
        [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "", "stdout": "0"}],
    ],
    ids=["own", "APPS", "APPS, lines", "LiveCodeBench", "a list of our cases"],
)
def test_input_output_tests_are_read_from_every_form_and_from_its_json_text(form):
    assert read_tests(form) == read_tests(json.dumps(form)) == PAIRS


def sources(tests):
    assert isinstance(tests, AssertTests)
    return [tuple(statement) for statement in tests.statements]


@pytest.mark.parametrize(
    "form",
    [
        ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
        {"type": "assert", "code": "assert add(1, 2) == 3\nassert add(0, 0) == 0"},
        {"type": "assert", "code": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]},
        {"test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "test_setup_code": ""},
        "assert add(1, 2) == 3\nassert add(0, 0) == 0",
    ],
    ids=["MBPP", "own", "own, lines", "MBPP, columns", "plain Python"],
)
def test_assert_statements_are_read_from_every_form(form):
    tests = read_tests(form)
    assert sources(tests) == [("assert add(1, 2) == 3", True), ("assert add(0, 0) == 0", True)]
    assert tests.names == ("add",)
    if not isinstance(form, str):
        assert read_tests(json.dumps(form)) == tests


HUMANEVAL = """
METADATA = {'author': 'x'}

def check(candidate):
    assert candidate([1]) == [1]
    for n in range(3):
        assert candidate([n]) == [n]
    wanted = [2]
    assert candidate(wanted) == wanted
"""


@pytest.mark.parametrize("call", ["", "\ncheck(same)\n"], ids=["entry point", "called"])
def test_the_assertions_of_a_check_function_count_one_by_one(call):
    tests = read_tests({"type": "assert", "code": HUMANEVAL + call, "entry_point": "" if call else "same"})
    assert sources(tests) == [
        ("METADATA = {'author': 'x'}", False),
        ("assert same([1]) == [1]", True),
        ("for n in range(3):\n    assert same([n]) == [n]", True),
        ("wanted = [2]", False),
        ("assert same(wanted) == wanted", True),
    ]
    assert tests.names == ("same",)


def test_a_check_function_that_returns_early_stays_one_test():
    code = "def check(candidate):\n    if candidate(1) is None:\n        return\n    assert candidate(1) == 1"
    tests = read_tests({"type": "assert", "code": code, "entry_point": "f"})
    assert [is_test for _, is_test in sources(tests)] == [False, True]
    assert sources(tests)[1][0] == "check(f)"


def test_pytest_functions_are_called_and_need_no_import_of_the_solution():
    code = "from solution import add as plus\nimport math\n\ndef test_small():\n    assert plus(1, 2) == 3\n\ndef test_big(n=9):\n    assert plus(n, n) == 18\n"
    tests = read_tests(code)
    assert [source for source, is_test in sources(tests) if is_test] == ["test_small()", "test_big()"]
    assert sources(tests)[0] == ("plus = add", False)
    assert tests.names == ("add",)


def test_an_assertion_of_nothing_is_no_test():
    tests = read_tests(
        ["assert True, 'a comment'", "assert f()", "try:\n    f(1)\n    assert False\nexcept IndexError:\n    pass"]
    )
    assert [is_test for _, is_test in sources(tests)] == [False, True, True]
    tests = read_tests("if f() != 1:\n    raise AssertionError('no')\nf()")
    assert [is_test for _, is_test in sources(tests)] == [True, False]


def test_calls_of_apps_become_assertions():
    tests = read_tests({"fn_name": "add", "inputs": [[1, 2], [0, 0]], "outputs": [[3], 0]})
    assert len(tests) == 2
    assert tests.names == ("add", "Solution")
    assert [source for source, is_test in sources(tests) if is_test] == [
        "assert _agree([1, 2], [3])",
        "assert _agree([0, 0], 0)",
    ]


def test_a_builtin_belongs_to_the_program_only_where_someone_trusted_says_so():
    asserts = ["assert round(f(1), 2) == sum(1, 0)"]
    assert read_tests(asserts).names == ("f",)
    assert read_tests(asserts, "def f(x): return x\ndef sum(a, b): return a + b").names == ("f", "sum")
    assert read_tests({"type": "assert", "code": asserts, "entry_point": "sum"}).names == ("f", "sum")


def test_modules_are_imported_by_the_tests_and_never_taken_from_the_program():
    tests = read_tests(["assert math.isclose(f(1), 1.0)"])
    assert sources(tests)[0] == ("import math", False)
    assert tests.names == ("f",)
    tests = read_tests(["assert isclose(f(1), 1.0)"], "from math import isclose, pi\ndef f(x): return x")
    assert sources(tests)[0] == ("from math import isclose", False)
    assert tests.names == ("f",)


def test_what_the_tests_bind_themselves_is_never_taken_from_the_program():
    code = "expected = make()\ndef same(a, b):\n    return a == b\nfor x in [1]:\n    assert same(f(x), expected)"
    assert read_tests(code).names == ("f", "make")


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (None, "neither text, a list nor an object"),
        (7, "neither text, a list nor an object"),
        ({}, "in no known form"),
        ({"type": "shell", "code": "true"}, "a type other than"),
        ({"type": "io"}, "in no known form"),
        ({"type": "io", "cases": []}, "check nothing"),
        ({"type": "io", "cases": ["x"]}, "neither texts nor objects"),
        ({"type": "io", "cases": [{"stdin": "1"}]}, "missing or not text"),
        ({"type": "io", "cases": [{"stdin": "1", "stdout": 2}]}, "missing or not text"),
        ({"inputs": ["1"], "outputs": []}, "1 inputs and 0 outputs"),
        ({"inputs": "1", "outputs": "1"}, "not lists"),
        ({"inputs": [1], "outputs": [2], "fn_name": "f"}, "not lists"),
        ({"inputs": [[1]], "outputs": [2], "fn_name": "f(0) or g"}, "function's name"),
        ([{"input": "1", "output": "2", "testtype": "functional"}], "without naming it"),
        ({"type": "io", "cases": [{"stdin": "", "stdout": "x" * 70_000}]}, "65,536 bytes"),
        ({"type": "io", "cases": [{"stdin": "x" * (17 << 20), "stdout": "1"}]}, "longer than"),
        ({"type": "io", "cases": [{"stdin": "", "stdout": "1"}] * 1001}, "1,001 tests"),
        ([], "check nothing"),
        (["x = 1"], "check nothing"),
        (["assert True"], "check nothing"),
        (["assert add(1,"], "not valid Python"),
        ({"type": "assert", "code": {"a": 1}}, "not text"),
        ({"type": "assert", "code": "assert f()", "entry_point": 3}, "not text"),
        ("def test_with(fixture):\n    assert fixture", "check nothing"),
        ("import unittest\nclass T(unittest.TestCase):\n    def test_a(self): assert f()", "check nothing"),
        ("assert " + "(" * 5000, "not valid Python"),
        ("assert f() == '\0'", "not valid Python"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(form, said):
    with pytest.raises(BadTests, match=said) as refused:
        read_tests(form)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("written", "expected", "same"),
    [
        ("3\n", "3", True),
        ("3", "3\n\n\n", True),
        ("1 2 \n3\t\n", "1 2\n3", True),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("", "\n", True),
        ("1\n\n2", "1\n2", False),
        ("1  2", "1 2", False),
        (" 1", "1", False),
        ("1.0", "1", False),
        ("0.50", "0.5", False),
        ("yes", "YES", False),
        ("1 2", "1\n2", False),
        ("12", "1", False),
        ("", "0", False),
    ],
)
def test_output_is_compared_by_lines_and_exactly(written, expected, same):
    assert same_output(written, expected) is same


@given(st.text(), st.text(alphabet=" \n\t"))
def test_white_space_at_the_end_changes_nothing(text, blank):
    assert same_output(text + blank, text)
