"""Verifiers: functions from an answer to a Grade. ``make_verifier`` builds the one that the settings describe.

Importing this package loads neither sympy nor torch.
"""

from collections.abc import Callable
from typing import Any

from ratchet.config import (
    ClassificationVerifier,
    CodeVerifier,
    CompositeVerifier,
    CustomVerifier,
    FinalNumberVerifier,
    MathPairsVerifier,
    MathVerifier,
    NumericVerifier,
    PythonVerifier,
    QaVerifier,
    ReasoningGymVerifier,
    StructuredJsonVerifier,
    ToolCallVerifier,
    VerifierSettings,
)
from ratchet.errors import InvalidSetting
from ratchet.verifiers.base import Tried, Verifier
from ratchet.verifiers.classification import Classification
from ratchet.verifiers.code import Code
from ratchet.verifiers.composite import Composite, Part
from ratchet.verifiers.custom import Custom
from ratchet.verifiers.final_number import FinalNumber
from ratchet.verifiers.format import compile_pattern, earns_format
from ratchet.verifiers.math import Math
from ratchet.verifiers.math_pairs import MathPairs
from ratchet.verifiers.metrics import METRICS
from ratchet.verifiers.numeric import Numeric
from ratchet.verifiers.python_function import PythonFunction, identity
from ratchet.verifiers.qa import Qa
from ratchet.verifiers.reasoning_gym import ReasoningGym
from ratchet.verifiers.reward import Shaping, length_factor

__all__ = [
    "METRICS",
    "Shaping",
    "Tried",
    "Verifier",
    "compile_pattern",
    "earns_format",
    "identity",
    "length_factor",
    "make_verifier",
    "takes_function",
]


def make_verifier(
    settings: VerifierSettings, *, prefer_answer_tag: bool = False, function: Callable[..., Any] | None = None
) -> Verifier:
    """Build the verifier of a run. Close it when the run ends.

    Args:
        settings: Which kind, and how it reads.
        prefer_answer_tag: Whether to read inside the only answer tag when there is one; to be set where the tags bonus
            is on. ``math_pairs`` and ``final_number`` always do.
        function: The user's own function, for the kind ``python`` alone, also as a part of a composite.

    Raises:
        InvalidSetting: A schema cannot be used; the metric's source of the kind ``custom`` is missing; or the kind is
            ``python`` and there is no function that can be called, or the other way round.
        SandboxUnavailable: The kind is ``code``, and this machine cannot run programs safely.
    """
    if function is not None and not takes_function(settings):
        raise InvalidSetting(
            f"A verifier function was given, but the verifier's kind is {settings.kind}. Leave one of them out.",
            field="verifier.kind",
        )
    return _made(settings, prefer_answer_tag, function)


def takes_function(settings: VerifierSettings) -> bool:
    """Tell whether a verifier is, or has as a part, a function of the user's own."""
    if isinstance(settings, CompositeVerifier):
        return any(isinstance(part.verifier, PythonVerifier) for part in settings.parts)
    return isinstance(settings, PythonVerifier)


def _made(settings: VerifierSettings, prefer_answer_tag: bool, function: Callable[..., Any] | None) -> Verifier:
    """Build one verifier of any kind."""
    match settings:
        case CompositeVerifier():
            return _composite(settings, prefer_answer_tag, function)
        case PythonVerifier():
            return _python(settings, prefer_answer_tag, function)
        case MathPairsVerifier():
            return MathPairs(settings)
        case FinalNumberVerifier():
            return FinalNumber(settings)
        case MathVerifier():
            return Math(settings, prefer_answer_tag=prefer_answer_tag)
        case ReasoningGymVerifier():
            return ReasoningGym(settings)
        case CodeVerifier():
            return Code(settings, prefer_answer_tag=prefer_answer_tag)
        case CustomVerifier():
            return Custom(settings, prefer_answer_tag=prefer_answer_tag)
        case _:
            return _text_verifier(settings, prefer_answer_tag)


def _text_verifier(
    settings: NumericVerifier | QaVerifier | ClassificationVerifier | StructuredJsonVerifier | ToolCallVerifier,
    prefer_answer_tag: bool,
) -> Verifier:
    """Build a verifier that takes the text it reads as a whole."""
    match settings:
        case NumericVerifier():
            return Numeric(settings, prefer_answer_tag=prefer_answer_tag)
        case QaVerifier():
            return Qa(settings, prefer_answer_tag=prefer_answer_tag)
        case ClassificationVerifier():
            return Classification(settings, prefer_answer_tag=prefer_answer_tag)
        case StructuredJsonVerifier():
            from ratchet.verifiers.structured_json import StructuredJson  # here: jsonschema takes a while to load

            return StructuredJson(settings, prefer_answer_tag=prefer_answer_tag)
        case ToolCallVerifier():
            from ratchet.verifiers.tool_call import ToolCall  # here, likewise

            return ToolCall(settings, prefer_answer_tag=prefer_answer_tag)


def _python(settings: PythonVerifier, prefer_answer_tag: bool, function: Callable[..., Any] | None) -> PythonFunction:
    if function is None:
        raise InvalidSetting(
            f"The verifier is the Python function {settings.name or 'of the run'}, which is not stored with "
            "the run. Give it again with verifier=function.",
            field="verifier",
        )
    return PythonFunction(settings, function, prefer_answer_tag=prefer_answer_tag)


def _composite(settings: CompositeVerifier, prefer_answer_tag: bool, function: Callable[..., Any] | None) -> Composite:
    parts = []
    for part in settings.parts:
        of_part = part.verifier.model_copy(update={"read": part.verifier.read or settings.read})
        parts.append(Part(of_part.kind, _made(of_part, prefer_answer_tag, function), part.weight))
    return Composite(parts, correctness_from=settings.correctness_from)
