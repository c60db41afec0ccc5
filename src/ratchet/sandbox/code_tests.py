"""Tests for programs, as data: reads the forms that datasets hold them in. Nothing is run here.

    {"type": "io", "cases": [{"stdin": ..., "stdout": ...}, ...]}       our own form
    {"inputs": [...], "outputs": [...]}                                 APPS, TACO; with "fn_name" calls of a function
    [{"input": ..., "output": ...}, ...]                                LiveCodeBench, standard input alone
    {"type": "assert", "code": ..., "entry_point": ...}                 HumanEval's check(candidate), or any statements
    ["assert ...", ...]                                                 MBPP's test_list; also {"test_list": [...]}

or a JSON text of one of these. Statements are taken apart into set-up and tests, so that a share of them can be
passed: every top-level statement that asserts is a test, the body of a ``check`` function is read as if it stood at
top level, and pytest functions without arguments are called.

Which names the program under test defines matters (``code_proxies``): with a reference solution they are what that
defines, else all that the tests use and do not define. A built-in's name belongs to the program only where the entry
point or the reference says so, and a module of the standard library is always imported on the tests' side; else a
program could bring its own ``round`` or ``math`` and be compared by it.

Without a reference solution nobody knows whether an answer should be plain data. Where a method of the answer decides
an assertion, ``assert f(7).startswith("4")``, the answer is held to be data if data has such a method; else the tests
are refused, since a program could bring a method that always says yes.
"""

import ast
import builtins
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

MOST_OUTPUT_BYTES = 64 << 10
MOST_TESTS = 1_000
MOST_TEXT = 16 << 20  # characters of inputs and outputs together; the process that holds them has 512 MB

_FORMS = "cases of stdin and stdout, lists of inputs and outputs, or assert statements"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


_DATA_METHODS = {
    name
    for kind in (str, bytes, int, float, complex, tuple, list, set, frozenset, dict, range, Decimal, Fraction, datetime)
    for name in dir(kind)
    if not name.startswith("_")
}
# What stands for an object of the program there is a Proxy (``code_proxies``).
_DATA = """
def _data(answer):
    if type(answer).__name__ == "Proxy":
        raise TypeError("the answer is no plain data")
    return answer
"""


class BadTests(ValueError):
    """The tests cannot be used. The text completes "row 3: ..." and never quotes them."""


class Statement(NamedTuple):
    """One top-level statement of the tests; set-up is run and not counted."""

    source: str
    is_test: bool


@dataclass(frozen=True)
class IoTests:
    """What a program reads, and what it must write."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class AssertTests:
    """Statements in order, and the names that the program under test may define for them.

    ``data`` says where a reference solution's answers are plain data, as ``CodeResult.data`` has it: what such an
    answer's methods would say passes no test.
    """

    statements: tuple[Statement, ...]
    names: tuple[str, ...]
    data: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(statement.is_test for statement in self.statements)


CodeTests = IoTests | AssertTests


def read_tests(given: Any, reference: str = "") -> CodeTests:
    """Make tests of what a row holds.

    Args:
        given: A value in one of the forms above.
        reference: Source of a solution, if there is one; only parsed.

    Raises:
        BadTests: it is in none of the forms, empty, or larger than the limits.
    """
    if isinstance(given, str):
        given = _decoded(given)
    tests = _from_list(given, reference) if isinstance(given, list | tuple) else _from_object(given, reference)
    if not len(tests):
        raise BadTests("its tests check nothing")
    if len(tests) > MOST_TESTS:
        raise BadTests(f"it has {len(tests):,} tests, and {MOST_TESTS:,} are the most")
    return tests


def _decoded(text: str) -> Any:
    """What a JSON text holds; any other text is Python that asserts."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass  # Python may begin with a bracket too
    return {"code": text}


