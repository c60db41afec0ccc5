"""Verifiers: functions from an answer to a Grade. ``make_verifier`` builds the one that the settings describe.

Importing this package loads neither sympy nor torch.
"""

from collections.abc import Callable
from typing import Any

from ratchet.config import FinalNumberVerifier, MathPairsVerifier, MathVerifier, PythonVerifier, VerifierSettings
from ratchet.errors import InvalidSetting
from ratchet.verifiers.base import Verifier
from ratchet.verifiers.final_number import FinalNumber
from ratchet.verifiers.format import compile_pattern, earns_format
from ratchet.verifiers.math import Math
from ratchet.verifiers.math_pairs import MathPairs
from ratchet.verifiers.python_function import PythonFunction, identity

__all__ = ["Verifier", "compile_pattern", "earns_format", "identity", "make_verifier"]


def make_verifier(
    settings: VerifierSettings, *, prefer_answer_tag: bool = False, function: Callable[..., Any] | None = None
) -> Verifier:
    """Build the verifier of a run. Close it when the run ends.

    Args:
        settings: Which kind, and how it reads.
        prefer_answer_tag: Whether ``math`` reads inside the only answer tag when there is one; to be set where the tags
            bonus is on. ``math_pairs`` and ``final_number`` always do.
        function: The user's own function, for the kind ``python`` alone.

    Raises:
        InvalidSetting: The kind is ``python`` and there is no function that can be called, or the other way round.
    """
    if function is not None and not isinstance(settings, PythonVerifier):
        raise InvalidSetting(
            f"A verifier function was given, but the verifier's kind is {settings.kind}. Leave one of them out.",
            field="verifier.kind",
        )
    match settings:
        case MathPairsVerifier():
            return MathPairs(settings)
        case FinalNumberVerifier():
            return FinalNumber(settings)
        case MathVerifier():
            return Math(settings, prefer_answer_tag=prefer_answer_tag)
        case PythonVerifier():
            if function is None:
                raise InvalidSetting(
                    f"The verifier is the Python function {settings.name or 'of the run'}, which is not stored with "
                    "the run. Give it again with verifier=function.",
                    field="verifier",
                )
            return PythonFunction(settings, function)
