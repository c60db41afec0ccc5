"""Every kind of verifier by its name, and what is made by kind."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.errors import InvalidSetting
from ratchet.verifiers import composite
from ratchet.verifiers.base import Building, KnownAnswers, Prompt, Verifier
from ratchet.verifiers.composite import CompositeVerifier
from ratchet.verifiers.kinds import PLAIN_KINDS, settings_of
from ratchet.verifiers.python_function import PythonVerifier
from ratchet.verifiers.settings import KindSettings

KINDS = {**PLAIN_KINDS, composite.KIND.name: composite.KIND}

if TYPE_CHECKING:
    VerifierSettings = KindSettings
else:
    VerifierSettings = settings_of(KINDS.values())


def make_verifier(
    settings: KindSettings, *, prefer_answer_tag: bool = False, function: Callable[..., Any] | None = None
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
    return KINDS[settings.kind].build(settings, Building(prefer_answer_tag, function))


def takes_function(settings: KindSettings | None) -> bool:
    """Whether a verifier is, or has as a part, a function of the user's own."""
    if isinstance(settings, CompositeVerifier):
        return any(isinstance(part.verifier, PythonVerifier) for part in settings.parts)
    return isinstance(settings, PythonVerifier)


def known_answers(settings: KindSettings, prompt: Prompt, others: Sequence[str]) -> KnownAnswers:
    """Answers to a prompt whose verdict is known.

    Args:
        settings: The verifier's.
        prompt: With its ground truth.
        others: Ground truths of other prompts, to make wrong answers of.
    """
    return KINDS[settings.kind].known_answers(settings, prompt, others)