def _from_object(given: Any, reference: str) -> CodeTests:
    if not isinstance(given, Mapping):
        raise BadTests(f"its tests are neither text, a list nor an object ({_FORMS})")
    kind = given.get("type")
    if kind not in (None, "io", "assert"):
        raise BadTests("its tests have a type other than io and assert")
    if kind != "assert" and isinstance(given.get("cases"), list):
        cases = _objects(given["cases"])
        return _io([case.get("stdin", "") for case in cases], [case.get("stdout") for case in cases])
    if kind != "assert" and "inputs" in given and "outputs" in given:
        inputs, outputs = given["inputs"], given["outputs"]
        if not isinstance(inputs, list) or not isinstance(outputs, list):
            raise BadTests("the inputs and outputs of its tests are not lists")
        name = given.get("fn_name")
        return _calls(name, inputs, outputs) if name else _io(inputs, outputs)
    code = next((given[key] for key in ("code", "test", "test_list") if given.get(key)), None)
    if kind == "io" or code is None:
        raise BadTests(f"its tests are in no known form ({_FORMS})")
    setup = given.get("test_setup_code") or given.get("test_imports") or ""
    entry_point = given.get("entry_point") or ""
    if not all(_is_code(part) for part in (code, setup)) or not isinstance(entry_point, str):
        raise BadTests("the code of its tests is not text")
    return _asserts("\n".join((_joined(setup), _joined(code))), entry_point, reference)


def _from_list(given: Sequence[Any], reference: str) -> CodeTests:
    if all(isinstance(item, str) for item in given):
        return _asserts(_joined(given), "", reference)
    if any(isinstance(item, Mapping) and item.get("testtype") == "functional" for item in given):
        raise BadTests("its tests call a function without naming it; give inputs, outputs and fn_name")
    keys = ("input", "output") if any("input" in item for item in _objects(given)) else ("stdin", "stdout")
    return _io([item.get(keys[0], "") for item in given], [item.get(keys[1]) for item in given])


def _objects(items: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    if not all(isinstance(item, Mapping) for item in items):
        raise BadTests(f"its tests are a list of neither texts nor objects ({_FORMS})")
    return items


def _is_code(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, list) and all(isinstance(line, str) for line in part))


def _joined(part: Any) -> str:
    return part if isinstance(part, str) else "\n".join(part)


# Input/output tests.


def _io(inputs: Sequence[Any], outputs: Sequence[Any]) -> IoTests:
    if len(inputs) != len(outputs):
        raise BadTests(f"its tests have {len(inputs):,} inputs and {len(outputs):,} outputs")
    tests = IoTests(tuple(map(_text, inputs)), tuple(map(_text, outputs)))
    if sum(map(len, (*tests.inputs, *tests.outputs))) > MOST_TEXT:
        raise BadTests(f"its tests are longer than {MOST_TEXT:,} characters")
    if any(len(output.encode("utf-8", "surrogatepass")) > MOST_OUTPUT_BYTES for output in tests.outputs):
        raise BadTests(f"a test expects more than {MOST_OUTPUT_BYTES:,} bytes of output, which are the most")
    return tests


def _text(value: Any) -> str:
    """An input or output; some datasets hold it as a list of lines."""
    if _is_code(value):
        return _joined(value)
    raise BadTests("an input or output of its tests is missing or not text")


