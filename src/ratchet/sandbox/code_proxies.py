"""The tests' side of assert tests: names of the candidate's as proxies, and the verdict. Standard library only.

Runs inside a sandbox, in a process of its own that holds the tests and never runs a line of the candidate's. A proxy
sends what is done with it to the candidate's process; what comes back is rebuilt from plain values. So an object that
claims to equal everything, an int whose ``__eq__`` lies, a patched ``AssertionError`` or a forged verdict cannot pass:

- a proxy equals itself and no plain value; whether two objects of the candidate's are equal cannot be asked;
- ordering and arithmetic are asked for only between two of its objects, never with a value of the tests, which would
  also tell it what is expected;
- ``in`` goes through the items and compares here;
- where the reference solution answers with plain data, an object is not asked for what would decide a test: its
  methods could say what they like. It may be iterated, indexed and converted, which ends in a comparison here.

What cannot cross: functions and classes of the tests' as arguments, exception classes of the candidate's in
``except``, patching. Such tests fail for every candidate, a reference solution too.
"""

import builtins
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from ratchet.sandbox.code_values import decode, encode

_MOST_REPLY_BYTES = 16 << 20
_MOST_LABEL = 100
# What asks an object for the truth, or for its methods, which may say anything: how many objects it asks.
_DECIDING = {"getattr": 1, "call": 1, "lt": 2, "le": 2, "gt": 2, "ge": 2}
# Raised here in the candidate's name; the others steer loops and interpreters, and would steer the tests.
_NOT_RAISED = ("StopIteration", "StopAsyncIteration", "GeneratorExit")


class CandidateGone(BaseException):
    """The candidate's process ended or does not speak the language. Not an Exception, so no test catches it."""


class NotData(BaseException):
    """An object is to decide a test where the reference solution answers with plain data. No test catches it."""


class AnswersSeen:
    """Where answers are plain data and where objects, by what was asked: ``f()``, ``.pop()``, a name.

    Told and remembered as hashes, since the host keeps them and no text of a row.

    Args:
        expected: Where the reference solution's answers are all plain data, if there is one.
    """

    def __init__(self, expected: list[str]) -> None:
        self._expected = frozenset(expected)
        self._data: set[str] = set()
        self._objects: set[str] = set()

    @property
    def always_data(self) -> list[str]:
        """Where no object has come back so far."""
        return sorted(self._data - self._objects)

    def note(self, label: str, has_object: bool) -> None:
        """Take down one answer."""
        (self._objects if has_object else self._data).add(_hashed(label))

    def must_be_data(self, label: str) -> bool:
        """Whether the reference solution's answers there are all plain data."""
        return bool(self._expected) and _hashed(label) in self._expected


class Candidate:
    """A process that runs the candidate; everything it says is checked."""

    def __init__(self, process_id: int, requests: int, replies: int) -> None:
        self.process_id = process_id
        self.answers = AnswersSeen([])
        self._label, self._has_object = "", False  # of the answer that is being read
        self._requests, self._replies = requests, replies
        self._unread = b""
        self._is_closed = False
        self._proxies: dict[int, Proxy] = {}

    def ask(self, operation: str, *given: Any, **named: Any) -> Any:
        """Have something done with plain values and proxies; return a plain value or a proxy, or raise its error.

        Raises:
            NotData: an object would decide, where the reference solution answers with data.
        """
        deciding = given[: _DECIDING.get(operation, 0)]
        if any(type(one) is Proxy and self.answers.must_be_data(one._label) for one in deciding):
            raise NotData
        request = {"do": operation, "with": encode(list(given), self._number_of)}
        if named:
            request["named"] = encode(named, self._number_of)
        reply = self._exchange(request)
        if "error" in reply:
            raise self._error(reply["error"])
        if reply.get("stop") is True:
            raise _Exhausted
        self._label, self._has_object = _label(operation, given), False
        try:
            value = decode(reply["value"], self._proxy_of)
            for key, changed in reply.get("changed", ()):
                _replace_content(named[key] if isinstance(key, str) else given[key], decode(changed, self._proxy_of))
        except Exception as error:
            raise CandidateGone from error
        self.answers.note(self._label, self._has_object)
        return value

    def load(self) -> None:
        """Run the program. Raises what it raises."""
        reply = self._exchange({"do": "load"})
        if "error" in reply:
            raise self._error(reply["error"])

    def names(self, wanted: list[str]) -> dict[str, Any]:
        """The wanted names that the program defines, with a value or a proxy for each."""
        reply = self._exchange({"do": "names", "with": wanted})
        found = {}
        try:
            for name in (name for name in wanted if name in reply["value"]):
                self._label, self._has_object = name, False
                found[name] = decode(reply["value"][name], self._proxy_of)
                self.answers.note(name, self._has_object)
        except Exception as error:
            raise CandidateGone from error
        return found

    def close(self) -> None:
        """Stop speaking with it; what is still held of it can no longer be asked."""
        self._is_closed = True
        os.close(self._requests)
        os.close(self._replies)

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._is_closed:
            raise RuntimeError("the process of this object has ended")
        try:
            content = json.dumps(request).encode() + b"\n"
            while content:
                content = content[os.write(self._requests, content) :]
            while b"\n" not in self._unread:
                piece = os.read(self._replies, 1 << 16)
                if not piece or len(self._unread) > _MOST_REPLY_BYTES:
                    raise CandidateGone
                self._unread += piece
            line, _, self._unread = self._unread.partition(b"\n")
            reply = json.loads(line)
        except (OSError, ValueError, RecursionError) as error:
            raise CandidateGone from error
        if not isinstance(reply, dict):
            raise CandidateGone
        return reply

    def _number_of(self, value: Any) -> int:
        if type(value) is Proxy and value._candidate is self:
            return value._number
        raise TypeError(f"only plain values can be given to the program under test, not a {type(value).__name__}")

    def _proxy_of(self, number: int) -> "Proxy":
        if type(number) is not int:
            raise CandidateGone
        self._has_object = True
        if self.answers.must_be_data(self._label):  # not another object by the name of which it would be asked
            return Proxy(self, number, self._label)
        if number not in self._proxies:  # one for each object, so that ``is`` holds between two names of one object
            self._proxies[number] = Proxy(self, number, self._label)
        return self._proxies[number]

    def _error(self, described: Any) -> Exception:
        try:
            name, arguments = described
            kind = vars(builtins)[name]
            if issubclass(kind, Exception) and name not in _NOT_RAISED:
                error: Exception = kind(*decode(arguments, self._proxy_of))
                return error
        except Exception:  # not a built-in exception, or not one that takes these arguments
            return RuntimeError("the program under test raised an exception")
        return RuntimeError("the program under test tried to end its process or an iteration")


