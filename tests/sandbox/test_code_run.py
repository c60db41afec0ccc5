"""Programs against tests, in real sandboxes: what an honest program gets, and how each way of not passing is named."""

import concurrent.futures
import subprocess
import time

import pytest

from ratchet.errors import SandboxUnavailable
from ratchet.sandbox import code_run
from ratchet.sandbox.code_run import CodeRunner
from ratchet.sandbox.code_tests import read_tests
from ratchet.sandbox.tools import system_python

SUMS = {"type": "io", "cases": [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "5 6\n", "stdout": "11"}]}
ADDS = ["assert add(2, 3) == 5", "assert add('a', 'b') == 'ab'", "assert add([1], [2]) == [1, 2]"]


@pytest.fixture(scope="module")
def runner():
    return CodeRunner(limit_seconds=2)


def statuses(runner, program, tests, reference=""):
    return list(runner.run(program, read_tests(tests, reference)).statuses)


# Input/output.


@pytest.mark.parametrize(
    "program",
    [
        "a, b = map(int, input().split())\nprint(a + b)",
        "import sys\nsys.stdout.write(str(sum(map(int, sys.stdin.read().split()))))",
        "print(sum(map(int, open(0).read().split())))",
        "import os\nos.write(1, str(sum(map(int, os.read(0, 99).split()))).encode())\nos._exit(0)",
        "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()",
        "print(sum(map(int, input().split())))\nexit()",
        "import threading\nt = threading.Thread(target=lambda: print(sum(map(int, input().split()))))\nt.start()",
        "import atexit\nn = sum(map(int, input().split()))\natexit.register(lambda: print(n))",
        "import sys\nprint('noise ' * 10000, file=sys.stderr)\nprint(sum(map(int, input().split())))",
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and f(n - 1)\nf(9000)\nprint(sum(map(int, input().split())))",
        "open('kept', 'w').write('x')\nprint(sum(map(int, input().split())))",
        "import subprocess\nprint(subprocess.run(['expr', *input().replace(' ', ' + ').split()], capture_output=True, text=True).stdout)",
        "import multiprocessing\nwith multiprocessing.Pool(2) as pool:\n    print(sum(pool.map(int, input().split())))",
        "import asyncio\nasync def main(): print(sum(map(int, input().split())))\nasyncio.run(main())",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    a: int\n    b: int\np = P(*map(int, input().split()))\nprint(p.a + p.b)",
    ],
    ids=["input", "stdin", "open 0", "os", "main", "exit", "thread", "atexit", "stderr", "deep", "file", "subprocess", "pool", "asyncio", "dataclass"],
)  # fmt: skip
def test_a_right_program_passes_however_it_reads_and_writes(runner, program):
    assert statuses(runner, program, SUMS) == ["passed", "passed"]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print(3)", ["passed", "failed"]),
        ("", ["failed", "failed"]),
        ("print(sum(map(int, input().split())))\nraise SystemExit(1)", ["error", "error"]),
        ("print(sum(map(int, input().split())))\n1 / 0", ["error", "error"]),
        ("n = input()\nprint(3)\nif n[0] == '5': import os; os.abort()", ["passed", "error"]),
        ("input(); input()", ["error", "error"]),
        ("def f(:", ["error", "error"]),
    ],
    ids=["by heart", "empty", "exit code", "exception", "abort", "reads too much", "no program"],
)
def test_what_does_not_pass_is_named(runner, program, expected):
    result = runner.run(program, read_tests(SUMS))
    assert list(result.statuses) == expected
    assert result.compiles is (program != "def f(:")
    assert result.ending == "finished"


def test_large_inputs_and_outputs_pass_through(runner):
    text = "x" * 60_000
    tests = {
        "type": "io",
        "cases": [{"stdin": text + "\n" + "y" * 5_000_000, "stdout": text}, {"stdin": "", "stdout": ""}],
    }
    program = "import sys\nfirst = sys.stdin.readline()\nprint(first.strip())"
    assert statuses(runner, program, tests) == ["passed", "passed"]
    assert statuses(runner, "print('x' * 60_000)", tests) == ["passed", "failed"]


def test_any_text_crosses(runner):
    tests = {"type": "io", "cases": [{"stdin": "é\u2028\0\n", "stdout": "é\u2028\0"}]}
    assert statuses(runner, "print(input())", tests) == ["passed"]


def test_a_test_that_is_out_of_time_costs_itself_alone_and_the_third_ends_the_run():
    runner = CodeRunner(limit_seconds=1.0)
    slow = "n = int(input())\nwhile n % 2: pass\nprint(n)"
    cases = [{"stdin": str(n), "stdout": str(n)} for n in (1, 2, 3, 4, 5, 6, 8)]
    started = time.monotonic()
    assert statuses(runner, slow, {"type": "io", "cases": cases}) == [
        "timed_out", "passed", "timed_out", "passed", "timed_out", "timed_out", "timed_out",
    ]  # fmt: skip
    assert 3 < time.monotonic() - started < 30


