"""The verifier code: which program of an answer counts, what it earns, and which rows are refused before a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ratchet.config import CodeVerifier, RunConfig
from ratchet.errors import SandboxUnavailable
from ratchet.files import ratchet_home
from ratchet.run.records import Grade, Prompt
from ratchet.sandbox import code_run, probe
from ratchet.verifiers import make_verifier
from ratchet.verifiers.code import Program, find_program

ADDS = ["assert add(2, 3) == 5", "assert add('a', 'b') == 'ab'", "assert add([1], [2]) == [1, 2]"]
RIGHT, WRONG, HALF = "def add(a, b): return a + b", "def add(a, b): return None", "def add(a, b): return 5"


def prompt(tests=ADDS, ground_truth=""):
    return Prompt(1, ({"role": "user", "content": "?"},), ground_truth, {} if tests is None else {"tests": tests})


@pytest.fixture(scope="module")
def verifier():
    return make_verifier(CodeVerifier())


def fenced(source, mark="python"):
    return f"```{mark}\n{source}\n```"


def graded(passed, tests=3, metric="tests_passed"):
    parts = {"tests_passed": passed / tests, "all_passed": float(passed == tests)}
    return Grade(parts[metric], "graded", parts)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1"),
        ("```\nx = 1\n```", "x = 1"),
        ("```py\nx = 1\n```", "x = 1"),
        ("```Python3 title=a\nx = 1\n```", "x = 1"),
        ("~~~python\nx = 1\n~~~", "x = 1"),
        ("```python\r\nx = 1\r\n```\r\n", "x = 1\r"),
        ("1. so:\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y"),
        ("```python\nfirst\n```\n```python\nlast\n```", "last"),
        ("```python\nmain\n```\nIt prints:\n```\n5\n```", "main"),
        ("```\nfirst\n```\n```\nlast\n```", "last"),
        ("```python\nmain\n```\n```bash\nls\n```", "main"),
        ("```python\nmain\n```\n```python\nnever closed", "main"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''"),
        ("```python\nx = '''\n```python\n'''\n```", "x = '''\n```python\n'''"),
        ("```python\n```", ""),
    ],
)  # fmt: skip
def test_the_last_python_fence_is_the_program(text, source):
    assert find_program(text) == Program(source, is_fenced=True)


@pytest.mark.parametrize("text", ["", " \n", "```python\nx = 1", "```cpp\nint x;\n```", "text ```\n```bash\nls\n```"])
def test_there_may_be_no_program(text):
    assert find_program(text) is None


def test_without_a_fence_the_whole_text_is_the_program():
    assert find_program("x = 1\n") == Program("x = 1\n", is_fenced=False)
    assert find_program("x = '```'") == Program("x = '```'", is_fenced=False)


@given(st.text(alphabet="`~ \n\rpython1=x"))
def test_any_text_can_be_searched(text):
    program = find_program(text)
    if program is not None and program.is_fenced:
        assert {line.strip() for line in program.source.split("\n")} <= {line.strip() for line in text.split("\n")} | {
            ""
        }
    else:
        assert program in (None, Program(text, is_fenced=False))


@given(st.lists(st.sampled_from(["a = 1", "b = 2", "c"]), min_size=1))
def test_of_many_programs_one_counts(sources):
    assert find_program("\n".join(map(fenced, sources))) == Program(sources[-1], is_fenced=True)


@pytest.mark.parametrize(
    ("answer", "grade"),
    [
        (fenced(RIGHT), graded(3)),
        (RIGHT, graded(3)),
        (fenced(HALF), graded(1)),
        (fenced(WRONG), graded(0)),
        (fenced(RIGHT) + fenced(WRONG), graded(0)),  # a fence that has no line of its own closes nothing
        (fenced(RIGHT) + "\n" + fenced(WRONG), graded(0)),
        (fenced("def add(a, b:"), graded(0)),
        (fenced(""), graded(0)),
        (fenced("import os; os._exit(0)"), graded(0)),
        ("", Grade(0.0, "unparseable")),
        ("The sum of a and b.", Grade(0.0, "unparseable")),
        ("```cpp\nint add;\n```", Grade(0.0, "unparseable")),
        (fenced("\ud800"), graded(0)),
        ("\0", Grade(0.0, "unparseable")),
    ],
)
def test_an_answer_earns_the_share_of_tests_that_its_program_passes(verifier, answer, grade):
    assert verifier.grade(answer, prompt()) == grade


def test_all_or_nothing_is_a_setting():
    verifier = make_verifier(CodeVerifier(metric="all_passed"))
    assert verifier.grade(fenced(HALF), prompt()) == graded(1, metric="all_passed")
    assert verifier.grade(fenced(HALF), prompt()).correctness == 0
    assert verifier.grade(fenced(RIGHT), prompt()).correctness == 1


def test_a_program_that_loops_is_wrong_and_no_failure():
    verifier = make_verifier(CodeVerifier(seconds_per_test=0.3))
    assert verifier.grade(fenced("while True: pass"), prompt()) == graded(0)


def test_the_part_to_read_is_a_setting():
    verifier = make_verifier(CodeVerifier(read="after_reasoning"))
    assert verifier.grade(f"{fenced(WRONG)}</think>\n{fenced(RIGHT)}", prompt()) == graded(3)
    assert verifier.grade(fenced(RIGHT), prompt()) == Grade(0.0, "unparseable")


def test_with_the_tags_bonus_the_only_answer_tag_is_read():
    verifier = make_verifier(CodeVerifier(), prefer_answer_tag=True)
    tagged = f"<think>{fenced(WRONG)}</think>\n<answer>\n{fenced(RIGHT)}\n</answer>\n{fenced(WRONG)}"
    assert verifier.grade(tagged, prompt()) == graded(3)
    assert make_verifier(CodeVerifier()).grade(tagged, prompt()) == graded(0)


def test_input_output_tests_work_too(verifier):
    tests = {"inputs": ["1 2", "3 4"], "outputs": ["3", "8"]}
    assert verifier.grade(fenced("print(sum(map(int, input().split())))"), prompt(tests)) == graded(1, 2)


@pytest.mark.parametrize(
    ("tests", "ground_truth"),
    [
        (ADDS, ""),
        (ADDS, RIGHT),
        (ADDS, fenced(RIGHT)),
        (["assert sum(1, 2) == 3"], "def sum(a, b): return a + b"),
        ({"inputs": ["1"], "outputs": ["1"]}, "print(input())"),
        ({"inputs": ["1"], "outputs": ["1"]}, ""),
    ],
)
def test_a_row_with_tests_that_can_be_passed_is_accepted(verifier, tests, ground_truth):
    assert verifier.check_ground_truth(prompt(tests, ground_truth)) is None


@pytest.mark.parametrize(
    ("tests", "ground_truth", "said"),
    [
        (None, "", "has no tests"),
        ([], "", "check nothing"),
        (ADDS, WRONG, "passes 0 of its 3 tests (0 timed out)"),
        (ADDS, HALF, "passes 1 of its 3 tests"),
        (ADDS, "a sentence about it", "passes 0 of its 3 tests"),
        (["assert h(lambda x: x) == 1"], "def h(g): return g(1)", "passes 0 of its 1 tests"),
        (["assert 1 == 1"], "", "an empty program passes"),
        (["assert 1 == 1"], RIGHT, "an empty program passes"),
        (["assert f(7).isclose(49)"], "", "a method or attribute of the answer decides one of its tests"),
        (["assert f(7).ok"], "", "a method or attribute of the answer decides one of its tests"),
        (["assert Shape().is_round()"], "", "an object passes whose every method returns True"),
        ({"inputs": ["1"], "outputs": [" \n"]}, "", "an empty program passes"),
    ],
)
def test_a_row_that_could_not_teach_is_refused(verifier, tests, ground_truth, said):
    assert said in verifier.check_ground_truth(prompt(tests, ground_truth))


def test_a_row_that_passed_is_not_run_again_and_one_that_did_not_is(monkeypatch):
    good, bad = prompt(ADDS, RIGHT), prompt(ADDS, WRONG)
    first = make_verifier(CodeVerifier())
    assert first.check_ground_truth(good) is None
    assert first.check_ground_truth(bad)
    ran = []
    run = code_run.CodeRunner.run
    monkeypatch.setattr(code_run.CodeRunner, "run", lambda *args: ran.append(1) or run(*args))
    again = make_verifier(CodeVerifier())
    assert again.check_ground_truth(good) is None
    assert not ran
    assert again.check_ground_truth(bad)
    assert len(ran) == 1
    assert again.check_ground_truth(prompt([*ADDS, "assert add(1, 1) == 2"], RIGHT)) is None
    assert make_verifier(CodeVerifier(seconds_per_test=2.0)).check_ground_truth(good) is None
    assert len(ran) == 7
    [file] = (ratchet_home() / "checked").iterdir()
    assert "add" not in file.read_text()
    file.write_text(file.read_text()[:-10] + "\nnonsense\n")
    assert make_verifier(CodeVerifier()).check_ground_truth(good) is None


# Programs that know nothing of the answer, and whose objects agree with whatever they are asked.
YES = """
class Yes:
    def __init__(self, *given): pass
    def __call__(self, *given, **named): return self
    def __getattr__(self, name): return lambda *given, **named: True
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __iter__(self): yield Yes()
    def __getitem__(self, place): return Yes()
    def __bool__(self): return True
