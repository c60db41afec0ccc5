"""Plain values as JSON, between the process of the tests and that of the candidate. Standard library only.

Runs inside a sandbox. What is plain: None, bool, int, float, complex, str, bytes, list, tuple, set, dict, range, slice
and what the modules collections, decimal, fractions and datetime make of them. Whoever reads builds such values with
the constructors of its own process, so that nothing of the writer's comes along: no method, no ``__eq__``, no
subclass. Every other object crosses as a number that stands for it (a handle).
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

_SMALL = 1 << 63  # larger ones are written in base 16: base 10 takes quadratic time, and Python limits its digits

# Type, by module and name -> what to give to its constructor.
_ARGUMENTS: dict[str, Callable[[Any], list[Any]]] = {
    "builtins.tuple": lambda value: [list(value)],
    "builtins.set": lambda value: [list(value)],
    "builtins.frozenset": lambda value: [list(value)],
    "builtins.dict": lambda value: [[[key, value[key]] for key in value]],
    "builtins.bytes": lambda value: [list(value)],
    "builtins.bytearray": lambda value: [list(value)],
    "builtins.complex": lambda value: [value.real, value.imag],
    "builtins.range": lambda value: [value.start, value.stop, value.step],
    "builtins.slice": lambda value: [value.start, value.stop, value.step],
    "collections.Counter": lambda value: [dict(value)],
    "collections.OrderedDict": lambda value: [[[key, value[key]] for key in value]],
    "collections.defaultdict": lambda value: [None, dict(value)],
    "collections.deque": lambda value: [list(value), value.maxlen],
    "decimal.Decimal": lambda value: [str(value)],
    "fractions.Fraction": lambda value: [value.numerator, value.denominator],
    "datetime.date": lambda value: [value.year, value.month, value.day],
    "datetime.timedelta": lambda value: [value.days, value.seconds, value.microseconds],
    "datetime.datetime": lambda value: [*value.timetuple()[:6], value.microsecond],
    "datetime.time": lambda value: [value.hour, value.minute, value.second, value.microsecond],
}
# An instance of a class derived from one of these crosses as the value it is based on: a named tuple as a tuple.
_BASES: tuple[type[Any], ...] = (int, float, str, bytes, tuple, list, dict, set, frozenset)


def encode(value: Any, handle: Callable[[Any], int]) -> Any:
    """What ``json.dumps`` takes. ``handle`` turns an object that is not plain into a number, or raises."""
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value
    if kind is int:
        return value if -_SMALL < value < _SMALL else {"int": hex(value)}
    if kind is list:
        return [encode(item, handle) for item in value]
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _ARGUMENTS and getattr(value, "tzinfo", None) is None:
        return {"make": name, "of": [encode(item, handle) for item in _ARGUMENTS[name](value)]}
    for base in _BASES:
        if isinstance(value, base) and not _is_enumeration(kind):
            return encode(base(value), handle)
    return {"handle": handle(value)}


def decode(data: Any, from_handle: Callable[[int], Any]) -> Any:
    """The value; ``from_handle`` turns a number into what stands for the object here.

    Raises:
        Exception: of any kind, when the data does not describe a plain value.
    """
    if isinstance(data, list):
        return [decode(item, from_handle) for item in data]
    if not isinstance(data, dict):
        return data
    if "int" in data:
        return int(data["int"], 16)
    if "handle" in data:
        return from_handle(data["handle"])
    if data["make"] not in _ARGUMENTS:
        raise ValueError("not a plain type")
    module, _, name = data["make"].rpartition(".")
    return getattr(import_module(module), name)(*decode(data["of"], from_handle))


def _is_enumeration(kind: type) -> bool:
    return any(base.__module__ == "enum" for base in kind.__mro__)