def same_output(written: str, expected: str) -> bool:
    """Compare line by line, without white space at the ends of lines and without empty lines at the end.

    All else must be the same, the digits of a number too: 1.0 is not 1.
    """
    return _lines(written) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _calls(name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> AssertTests:
    """Make calls of APPS's form: a list of arguments each, for a function or a method of ``Solution``.

    Compared as APPS does (Hendrycks et al. 2021, arXiv:2105.09938, its testing_util.py): a tuple as a list, with the
    expected value or with the only item of a list that it is wrapped in.
    """
    if not isinstance(name, str) or not name.isidentifier() or len(inputs) != len(outputs):
        raise BadTests("its calls do not have a function's name and as many inputs as outputs")
    if not all(isinstance(arguments, list) for arguments in inputs):
        raise BadTests("the arguments of its calls are not lists")
    setup = (
        "def _agree(given, expected):\n"
        f"    found = {name}(*given) if {name!r} in globals() else Solution().{name}(*given)\n"
        "    found = list(found) if isinstance(found, tuple) else found\n"
        "    return found == expected or (isinstance(expected, list) and len(expected) == 1 and found == expected[0])"
    )
    cases = [f"assert _agree({given!r}, {out!r})" for given, out in zip(inputs, outputs, strict=True)]
    return AssertTests(
        (Statement(setup, is_test=False), *(Statement(case, is_test=True) for case in cases)), (name, "Solution")
    )


# Assert tests.


def _asserts(code: str, entry_point: str, reference: str) -> AssertTests:
    if len(code) > MOST_TEXT:
        raise BadTests(f"its tests are longer than {MOST_TEXT:,} characters")
    tree = parsed(code)
    if tree is None:
        raise BadTests("its tests are not valid Python")
    solution = parsed(reference) if reference else None
    body, imported = _without_solution_imports(tree.body)
    body = _with_check(body, entry_point)
    asserting = {node.name for node in body if isinstance(node, ast.FunctionDef) and _asserts_inside(node)}
    called = {call.func.id for node in body if (call := _called(node)) and isinstance(call.func, ast.Name)}
    body += [_call(name) for name in _pytest_names(body, asserting) if name not in called]
    names = _free_names(body) | imported
    setup: list[Statement] = []
    if solution is not None:
        defined, imports = _defined_names(solution)
        setup = [Statement(source, is_test=False) for name, source in imports.items() if name in names]
        names &= defined | {entry_point}
    else:
        modules = _used_modules(body, names) - {entry_point}
        setup = [Statement(f"import {name}", is_test=False) for name in sorted(modules)]
        names -= modules
        names -= set(vars(builtins)) - {entry_point}
        if _hold_answers_to_be_data(body, names):
            setup.append(Statement(_DATA, is_test=False))
    statements = [Statement(ast.unparse(node), is_test=_is_test(node, asserting)) for node in body]
    return AssertTests((*setup, *statements), tuple(sorted(names)))


def parsed(code: str) -> ast.Module | None:
    """Parse what a dataset holds; None if it is not Python."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _without_solution_imports(body: list[ast.stmt]) -> tuple[list[ast.stmt], set[str]]:
    """Take ``from solution import name`` out, as pytest files write it: the names are there without it."""
    kept: list[ast.stmt] = []
    names: set[str] = set()
    for node in body:
        if not isinstance(node, ast.ImportFrom) or node.module != "solution":
            kept.append(node)
            continue
        names |= {alias.name for alias in node.names if alias.name != "*"}
        kept += ast.parse("\n".join(f"{a.asname} = {a.name}" for a in node.names if a.asname)).body
    return kept, names


def _with_check(body: list[ast.stmt], entry_point: str) -> list[ast.stmt]:
    """Put the body of HumanEval's ``check(candidate)`` in its place, so that each assertion counts."""
    check = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == "check"), None)
    if check is None or len(check.args.args) != 1:
        return body
    calls = [call for node in body if (call := _called(node)) and ast.unparse(call.func) == "check"]
    entry = next((call.args[0] for call in calls if len(call.args) == 1), None)
    if not calls and entry_point:
        entry = ast.Name(entry_point, ast.Load())
    if len(calls) > 1 or not isinstance(entry, ast.Name):
        return body
    rest = [node for node in body if _called(node) not in calls]
    if any(isinstance(node, ast.Return | ast.Yield | ast.Global | ast.Nonlocal) for node in _inside(check)):
        return [*rest, ast.Expr(ast.Call(ast.Name("check", ast.Load()), [entry], []))]
    renamed = _Renamed(check.args.args[0].arg, entry.id)
    return [*(node for node in rest if node is not check), *(renamed.visit(node) for node in check.body)]


