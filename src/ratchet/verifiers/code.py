"""Verifier: does the program in the answer pass the row's tests?

The program is the last closed fence that is marked python (or py, python3), or without such a one the last closed fence
without a mark; a fence is never joined with another. Published harnesses choose likewise: LiveCodeBench
(arXiv:2403.07974) and Open R1 take the last block. One program is run, so an answer gains nothing by offering several.
Without any fence the whole text is the program; then text that is no Python is unparseable, as is a text in which a
fence is opened and never closed. A fenced program that does not compile is a wrong answer.

The tests are the row's column ``tests`` (forms: ``ratchet.sandbox.code_tests``). The ground truth may hold a reference
solution, which is then tried on them before a run, and is otherwise empty. Whatever the program does to itself (loops,
crashes, floods, forges) costs it the tests concerned and is no failure of the verifier. A sandbox that does not start
is the machine's fault: ``SandboxUnavailable`` ends the run, and nothing is graded by it.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

from ratchet.sandbox.code_run import CodeResult, CodeRunner
from ratchet.sandbox.code_tests import AssertTests, BadTests, CodeTests, read_tests, same_output
from ratchet.sandbox.tools import find_tools
from ratchet.verifiers.base import Building, Example, Grade, Kind, KnownAnswers, PartVerifier, Prompt
from ratchet.verifiers.checked_rows import CheckedRows
from ratchet.verifiers.settings import METRIC_LABEL, KindSettings, kind_setting, setting

_UNPARSEABLE = Grade(correctness=0.0, outcome="unparseable")
_PYTHON = ("python", "python3", "py")
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^`\r]*?)[ \t\r]*")


# See ``_saying_yes``.
_YES = """
class Yes:
    def __bool__(self): raise TypeError
    def __call__(self, *given, **named): return self
    def __getattr__(self, name): return lambda *given, **named: True
    def __getitem__(self, place): return self
    def __iter__(self): return iter([self])
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
"""


class CodeVerifier(KindSettings):
    """The program in the answer is run against the row's tests, in a sandbox."""

    kind: Literal["code"] = kind_setting(
        "code", "the program in the answer is run against the row's tests, in a sandbox."
    )
    language: Literal["python"] = setting("python", label="Language", help="Language of the programs.")
    metric: Literal["tests_passed", "all_passed"] = setting(
        "tests_passed",
        label=METRIC_LABEL,
        help="code trains on tests_passed, the share of the row's tests (usual), or all_passed.",
    )
    seconds_per_test: float = setting(
        5.0,
        span=(0.1, 60),
        label="Limit per test",
        unit="seconds",
        help="A test that takes longer is not passed. A program is given ten times this for all its tests.",
    )
    memory_mb: int = setting(
        512,
        span=(64, 16_384),
        label="Memory of a program",
        unit="MB",
        help="Address space of each of a program's processes. All of them together may hold twice this.",
    )


class Program(NamedTuple):
    """The source text in an answer; ``is_fenced`` is False for an answer that is nothing else."""

    source: str
    is_fenced: bool


class Code(PartVerifier):
    """Grades with the share of tests passed, or 1 for all of them, as the settings say. Both are among the parts."""

    def __init__(self, settings: CodeVerifier, building: Building) -> None:
        super().__init__(settings, building)
        self._settings = settings
        self._runner = CodeRunner(limit_seconds=settings.seconds_per_test, memory_bytes=settings.memory_mb << 20)
        conditions = [settings.seconds_per_test, settings.memory_mb, find_tools().python, version("ratchet-rl")]
        self._checked = CheckedRows("code", conditions)
        self._unchecked: dict[str, list[str]] = {}  # of rows that are graded without having been checked

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Refuse tests that cannot be read, that a reference solution does not pass, or that an idle program does.

        A row that passed on this machine before is not run again.
        """
        key = self._key_of(prompt)
        if self._checked.found(key) is not None:
            return None
        try:
            tests = self._checked_tests(prompt)
        except BadTests as bad:
            return str(bad)
        self._checked.add(key, list(tests.data) if isinstance(tests, AssertTests) else [])
        return None

    def _key_of(self, prompt: Prompt) -> str:
        return self._checked.key([prompt.extras.get("tests"), prompt.ground_truth])

    def _checked_tests(self, prompt: Prompt) -> CodeTests:
        """The tests of a row, together with where its reference solution answers with plain data.

        Raises:
            BadTests: the row is refused.
        """
        tests = _tests_of(prompt)
        if prompt.ground_truth.strip():
            result = self._run_solution(prompt, tests)
            if result.count("passed") < len(tests):
                raise BadTests(
                    f"has a reference solution that passes {result.count('passed')} of its {len(tests)} tests "
                    f"({result.count('timed_out')} timed out); only plain values and objects of the program cross "
                    "between it and the tests"
                )
            if isinstance(tests, AssertTests):
                tests = replace(tests, data=result.data)
        if self._passes("", tests):
            raise BadTests("has tests that an empty program passes")
        if isinstance(tests, AssertTests) and self._passes(_saying_yes(tests.names), tests):
            raise BadTests("has tests that an object passes whose every method returns True")
        return tests

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Run the answer's program on the tests.

        Raises:
            SandboxUnavailable: the sandbox did not start.
        """
        part = self.part(text)
        program = None if part is None else find_program(part)
        if program is None:
            return _UNPARSEABLE
        try:
            tests = self._tests_to_pass(prompt)
        except BadTests:  # a row that was never checked
            return Grade(correctness=0.0, outcome="failed", failure="load")
        result = self._runner.run(program.source, tests)
        if not result.compiles and not program.is_fenced:
            return _UNPARSEABLE
        passed = result.passed_fraction
        parts = {"tests_passed": passed, "all_passed": float(passed == 1)}
        return Grade(correctness=parts[self._settings.metric], outcome="graded", parts=parts)

    def _tests_to_pass(self, prompt: Prompt) -> CodeTests:
        tests = _tests_of(prompt)
        if not isinstance(tests, AssertTests) or not prompt.ground_truth.strip():
            return tests
        key = self._key_of(prompt)
        data = self._checked.found(key)
        if data is None:
            data = self._unchecked.get(key)
        if data is None:
            data = self._unchecked[key] = list(self._run_solution(prompt, tests).data)
        return replace(tests, data=tuple(data))

    def _run_solution(self, prompt: Prompt, tests: CodeTests) -> CodeResult:
        program = find_program(prompt.ground_truth)
        return self._runner.run(program.source if program else "", tests)

    def _passes(self, program: str, tests: CodeTests) -> bool:
        if isinstance(tests, AssertTests):
            return self._runner.run(program, tests).count("passed") == len(tests)
        return all(same_output("", output) for output in tests.outputs)


