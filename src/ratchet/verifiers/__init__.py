"""Verifiers: functions from an answer to a Grade. ``make_verifier`` builds the one that the settings describe.

Importing it loads neither sympy nor jsonschema nor torch. A name's module is imported when the name is first used: the
processes that compare expressions start sooner without the kinds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.verifiers.base import Tried, Verifier
    from ratchet.verifiers.composite import correctness_part
    from ratchet.verifiers.format import compile_pattern, earns_format
    from ratchet.verifiers.python_function import identity
    from ratchet.verifiers.reward import Shaping, length_factor
    from ratchet.verifiers.table import KINDS, VerifierSettings, known_answers, make_verifier, takes_function

_MODULES = {
    "base": ("Tried", "Verifier"),
    "composite": ("correctness_part",),
    "format": ("compile_pattern", "earns_format"),
    "python_function": ("identity",),
    "reward": ("Shaping", "length_factor"),
    "table": ("KINDS", "VerifierSettings", "known_answers", "make_verifier", "takes_function"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "KINDS",
    "Shaping",
    "Tried",
    "Verifier",
    "VerifierSettings",
    "compile_pattern",
    "correctness_part",
    "earns_format",
    "identity",
    "known_answers",
    "length_factor",
    "make_verifier",
    "takes_function",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"ratchet.verifiers.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ratchet.verifiers' has no attribute {name!r}")