class _Renamed(ast.NodeTransformer):
    """Writes one name for another."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._new, node.ctx) if node.id == self._old else node


def _called(node: ast.stmt) -> ast.Call | None:
    """The call that a statement consists of, if it is one."""
    return node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None


def _call(name: str) -> ast.stmt:
    return ast.parse(f"{name}()").body[0]


def _pytest_names(body: list[ast.stmt], asserting: set[str]) -> list[str]:
    """The functions that pytest would call and that need no arguments."""
    return [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef)
        and node.name in asserting
        and node.name.startswith("test")
        and len(node.args.args) == len(node.args.defaults)
    ]


def _is_test(node: ast.stmt, asserting: set[str]) -> bool:
    call = _called(node)
    if call is not None:
        return isinstance(call.func, ast.Name) and call.func.id in asserting
    return not isinstance(node, _SCOPES) and _asserts_inside(node)


def _asserts_inside(node: ast.stmt) -> bool:
    """Whether a statement can fail on purpose, by an assertion or by raising.

    ``assert True`` cannot: HumanEval has it in many problems, where it would be passed by everyone.
    """
    return any(
        isinstance(part, ast.Raise)
        or (isinstance(part, ast.Assert) and not (isinstance(part.test, ast.Constant) and part.test.value))
        for part in _inside(node)
    )


def _inside(node: ast.AST) -> list[ast.AST]:
    """A node and all within it, but for functions and classes defined there."""
    found = [node]
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, _SCOPES):
            found += _inside(part)
    return found


def _free_names(body: Sequence[ast.stmt]) -> set[str]:
    """The names that the tests read and nowhere bind themselves."""
    read: set[str] = set()
    bound: set[str] = set()
    for part in (part for node in body for part in ast.walk(node)):
        if isinstance(part, ast.Name):
            (read if isinstance(part.ctx, ast.Load) else bound).add(part.id)
        elif isinstance(part, ast.alias):
            bound.add((part.asname or part.name).split(".")[0])
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(part.name)
        elif isinstance(part, ast.arg):
            bound.add(part.arg)
        elif isinstance(part, ast.ExceptHandler) and part.name:
            bound.add(part.name)
    return read - bound


def _hold_answers_to_be_data(body: list[ast.stmt], names: set[str]) -> bool:
    """Rewrite assertions that answers decide, by a method or their order, so that only those of plain data do.

    An answer is what a function of the program returned; instances of its classes are what they are.

    Raises:
        BadTests: data has no method of that name.
    """
    functions = {name for name in names if not name[0].isupper()} | {"candidate"}
    parts = [part for node in body for part in ast.walk(node)]
    kept: set[str] = set()
    for part in parts:
        match part:
            case ast.Assign(targets=targets, value=value) if _is_answer(value, functions, kept):
                kept |= {name for target in targets for name in _bound(target)}
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                kept |= _bound(target) if _is_answer(value, functions, kept) else set()
    is_changed = False
    for deciding in (one for part in parts if isinstance(part, ast.Assert) for one in _deciding(part.test)):
        if isinstance(deciding, ast.Compare):
            sides = [deciding.left, *deciding.comparators]
            if all(_is_answer(side, functions, kept) for side in sides):
                deciding.left, *deciding.comparators = map(_held, sides)
                is_changed = True
        elif _is_answer(deciding.value, functions, kept):
            if deciding.attr not in _DATA_METHODS:
                raise BadTests(
                    "a method or attribute of the answer decides one of its tests, which any object could bring; "
                    "compare data, or give a reference solution as the ground truth"
                )
            deciding.value = _held(deciding.value)
            is_changed = True
    return is_changed


def _held(answer: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("_data", ast.Load()), [answer], [])


def _bound(target: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}


def _deciding(test: ast.expr) -> list[ast.Attribute | ast.Compare]:
    """What an assertion is true by: attributes, called or not, that nothing is compared with, and orders."""
    match test:
        case ast.BoolOp(values=values):
            return [found for value in values for found in _deciding(value)]
        case ast.UnaryOp(operand=operand):
            return _deciding(operand)
        case ast.Call(func=ast.Name(id="all" | "any"), args=[ast.GeneratorExp(elt=each) | ast.ListComp(elt=each)]):
            return _deciding(each)
        case ast.Compare(left=left, comparators=[ast.Constant(value=bool())]):
            return _deciding(left)
        case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE(), *_]) | ast.Attribute():
            return [test]
        case ast.Call(func=ast.Attribute() as found):
            return [found]
    return []


def _is_answer(node: ast.expr, functions: set[str], kept: set[str]) -> bool:
    """Whether an expression is what a function returned, or a part of it; ``kept`` are names that hold such."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.NamedExpr):
        node = node.value
    if isinstance(node, ast.Call):
        called = node.func
        return called.id in functions if isinstance(called, ast.Name) else _is_answer(called, functions, kept)
    return isinstance(node, ast.Name) and node.id in kept


def _used_modules(body: Sequence[ast.stmt], names: set[str]) -> set[str]:
    """The modules of the standard library of which the tests use an attribute without having imported them."""
    owners = {
        part.value.id
        for node in body
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
    }
    return owners & names & sys.stdlib_module_names


def _defined_names(solution: ast.Module) -> tuple[set[str], dict[str, str]]:
    """What a solution defines at top level, and what it imports there with the statement for each."""
    defined: set[str] = set()
    imports: dict[str, str] = {}
    for node in solution.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                own = type(node)(**{**vars(node), "names": [alias]})
                imports[(alias.asname or alias.name).split(".")[0]] = ast.unparse(own)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        else:
            defined |= {p.id for p in _inside(node) if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)}
    return defined, imports
