"""Verifiers: functions from an answer to a Grade. ``make_verifier`` builds the one that the settings describe.

Importing it loads neither sympy nor jsonschema nor torch, and the kinds themselves only when one of these names is
used: the processes that compare expressions start sooner without them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.verifiers.table import KINDS as KINDS
    from ratchet.verifiers.table import Shaping as Shaping
    from ratchet.verifiers.table import Tried as Tried
    from ratchet.verifiers.table import Verifier as Verifier
    from ratchet.verifiers.table import VerifierSettings as VerifierSettings
    from ratchet.verifiers.table import compile_pattern as compile_pattern
    from ratchet.verifiers.table import correctness_part as correctness_part
    from ratchet.verifiers.table import earns_format as earns_format
    from ratchet.verifiers.table import identity as identity
    from ratchet.verifiers.table import known_answers as known_answers
    from ratchet.verifiers.table import length_factor as length_factor
    from ratchet.verifiers.table import make_verifier as make_verifier
    from ratchet.verifiers.table import takes_function as takes_function

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
    if name not in __all__:
        raise AttributeError(f"module 'ratchet.verifiers' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("ratchet.verifiers.table"), name)
