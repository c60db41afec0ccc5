"""Models that also read images, as text models: their language model loads by itself, and the rest stays on disk.

Such a checkpoint holds a language model under a name of its own beside a vision tower and a projector. Only the names
differ from those of the language model alone, so its weights load into that once the names are mapped. Where one is
missing afterwards the model is refused like any other incomplete one (``policy.py``).
"""

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

from ratchet.engine.third_party import from_files
from ratchet.errors import ModelUnavailable

# From the names of checkpoints to those of the language model alone: ``language_model.model.``, as most wrote it
# before transformers 4.52, ``model.language_model.``, as they write it now, and the head beside either.
_NAMES = {
    r"^(?:model\.)?language_model\.lm_head\.": "lm_head.",
    r"^(?:model\.)?language_model\.(?:model\.)?": "model.",
}


def text_keywords(name: str, source: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """What ``from_pretrained`` needs to load the language model of a checkpoint with a vision tower.

    Raises:
        ModelUnavailable: its language model is of no kind that exists by itself.
    """
    config = from_files(AutoConfig, source, **keywords).get_text_config(decoder=True)
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelUnavailable(
            f"{name} is a vision model whose text part does not load as a language model ({config.model_type}). Choose "
            "a text model."
        )
    return {"config": config, "key_mapping": _NAMES}
