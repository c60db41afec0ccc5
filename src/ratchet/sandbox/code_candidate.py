"""The candidate's side of assert tests: runs the program, then does what the tests ask of it. Standard library only.

Runs inside a sandbox, in a process that was forked before the tests were read: there is nothing of them in its memory.
Nothing here is trusted by the other side (``code_proxies``), since the program can change all of it.

One request a line, as JSON: ``{"do": operation, "with": [...], "named": {...}}``. One reply a line: ``{"value": ...}``,
``{"error": [name, arguments]}`` or ``{"stop": true}`` at the end of an iteration. Objects that are no plain values are
kept here and named by a number. A call that changed a list, dict, set or bytearray it was given also replies with what
they hold now, so that tests of functions that work in place can be written as usual.
"""

import builtins
import json
import operator
import os
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

from ratchet.sandbox.code_values import decode, encode

_CHANGEABLE = (list, dict, set, bytearray)
_BUILT_INS = (getattr, setattr, isinstance, len, iter, next, str, repr, format, bool, int, float, round, abs)
_OPERATORS = """
    index getitem setitem delitem lt le gt ge add sub mul truediv floordiv mod pow matmul and or xor neg invert
"""
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, *given, **named: target(*given, **named),
    **{function.__name__: function for function in _BUILT_INS},
    **{name: getattr(operator, f"__{name}__") for name in _OPERATORS.split()},
}


def serve(program: str, requests: Iterable[str], replies: int) -> None:
    """Answer requests until there are no more. The first one to matter is ``load``.

    Args:
        program: The source text.
        requests: Lines.
        replies: Descriptor to write lines to.
    """
    objects: list[Any] = []
    numbers: dict[int, int] = {}
    names: dict[str, Any] = {}

    def number_of(value: Any) -> int:
        if id(value) not in numbers:
            numbers[id(value)] = len(objects)
            objects.append(value)  # kept, so that the id is not used again
        return numbers[id(value)]

    def reply_to(request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "load":
            names.update(_load(program))
            return {"value": None}
        if request["do"] == "names":
            return {"value": {name: encode(names[name], number_of) for name in request["with"] if name in names}}
        given = decode(request["with"], objects.__getitem__)
        named = decode(request.get("named", {"make": "builtins.dict", "of": [[]]}), objects.__getitem__)
        passed = [*enumerate(given), *named.items()]
        watched = [(key, item, encode(item, number_of)) for key, item in passed if type(item) in _CHANGEABLE]
        value = encode(_OPERATIONS[request["do"]](*given, **named), number_of)
        changed = [[key, encode(item, number_of)] for key, item, was in watched if encode(item, number_of) != was]
        return {"value": value, "changed": changed} if changed else {"value": value}

    for line in requests:
        request = json.loads(line)
        try:
            reply = reply_to(request)
        except BaseException as error:  # also SystemExit: the program does not decide when this process ends
            is_end = request["do"] == "next" and isinstance(error, StopIteration)
            reply = {"stop": True} if is_end else {"error": _described(error)}
        _write_all(replies, json.dumps(reply).encode() + b"\n")


def _load(program: str) -> dict[str, Any]:
    """Run the program as a module that is imported, not as a script; return its names.

    Raises:
        SyntaxError: the text is no program, for whatever reason.
    """
    try:
        code = compile(program, "solution.py", "exec", dont_inherit=True)
    except Exception as error:  # also ValueError, RecursionError and MemoryError
        raise SyntaxError("not a program") from error
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    exec(code, module.__dict__)
    return vars(module)


def _described(error: BaseException) -> list[Any]:
    """The nearest built-in class of an exception, and its arguments if they are plain."""
    name = next(kind.__name__ for kind in type(error).__mro__ if vars(builtins).get(kind.__name__) is kind)

    def refuse(value: Any) -> int:
        raise TypeError("not plain")

    try:
        return [name, [encode(argument, refuse) for argument in error.args]]
    except Exception:  # whatever the program's own classes do
        return [name, []]


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
