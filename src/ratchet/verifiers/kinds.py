"""The table of verifier kinds: a line for each. ``composite``, which is made of the others, joins it in the package.

Settings name a kind; the classes of settings together are the union that a run's ``verifier`` is one of.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from ratchet.verifiers import (
    classification,
    code,
    custom,
    final_number,
    math,
    math_pairs,
    numeric,
    python_function,
    qa,
    reasoning_gym,
    structured_json,
    tool_call,
)
from ratchet.verifiers.base import Kind
from ratchet.verifiers.settings import KindSettings

# In the order in which they are shown.
PLAIN_KINDS = {
    kind.name: kind
    for kind in (
        math_pairs.KIND,
        final_number.KIND,
        math.KIND,
        numeric.KIND,
        qa.KIND,
        classification.KIND,
        structured_json.KIND,
        tool_call.KIND,
        code.KIND,
        custom.KIND,
        reasoning_gym.KIND,
        python_function.KIND,
    )
}


def settings_of(kinds: Iterable[Kind]) -> Any:
    """Build the type of the settings of one of several kinds, told apart by ``kind``."""
    return Annotated[Union[tuple(kind.settings for kind in kinds)], Field(discriminator="kind")]  # noqa: UP007


if TYPE_CHECKING:
    PlainVerifierSettings = KindSettings  # pydantic takes the union, which no type checker can read off a table
else:
    PlainVerifierSettings = settings_of(PLAIN_KINDS.values())
