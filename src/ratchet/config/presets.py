"""Settings that go together under a name: those of two hosted products, for whoever comes from there.

What is given besides wins over a preset; a preset wins over the defaults.
"""

from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from ratchet.config.rl import RlSettings

PresetName = Literal["hosted_steps", "hosted_rounds"]


class Preset(NamedTuple):
    """What a preset sets: some of ``rl``, and the learning rate."""

    rl: dict[str, Any]
    learning_rate: float


PRESETS: dict[PresetName, Preset] = {
    "hosted_steps": Preset(
        {"prompts_per_round": 1, "answers_per_prompt": 8, "max_answer_tokens": 256, "max_steps": 100}, 1e-6
    ),
    "hosted_rounds": Preset(
        {"rounds": 20, "prompts_per_round": 64, "answers_per_prompt": 8, "max_answer_tokens": 512}, 5e-6
    ),
}
# Two ways to say how long a run is: whoever gives one of them has given both.
_LENGTH = {"rounds", "max_steps"}


def laid_under(preset: Preset, rl: RlSettings) -> RlSettings:
    """Return how a round samples and learns with a preset under what was given.

    Raises:
        ValueError: the two do not go together.
    """
    given = {name: getattr(rl, name) for name in rl.model_fields_set}
    is_length_given = "rounds" in given or given.get("max_steps") is not None
    laid = {name: value for name, value in preset.rl.items() if not (is_length_given and name in _LENGTH)}
    try:
        return RlSettings.model_validate(laid | given)
    except ValidationError as error:  # from rules between settings: each of them alone is within its limits
        raise ValueError(str(error.errors()[0]["ctx"]["error"])) from error