"""
OBJECTS = {"an object": "Yes()", "in a list": "[Yes()] * 9", "in an iterator": "iter([Yes()] * 9)", "of its own": "Yes"}
# Tests of which an answer's methods decide, and a solution that passes them.
DECIDED_BY_METHODS = {
    "startswith": ("assert f(7).startswith('4')", "return str(n * n)"),
    "issuperset": ("assert f(7).issuperset({4})", "return {4, 9}"),
    "is_integer": ("assert f(7).is_integer() is True", "return 49.0"),
    "and not": ("assert not f(7).isalpha() and f(7).isdigit()", "return str(n * n)"),
    "kept": ("found = f(7)\nassert found.startswith('4')", "return str(n * n)"),
    "an item": ("assert f(7)[0].startswith('4')", "return [str(n * n)] * 2"),
    "each": ("assert all(one.startswith('4') for one in f(7))", "return [str(n * n)] * 2"),
    "ordered": ("assert f(6) < f(7)", "return n * n"),
    "chained": ("assert f(7).strip().startswith('4')", "return str(n * n)"),
}


@pytest.mark.parametrize("given", OBJECTS)
@pytest.mark.parametrize(("test", "body"), DECIDED_BY_METHODS.values(), ids=DECIDED_BY_METHODS)
def test_an_object_that_agrees_with_everything_passes_nothing_that_data_must(verifier, test, body, given):
    row = prompt([test], f"def f(n): {body}")
    assert verifier.check_ground_truth(row) is None
    assert verifier.grade(fenced(f"{YES}\ndef f(n): return {OBJECTS[given]}"), row) == graded(0, 1)
    assert verifier.grade(fenced(f"def f(number):\n    n = number\n    {body}"), row) == graded(1, 1)


@pytest.mark.parametrize("is_checked", [True, False])
def test_what_data_is_is_known_in_another_process_and_of_rows_that_were_not_checked(is_checked):
    row = prompt(["assert f(7).startswith('4')"], "def f(n): return str(n * n)")
    if is_checked:
        assert make_verifier(CodeVerifier()).check_ground_truth(row) is None
    grading = make_verifier(CodeVerifier())
    assert grading.grade(fenced(f"{YES}\ndef f(n): return Yes()"), row) == graded(0, 1)
    assert grading.grade(fenced("def f(n): return '49'"), row) == graded(1, 1)


@pytest.mark.parametrize(
    ("test", "solution", "other"),
    [
        ("assert sorted(f(7)) == [1, 7]", "return [n, 1]", "return (one for one in [n, 1])"),
        ("assert set(f(7)) == {7} and 7 in f(7) and len(f(7)) == 1", "return [n]", "return {n: 1}.keys()"),
        ("for one in f(7):\n    assert one == '7'", "return [str(n)]", "return map(str, [n])"),
        ("assert f(7)", "return True", "import re; return re.match('7', str(n))"),
        ("assert f(7)[0] == 7", "return [n]", "return collections.UserList([n])"),
    ],
)
def test_other_ways_to_hold_the_same_data_pass_as_before(verifier, test, solution, other):
    row = prompt([test], f"def f(n): {solution}")
    assert verifier.check_ground_truth(row) is None
    assert verifier.grade(fenced(f"import collections\ndef f(n): {other}"), row) == graded(1, 1)


@pytest.mark.parametrize(("test", "body"), DECIDED_BY_METHODS.values(), ids=DECIDED_BY_METHODS)
def test_without_a_solution_such_answers_are_held_to_be_data(verifier, test, body):
    row = prompt([test])
    assert verifier.check_ground_truth(row) is None
    assert verifier.grade(fenced(f"{YES}\ndef f(n): return Yes()"), row) == graded(0, 1)
    assert verifier.grade(fenced(f"def f(n): {body}"), row) == graded(1, 1)


def test_a_class_of_the_program_goes_on_to_be_asked(verifier):
    solution = (
        "class Stack:\n    def __init__(self): self.items = []\n"
        "    def push(self, item): self.items.append(item); return self\n"
        "    def pop(self): return self.items.pop()\n    def is_empty(self): return not self.items"
    )
    tests = [
        "s = Stack()\nassert s.is_empty()",
        "s = Stack().push(1).push(2)\nassert s.pop() == 2 and not s.is_empty()",
    ]
    for ground_truth in (solution, ""):
        row = prompt(tests, ground_truth)
        assert verifier.check_ground_truth(row) is None
        assert verifier.grade(fenced(solution), row) == graded(2, 2)


def test_rows_are_checked_also_where_nothing_can_be_remembered():
    ratchet_home().mkdir(parents=True)
    (ratchet_home() / "checked").write_text("in the way")
    assert make_verifier(CodeVerifier()).check_ground_truth(prompt(ADDS, RIGHT)) is None


def test_nothing_of_the_tests_or_the_solution_is_repeated(verifier):
    secret = "assert f() == 'SECRETVALUE'"
    for ground_truth in ("", "def f(): raise ValueError('SECRETVALUE')", "SECRETVALUE("):
        for tests in ([secret + "("], [secret]):
            assert "SECRETVALUE" not in (verifier.check_ground_truth(prompt(tests, ground_truth)) or "")


def test_a_row_that_was_never_checked_fails_by_name(verifier):
    assert verifier.grade(fenced(RIGHT), prompt(None)) == Grade(0.0, "failed", failure="load")


def test_a_machine_that_cannot_run_programs_says_so_and_grades_nothing(verifier, monkeypatch):
    monkeypatch.setattr(code_run, "python_command", lambda path: ["/usr/bin/false"])
    with pytest.raises(SandboxUnavailable):
        verifier.grade(fenced(RIGHT), prompt())


def test_the_probe_is_asked_before_anything_else(monkeypatch):
    monkeypatch.setattr(probe, "_known", [probe.Probe(False, "No such thing here.", "Get one.")])
    with pytest.raises(SandboxUnavailable, match=r"No such thing here\. Get one\."):
        make_verifier(CodeVerifier())


@pytest.mark.parametrize(
    "settings", [{"seconds_per_test": 0.05}, {"seconds_per_test": 61}, {"memory_mb": 10}, {"language": "c"}]
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValidationError):
        CodeVerifier(**settings)


def test_no_bonus_by_default():
    assert RunConfig(verifier=CodeVerifier()).resolved().reward.format_bonus == "off"
