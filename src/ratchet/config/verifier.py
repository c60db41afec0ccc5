"""How an answer is checked: one class per kind of verifier."""

from typing import Annotated, Literal

from pydantic import Field

from ratchet.config.base import Settings, setting

Read = Literal["whole", "after_reasoning", "answer_tag"]

_KIND_LABEL = "Verifier"
_KIND_HELP = "How an answer is checked: math_pairs, final_number, math, or python for a function of your own."


class _Reading(Settings):
    """What every verifier has in common."""

    read: Read | None = setting(
        None,
        label="Read",
        help="Which part of an answer is checked: whole; after_reasoning, the text after the last </think>; or "
        "answer_tag, the text inside the only <answer> tag. An answer without that part is unparseable. Empty takes "
        "whole.",
    )


class MathPairsVerifier(_Reading):
    """The last number must equal the product of the sums."""

    kind: Literal["math_pairs"] = setting("math_pairs", label=_KIND_LABEL, help=_KIND_HELP)


class FinalNumberVerifier(_Reading):
    """The last number of the answer must equal the reference."""

    kind: Literal["final_number"] = setting("final_number", label=_KIND_LABEL, help=_KIND_HELP)


class MathVerifier(_Reading):
    """The boxed or last expression must equal the reference symbolically."""

    kind: Literal["math"] = setting("math", label=_KIND_LABEL, help=_KIND_HELP)
    require_boxed: bool | None = setting(
        None,
        label="Require a box",
        help="Whether an answer without \\boxed{} is unparseable. Empty: yes for boxed datasets, else no.",
    )
    limit_seconds: float = setting(
        5.0,
        gt=0,
        le=60,
        label="Limit per answer",
        unit="seconds",
        help="An answer whose check takes longer is counted as failed; the checking process is killed.",
    )


class PythonVerifier(_Reading):
    """A function of the user's own, given to ``ratchet.train`` in Python; runs in process and is trusted.

    Only its identity is stored: such a run is resumed with ``ratchet.resume(folder, verifier=function)``.
    """

    kind: Literal["python"] = setting("python", label=_KIND_LABEL, help=_KIND_HELP)
    module: str = setting("", label="Module", help="Module that holds the function.")
    name: str = setting("", label="Function", help="Name of the function.")
    source_hash: str = setting("", label="Source hash", help="SHA-256 of the function's source text.")


VerifierSettings = Annotated[
    MathPairsVerifier | FinalNumberVerifier | MathVerifier | PythonVerifier, Field(discriminator="kind")
]
