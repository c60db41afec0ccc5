"""Verifier: a function of the user's own, given to ``ratchet.train`` in Python.

It runs in this process, is trusted, and has no time limit: text that came over a network belongs in the sandbox
instead. What it returns is not trusted: None, a list, NaN or 1.5 would otherwise spread into the advantages of a
whole group.
"""

import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ratchet.errors import InvalidSetting
from ratchet.verifiers.base import Building, Grade, Kind, PartVerifier, Prompt
from ratchet.verifiers.known_texts import as_given
from ratchet.verifiers.settings import KindSettings, kind_setting, setting

_UNUSABLE = Grade(correctness=0.0, outcome="failed", failure="result")
_FAILURES = ("load", "execution", "result", "time", "memory", "output")


def identity(function: Callable[..., Any]) -> "PythonVerifier":
    """The settings that record which function it is: module, qualified name and a hash of its source.

    The hash is empty where Python cannot show the source (typed at a prompt, built in, compiled). Of a partial it is
    that of the function inside: bound values are not told apart.
    """
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    try:
        source_hash = hashlib.sha256(inspect.getsource(named).encode()).hexdigest()
    except (OSError, TypeError):
        source_hash = ""
    return PythonVerifier(
        module=getattr(named, "__module__", "") or "", name=named.__qualname__, source_hash=source_hash
    )


class PythonVerifier(KindSettings):
    """A function of the user's own, given to ``ratchet.train`` in Python; runs in process and is trusted.

    Only its identity is stored: such a run is resumed with ``ratchet.resume(folder, verifier=function)``.
    """

    kind: Literal["python"] = kind_setting(
        "python", "a function of your own, given in Python; it runs in this process and is trusted."
    )
    module: str = setting("", label="Module", help="Module that holds the function.")
    name: str = setting("", label="Function", help="Name of the function.")
    source_hash: str = setting("", label="Source hash", help="SHA-256 of the function's source text.")


class PythonFunction(PartVerifier):
    """Grades with ``function(answer, ground_truth)``, or with the prompt as a third argument if it asks for three.

    It returns a number in 0..1; True and False are taken as 1 and 0, since a trusted function that says "equal" means
    just that. It may also return a ``Grade``. An answer on which it raises, or for which it returns anything else, is
    counted as failed. It is called once at a time, mostly not from the main thread.
    """

    def __init__(self, settings: PythonVerifier, building: Building) -> None:
        if building.function is None:
            raise InvalidSetting(
                f"The verifier is the Python function {settings.name or 'of the run'}, which is not stored with "
                "the run. Give it again with verifier=function.",
                field="verifier",
            )
        super().__init__(settings, building)
        self._function = building.function
        self._takes_prompt = _takes_prompt(building.function)

    def check_ground_truth(self, prompt: Prompt) -> str | None:
        """Accept every reference: only the function knows what it can grade."""
        return None

    def grade(self, text: str, prompt: Prompt) -> Grade:
        """Call the function and make a grade of what it returns."""
        part = self.part(text)
        if part is None:
            return Grade(correctness=0.0, outcome="unparseable")
        arguments = (part, prompt.ground_truth, prompt) if self._takes_prompt else (part, prompt.ground_truth)
        try:
            returned = self._function(*arguments)
        except (Exception, SystemExit):  # whatever the user's code raises is data: counted and shown, not ours to fix
            return Grade(correctness=0.0, outcome="failed", failure="execution")
        if isinstance(returned, Grade):
            return _rebuilt(returned) or _UNUSABLE
        number = _number(returned)
        return _UNUSABLE if number is None else Grade(correctness=number, outcome="graded")


def _takes_prompt(function: Callable[..., Any]) -> bool:
    """Whether the function needs the prompt as a third argument.

    Raises:
        InvalidSetting: It can be called with neither two nor three arguments, or is a coroutine function.
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if inspect.iscoroutinefunction(function):
        raise InvalidSetting(
            f"Verifier {name} is async. Give a plain function that returns a number.", field="verifier"
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InvalidSetting(
            f"Verifier {name} does not show which arguments it takes. Wrap it in a function of (answer, ground_truth).",
            field="verifier",
        ) from error
    for count in (2, 3):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == 3
    raise InvalidSetting(
        f"Verifier {name}{signature} cannot be called with (answer, ground_truth) or (answer, ground_truth, prompt). "
        "Give it two or three positional arguments.",
        field="verifier",
    )


def _number(returned: object) -> float | None:
    """A score in 0..1, or None if what the function returned is none. Zero-dimensional arrays count."""
    if not hasattr(type(returned), "__float__") or getattr(returned, "ndim", 0) != 0:
        return None
    try:
        number = float(returned)  # type: ignore[arg-type]
    except Exception:  # a conversion of the user's own: anything may come out of it
        return None
    return number if math.isfinite(number) and 0 <= number <= 1 else None


def _rebuilt(grade: Grade) -> Grade | None:
    """A grade of the user's own with plain floats, or None if it breaks the rules of a Grade.

    What it says of a failure is kept only if it is one of the known kinds: any other text could repeat the answer.
    """
    correctness = _number(grade.correctness)
    parts = _plain_parts(grade.parts)
    if correctness is None or parts is None:
        return None
    score = None if grade.score is None else _number(grade.score)
    if score is None and grade.score is not None:
        return None
    if grade.outcome == "graded":
        return Grade(correctness, "graded", parts, score=score)
    if correctness != 0:
        return None
    if grade.outcome == "unparseable":
        return Grade(0.0, "unparseable", parts, score=score)
    if grade.outcome == "failed":
        known = isinstance(grade.failure, str) and grade.failure in _FAILURES
        return Grade(0.0, "failed", parts, failure=str(grade.failure) if known else "execution")
    return None


def _plain_parts(parts: object) -> dict[str, float] | None:
    """The parts of a grade as plain floats, or None if one is no number in 0..1 or has no text as its name."""
    if not isinstance(parts, Mapping):
        return None
    plain = {}
    for name, part in parts.items():
        number = _number(part)
        if number is None or not isinstance(name, str):
            return None
        plain[str(name)] = number
    return plain


KIND = Kind(
    settings=PythonVerifier,
    build=PythonFunction,
    metrics={"score": "What your function returns."},
    example=None,  # its settings alone build no verifier
    known_answers=as_given,
)