class _Exhausted(Exception):
    """The candidate's iterator has ended."""


@functools.cache
def _hashed(label: str) -> str:
    return hashlib.sha256(label.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _label(operation: str, given: tuple[Any, ...]) -> str:
    """What was asked: an attribute by its name alone, whatever it is of; what is inside an answer, as that answer."""
    target = given[0]._label if type(given[0]) is Proxy else ""
    label = f".{given[1]}" if operation == "getattr" else f"{target}()" if operation == "call" else target
    return label[:_MOST_LABEL]


def _replace_content(mine: Any, now: Any) -> None:
    if type(mine) is not type(now):
        raise TypeError("another type")
    if type(mine) in (list, bytearray):
        mine[:] = now
    elif type(mine) in (dict, set):
        mine.clear()
        mine.update(now)
    else:
        raise TypeError("cannot change")


class Proxy:
    """Stands for an object in the candidate's process: a function, a class, an instance, an iterator."""

    __slots__ = ("_candidate", "_label", "_number")
    _candidate: Candidate
    _number: int
    _label: str  # what was asked for when it came: a name, ".attribute", "f()" for what calling f gave

    def __init__(self, candidate: Candidate, number: int, label: str) -> None:
        object.__setattr__(self, "_candidate", candidate)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_label", label)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Call it there."""
        return self._candidate.ask("call", self, *given, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__name__":
            raise AttributeError(name)
        return self._candidate.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._candidate.ask("setattr", self, name, value)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is Proxy:
            raise TypeError("two objects of the program under test cannot be compared; compare their values")
        return False

    def __hash__(self) -> int:
        return hash(self._number)

    def __instancecheck__(self, instance: object) -> bool:
        return type(instance) is Proxy and self._candidate.ask("isinstance", instance, self) is True

    def __iter__(self) -> Iterator[Any]:
        iterator = self._candidate.ask("iter", self)
        while True:
            try:
                item = self._candidate.ask("next", iterator)
            except _Exhausted:
                return
            yield item

    def __next__(self) -> Any:
        try:
            return self._candidate.ask("next", self)
        except _Exhausted:
            raise StopIteration from None

    def __contains__(self, wanted: object) -> bool:
        return any(item is wanted or item == wanted for item in self)

    def __format__(self, form: str) -> str:
        return str(self._candidate.ask("format", self, form))


def _unary(operation: str) -> Callable[..., Any]:
    return lambda self, *given: self._candidate.ask(operation, self, *given)


def _between_two(operation: str) -> Callable[..., Any]:
    def method(self: Proxy, other: object) -> Any:
        return self._candidate.ask(operation, self, other) if type(other) is Proxy else NotImplemented

    return method


_UNARY = "len str repr bool int float index round abs getitem setitem delitem neg invert"
_BETWEEN_TWO = "lt le gt ge add sub mul truediv floordiv mod pow matmul and or xor"
for _name in _UNARY.split():
    setattr(Proxy, f"__{_name}__", _unary(_name))
for _name in _BETWEEN_TWO.split():
    setattr(Proxy, f"__{_name}__", _between_two(_name))