def test_a_run_ends_after_ten_times_the_limit_of_a_test():
    runner = CodeRunner(limit_seconds=0.4)
    cases = [{"stdin": "", "stdout": "1"}] * 40
    started = time.monotonic()
    found = statuses(runner, "import time\ntime.sleep(0.2)\nprint(1)", {"type": "io", "cases": cases})
    assert time.monotonic() - started < 30
    # One may be held up by a busy machine; no more than 20 go into ten times the limit.
    assert 3 <= found.count("passed") <= 20
    assert found[20:] == ["timed_out"] * 20
    assert set(found) == {"passed", "timed_out"}


def test_the_order_of_a_set_is_the_same_in_every_run(runner):
    program = "print(set('abcdefgh'))"
    found = subprocess.run(
        [system_python(), "-c", program], env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True
    )
    assert statuses(runner, program, {"inputs": [""] * 3, "outputs": [found.stdout] * 3}) == ["passed"] * 3


# Assertions.


def test_a_right_function_passes_and_a_wrong_one_passes_what_it_gets_right(runner):
    assert statuses(runner, "def add(a, b): return a + b", ADDS) == ["passed"] * 3
    assert statuses(runner, "def add(a, b): return 5", ADDS) == ["passed", "failed", "failed"]
    assert statuses(runner, "def add(a, b): return a - -b", ADDS) == ["passed", "error", "error"]
    assert statuses(runner, "def plus(a, b): return a + b", ADDS) == ["error"] * 3
    assert statuses(runner, "", ADDS) == ["error"] * 3
    result = runner.run("def add(a, b:", read_tests(ADDS))
    assert not result.compiles
    assert list(result.statuses) == ["error"] * 3


STACK = """
class Stack:
    "Last in, first out."
    limit = 2
    def __init__(self, items=()):
        self.items = list(items)
    def push(self, item):
        if len(self.items) == self.limit:
            raise OverflowError("full", self.limit)
        self.items.append(item)
        return self
    def pop(self):
        return self.items.pop()
    def __len__(self):
        return len(self.items)
    def __iter__(self):
        yield from self.items
    def __getitem__(self, index):
        return self.items[index]
    def __add__(self, other):
        return Stack(self.items + other.items)
    def __lt__(self, other):
        return len(self) < len(other)
    def __bool__(self):
        return bool(self.items)
    def __repr__(self):
        return f"Stack({self.items})"
    def __call__(self):
        return self
"""


@pytest.mark.parametrize(
    "test",
    [
        "s = Stack()\ns.push(3)\nassert s.pop() == 3 and len(s) == 0",
        "assert list(Stack([1, 2])) == [1, 2] and [x + 1 for x in Stack([1])] == [2]",
        "assert 2 in Stack([1, 2]) and 3 not in Stack([1, 2])",
        "assert Stack([7])[0] == 7 and Stack([7])[-1:] == [7]",
        "assert repr(Stack([1])) == 'Stack([1])' and str(Stack()) == 'Stack([])' and f'{Stack()}' == 'Stack([])'",
        "s = Stack()\nassert s() is s and s.push(1) is s and s == s and s != Stack.limit",
        "assert not Stack() and Stack([0])",
        "assert len(Stack([1]) + Stack([2])) == 2 and Stack() < Stack([1])",
        "assert isinstance(Stack(), Stack) and not isinstance(1, Stack)",
        "s = Stack()\ns.items = [4]\nassert s.pop() == 4",
        "assert Stack.limit == 2 and Stack.__name__ == 'Stack'",
        "assert hasattr(Stack(), 'pop') and not hasattr(Stack(), 'peek')",
        "assert Stack(items=[5]).pop() == 5",
        "try:\n    Stack([1, 2]).push(3)\n    assert False\nexcept OverflowError as error:\n    assert error.args == ('full', 2)",
        "import unittest\nwith unittest.TestCase().assertRaises(IndexError):\n    Stack().pop()\nassert Stack([1])",
        "assert sorted([Stack([1, 2]), Stack()])[0].items == []",
        "assert {Stack: 1}[Stack] == 1",
    ],
)
def test_objects_of_the_program_can_be_used_as_if_they_were_here(runner, test):
    found = statuses(runner, STACK, test)
    assert set(found) == {"passed"}


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(x): x.sort()", "x = [3, 1]\nf(x)\nassert x == [1, 3]"),
        ("def f(x): x['a'] = {1}", "x = {}\nf(x=x)\nassert x == {'a': {1}}"),
        ("def f(x): x.add((2,)); return x", "x = {1}\nassert f(x) == {1, (2,)} == x"),
        ("def f(n):\n    while n: yield n; n -= 1", "assert list(f(3)) == [3, 2, 1] and next(f(2)) == 2"),
        ("def f(n): return lambda x: x + n", "assert f(2)(3) == 5"),
        ("ANSWER = 42\nclass K(dict): pass\ndef f(): return K(a=1)", "assert ANSWER == 42 and f() == {'a': 1}"),
        ("def f(): return None", "assert f() is None"),
        ("def f(): return float('nan'), float('inf'), 2**99, b'x', 1j", "assert f()[1:] == (float('inf'), 2**99, b'x', 1j)"),
        ("from decimal import Decimal\ndef f(): return [Decimal('0.1')] * 3", "import decimal\nassert sum(f()) == decimal.Decimal('0.3')"),
        ("class Node:\n    def __init__(self, v, n=None): self.v, self.n = v, n\ndef last(n):\n    while n.n: n = n.n\n    return n",
         "end = Node(2)\nassert last(Node(1, end)) is end and end.n is None and last(end).v == 2"),
        ("def f(x): print('talk' * 99999); return x", "assert f(1) == 1"),
        ("if __name__ == '__main__':\n    input()\ndef f(): return 1", "assert f() == 1"),
        ("import sys\ndef f(): return sys.modules[__name__].f is f", "assert f()"),
        ("def round(x): return 7\ndef f(): return round(1.5)", "assert f() == 7 and round(1.4) == 1"),
    ],
    ids=["sorted in place", "dict by name", "set", "generator", "closure", "subclass", "None", "odd values", "decimal", "nodes",
         "prints", "main", "module", "own builtin"],
)  # fmt: skip
def test_values_cross_as_python_would_pass_them(runner, program, test):
    assert set(statuses(runner, program, test)) == {"passed"}