def _saying_yes(names: Sequence[str]) -> str:
    """A program that knows nothing, and whose objects agree with whatever is asked of them but their truth.

    ``assert is_even(2)`` is a test like others, though a program that always returns True passes it.
    """
    return _YES + "".join(f"{name} = Yes()\n" for name in names)


def _tests_of(prompt: Prompt) -> CodeTests:
    given = prompt.extras.get("tests")
    if given is None:
        raise BadTests("has no tests: the code verifier reads them from the column tests")
    program = find_program(prompt.ground_truth)
    return read_tests(given, program.source if program else "")


def find_program(text: str) -> Program | None:
    """The program of an answer, or None if there is none. Takes time linear in the text."""
    found: dict[bool, str] = {}
    opened: tuple[str, str, str] | None = None
    lines: list[str] = []
    has_fence = False
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        if opened is None:
            if fence:
                opened, lines, has_fence = (fence[1], fence[2], fence[3]), [], True
        elif fence and not fence[3] and fence[2][0] == opened[1][0] and len(fence[2]) >= len(opened[1]):
            mark = opened[2].split(maxsplit=1)[0].lower() if opened[2] else ""
            if mark in _PYTHON or not mark:
                found[mark in _PYTHON] = "\n".join(line.removeprefix(opened[0]) for line in lines)
            opened = None
        else:
            lines.append(line)
    if found:
        return Program(found[max(found)], is_fenced=True)
    return None if has_fence or not text.strip() else Program(text, is_fenced=False)


def _known_answers(settings: Any, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    """Write programs. A solution is known only where the ground truth is one."""
    solution = prompt.ground_truth.strip()
    known = KnownAnswers(
        wrong="```python\npass\n```",
        mistakes={
            "leaves_at_once": "```python\nimport sys\nsys.exit(0)\n```",
            "leaves_hard": "```python\nimport os\nos._exit(0)\n```",
        },
        empty_forms=("```python\n```", "```python\n# solution\n```"),
        reads_all=False,
        left_out={"negated": "words around a program are not read"},
    )
    if not _is_program(solution):
        without = {**known.left_out, "right": "the ground truth is no Python program, so no right answer is known"}
        return replace(known, left_out=without)
    fenced, commented = f"```python\n{solution}\n```", f"```python\n# A solution.\n{solution}\n```"
    return replace(known, right=fenced, variants={"white_space": f"\n\n{fenced}\n\n", "comment": commented})


def _is_program(text: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):  # what it is written like is not ours to judge
            compile(text, "ground truth", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return "def " in text or "print(" in text or "class " in text


KIND = Kind(
    settings=CodeVerifier,
    build=Code,
    metrics={
        "tests_passed": "Share of the row's tests that the program passes.",
        "all_passed": "The program passes every test of the row.",
    },
    example=lambda: Example(
        CodeVerifier(),
        "def double(x):\n    return 2 * x",
        right="```python\ndef double(x):\n    return x + x\n```",
        wrong="```python\ndef double(x):\n    return x\n```",
        extras={"tests": ["assert double(2) == 4"]},
    ),
    known_answers=_known_answers,
)
