"""What a verifier report card holds for, and its key: how answers are scored, the data, the base model, the prompt.

Whatever else a run sets (rounds, learning rate, limits, seeds, temperature, max answer tokens) leaves the key as it is.
The adapter that a run starts from is part of it, since it is that model's answers which a report shows; which confirmed
reports serve a run all the same is decided in ``service/reports.py``.
"""

import hashlib
import json
from importlib import metadata

from ratchet.config import Data, DatasetData, MathPairsData, ReasoningGymData, RunConfig
from ratchet.config.base import first_names
from ratchet.engine.policy import device_name, pinned_commit
from ratchet.engine.prepare import Prepared
from ratchet.models.model_files import SMOLLM2, ModelFiles
from ratchet.run.report_card import SAMPLED_WITH, CardSetup

_SCHEME = 1  # to be raised when what goes into a key changes
_KEY_DIGITS = 32
_VERSIONS = ("ratchet-rl", "torch", "transformers")


def made_with(prepared: Prepared) -> CardSetup:
    """What a report of this run is made with."""
    config = prepared.config
    if config.verifier is None:
        raise ValueError("the settings are not resolved")
    return CardSetup(
        verifier=config.verifier.model_dump(mode="json"),
        # Shaping is part of how an answer is scored; the reason for its weight is a remark.
        reward=config.reward.model_dump(mode="json", exclude={"format_reason"}),
        data=training_data_hash(prepared),
        model=_base_model(prepared.files, config),
        quantization=config.quantization,
        prompt=first_names("prompt", config.prompt.model_dump(mode="json")),
        start=config.start_from.sha256,
        model_name=config.model,
        source=_source_name(config.data),
        training_prompts=len(prepared.train),
        **{name: getattr(config.rl, name) for name in SAMPLED_WITH},
        seed=config.seed,
        device=device_name(config.device),
        versions={name: metadata.version(name) for name in _VERSIONS},
    )


def report_key(made: CardSetup) -> str:
    """Return the key under which a report is stored and confirmed: 32 hexadecimal digits."""
    parts = made.model_dump(include={"verifier", "reward", "data", "model", "quantization", "prompt"})
    if made.start:  # keys of the base model alone are as they always were
        parts["start"] = made.start
    text = json.dumps([_SCHEME, parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]


def set_up_key(made: CardSetup) -> str:
    """Return the key of the report on the base model alone: the same for all adapters that a run may start from."""
    return report_key(made.model_copy(update={"start": ""}))


def training_data_hash(prepared: Prepared) -> str:
    """Return a hash over what the training rows hold, in their order, whatever the tokenizer makes of it."""
    digest = hashlib.sha256()
    for encoded in prepared.train:
        prompt = encoded.prompt
        row = [prompt.id, prompt.messages, prompt.ground_truth, sorted(prompt.extras.items())]
        digest.update(json.dumps(row, default=str).encode())
    return f"sha256:{digest.hexdigest()}"


def _source_name(data: Data) -> str:
    """Where the rows come from as people call it: the source, and which dataset, path or task of it."""
    match data:
        case DatasetData():
            return f"{data.source} {data.name}@{data.version}"
        case ReasoningGymData():
            return f"{data.source} {data.task}"
        case MathPairsData():
            return data.source
    return f"{data.source} {data.path}"


def _base_model(files: ModelFiles, config: RunConfig) -> str:
    """Return the fingerprint of a model's files or the commit of a hub id.

    SmolLM2 goes by its name: what its package is converted to depends on the versions of the libraries that do it.
    """
    if files.name == SMOLLM2:
        return SMOLLM2
    if files.identity:
        return files.identity
    return pinned_commit(files.source, config.revision)