def test_a_function_named_like_a_builtin_is_tested_where_the_reference_defines_it(runner):
    program, asserts = "def sum(a, b): return a + b", ["assert sum(10, 15) == 25"]
    assert statuses(runner, program, asserts) == ["error"]
    assert statuses(runner, program, asserts, reference=program) == ["passed"]


def test_calls_of_apps_find_a_function_or_a_method_of_solution(runner):
    tests = {"fn_name": "pair", "inputs": [[1, 2], [3, 4]], "outputs": [[[1, 2]], [3, 4]]}
    assert statuses(runner, "def pair(a, b): return a, b", tests) == ["passed"] * 2
    assert statuses(runner, "class Solution:\n    def pair(self, a, b): return [a, b]", tests) == ["passed"] * 2
    assert statuses(runner, "def pair(a, b): return [b, a]", tests) == ["failed"] * 2


def test_assertions_that_are_out_of_time_or_crash_cost_themselves_alone():
    runner = CodeRunner(limit_seconds=1.0)
    program = "import os\ndef f(n):\n    while n == 3: pass\n    if n == 5: os._exit(0)\n    return n"
    asserts = [f"assert f({n}) == {n}" for n in (2, 3, 4, 5, 6)]
    assert statuses(runner, program, asserts) == ["passed", "timed_out", "passed", "error", "passed"]
    loops = "def f(n):\n    while True: pass"
    started = time.monotonic()
    assert statuses(runner, loops, asserts) == ["timed_out"] * 5
    assert statuses(runner, "while True: pass", asserts) == ["timed_out"] * 5
    assert time.monotonic() - started < 40


def test_a_test_that_loops_over_the_program_is_out_of_time_too():
    runner = CodeRunner(limit_seconds=1.0)
    asserts = "n = 0\nwhile f(n) == n:\n    n += 1\n    assert n"
    assert statuses(runner, "def f(n): return n", asserts) == ["timed_out"]
    assert statuses(runner, "def f():\n    while True: yield 1", "assert sum(f()) == 1") == ["timed_out"]


def test_an_object_of_a_process_that_was_ended_fails_its_test_and_no_other():
    runner = CodeRunner(limit_seconds=1.0)
    program = STACK + "\ndef loop():\n    while True: pass"
    tests = "s = Stack([1])\nassert loop()\nassert s.pop() == 1\nassert Stack([2]).pop() == 2"
    assert statuses(runner, program, tests) == ["timed_out", "error", "passed"]


def test_tests_that_need_what_cannot_cross_pass_for_nobody(runner):
    program = "class E(Exception): pass\ndef f(g): raise E()\ndef h(g): return g(1)"
    assert statuses(runner, program, "try:\n    f(1)\nexcept E:\n    assert 1 == 1") == ["error"]
    assert statuses(runner, program, "assert h(lambda x: x + 1) == 2") == ["error"]
    assert statuses(runner, program, "import numpy\nassert h(1)") == ["error"]


# The machine.


def test_a_sandbox_that_does_not_start_is_the_machines_fault(runner, monkeypatch):
    monkeypatch.setattr(code_run, "python_command", lambda path: ["/usr/bin/false"])
    with pytest.raises(SandboxUnavailable, match="ended before it began"):
        runner.run("print(1)", read_tests(SUMS))


def test_runs_from_many_threads_do_not_mix(runner):
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda n: statuses(runner, f"def add(a, b): return {n}", [f"assert add(1, 1) == {n}", "assert add(1, 1) == -1"]), range(12)))  # fmt: skip
    assert found == [["passed", "failed"]] * 12
