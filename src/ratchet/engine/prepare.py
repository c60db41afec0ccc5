"""What a run has before its weights load: the checks of ``ratchet.readiness``, with the model's own tokenizer.

Reads rows and the tokenizer, never the weights. What it returns is all that the rounds need beside the policy.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ratchet.config import RunConfig
from ratchet.engine.chat import Chat
from ratchet.engine.policy import chosen_device, load_chat
from ratchet.models.model_files import ModelFiles, experts_in, find, model_config, towers_in
from ratchet.readiness import (
    Faults,
    Rows,
    advice,
    fit,
    left_out,
    open_rows,
    preset_for_experts,
    refuse_experts,
    window_of,
)
from ratchet.readiness.device_checks import (
    refuse_impossible_quantization,
    refuse_missing_sampler,
    refuse_missing_trackers,
    refuse_missing_trl,
)
from ratchet.readiness.step_counts import with_rounds
from ratchet.run.records import EncodedPrompt
from ratchet.verifiers.base import Verifier


@dataclass(frozen=True)
class Prepared:
    """A run that has passed its checks. ``config`` is resolved, system prompt and few-shot examples included.

    ``watch`` is the watch metric, None without one. Whoever has the object closes it.
    """

    config: RunConfig
    verifier: Verifier
    chat: Chat
    files: ModelFiles
    train: tuple[EncodedPrompt, ...]
    validation: tuple[EncodedPrompt, ...]
    heldout: tuple[EncodedPrompt, ...]
    notes: tuple[str, ...]
    watch: Verifier | None = None

    def close(self) -> None:
        """Release what verifier and watch metric hold."""
        self.verifier.close()
        if self.watch:
            self.watch.close()


def prepare(config: RunConfig, function: Callable[..., Any] | None = None, rows: Rows | None = None) -> Prepared:
    """Check a run and make it ready to start.

    Args:
        config: Settings as given or as stored.
        function: The user's own verifier, for ``verifier.kind`` python.
        rows: What the checks before this one opened for the same settings; opened here otherwise. Their verifier is
            the prepared run's, as is their watch metric, and both are closed if this fails.

    Raises:
        InvalidSetting, IncompatibleData, MetricRefused, SandboxUnavailable, ModelUnavailable, NotReady: what is wrong,
            before any weights load.
    """
    faults = Faults()
    try:
        device = ""
        with faults.gathered():
            device = chosen_device(config.device).type
        with faults.gathered():
            refuse_missing_sampler(config.sampler)
        with faults.gathered():
            refuse_impossible_quantization(config.quantization, device)
        with faults.gathered():
            refuse_missing_trl(config.objective)
        with faults.gathered():
            refuse_missing_trackers(config.trackers)
        if rows is None:
            rows = open_rows(_with_loss(config, faults), function, faults)
        faults.raise_any()
        if rows is None:
            raise AssertionError("rows that cannot be opened leave a fault")
        chat, files = load_chat(rows.config)
        settings = model_config(files, config.revision)
        with faults.gathered():
            refuse_experts(experts_in(settings), rows.config.ratio_loss)
        with faults.gathered():
            window = window_of(rows.config, settings, chat.prompts.window)
            fitted = fit(rows.config, rows.dataset, chat.prompts, window, faults)
            config, steps = with_rounds(rows.config, len(fitted.train))
        faults.raise_any()
    except BaseException:
        if rows:
            rows.close()
        raise
    absent = left_out(files.name, towers_in(files.name, settings))
    notes = (*rows.notes, *absent, *fitted.notes, *steps, *advice(config, chat.prompts, len(fitted.train), device))
    splits = (fitted.train, fitted.validation, fitted.heldout)
    return Prepared(config, rows.verifier, chat, files, *splits, notes, rows.watch)


def _with_loss(config: RunConfig, faults: Faults) -> RunConfig:
    """Return the settings with the loss of a mixture-of-experts model, where they name none."""
    with faults.gathered():
        return preset_for_experts(config, experts_in(model_config(find(config.model), config.revision)))
    return config


def data_hash(prepared: Prepared) -> str:
    """Return a hash over each prompt's tokens, ground truth, columns and given answers: edited rows change it."""
    digest = hashlib.sha256()
    for encoded in (*prepared.train, *prepared.validation, *prepared.heldout):
        row: list[Any] = [encoded.prompt.id, encoded.token_ids, encoded.prompt.ground_truth]
        if encoded.prompt.extras:  # a row's own tools and schema decide its grade
            row.append(dict(encoded.prompt.extras))
        row += [ids for ids in (encoded.demonstration_ids, encoded.rejected_ids) if ids]
        digest.update(json.dumps(row, default=str).encode())
    return f"sha256:{digest.hexdigest()}"
