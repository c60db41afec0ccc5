"""Log-probabilities of answer tokens under the policy: the trainer's side, with gradients.

Dimensions: T tokens of a row, N answer tokens of a row, V vocabulary. All logs are natural.
"""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from ratchet.engine.distribution import scaled_logits, taken_logprobs
from ratchet.engine.memory import is_out_of_memory, out_of_memory_as
from ratchet.engine.packing import PackedAnswer, PackedRow, pack
from ratchet.engine.policy import Policy

log = logging.getLogger(__name__)

# Packed and plain log-probabilities may differ by rounding. A mask that is not honoured moves them by far more.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9, torch.bfloat16: 0.25, torch.float16: 0.1}


def row_logits(policy: Policy, row: PackedRow) -> Tensor:
    """Run the model over one row; return the logits that predict its answer tokens, (N, V)."""
    mask = None if row.is_plain else row.attention_mask(policy.model.dtype)
    result = policy.model(
        input_ids=row.input_ids[None],
        position_ids=row.position_ids[None],
        attention_mask=mask,
        use_cache=False,
        # Several answers share the last prompt token: its logits are computed once for each of them.
        logits_to_keep=row.sources,
    )
    logits: Tensor = result.logits[0]
    return logits


def answer_logprobs(policy: Policy, row: PackedRow, temperature: float) -> Tensor:
    """Return the log-probabilities of a row's answer tokens, (N,), scaled by the temperature, nothing truncated."""
    return taken_logprobs(scaled_logits(row_logits(policy, row), temperature), row.targets)


def can_pack(policy: Policy, answers: Sequence[PackedAnswer]) -> bool:
    """Tell whether packed rows give this architecture's plain log-probabilities, by trying it on some answers.

    Layers that look back over a window only, or keep a state, do not follow a mask of ours in rows longer than the
    answers tried, so they are never packed. Nor are models that refuse such a mask.

    Raises:
        OutOfMemory: with stage "update".
    """
    text = policy.model.config.get_text_config(decoder=True)
    layer_types = set(getattr(text, "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"} or getattr(text, "sliding_window", None):
        log.info("update rows=plain reason=window_or_state")
        return False
    with torch.no_grad(), out_of_memory_as("update"):
        plain = [answer_logprobs(policy, row, 1.0) for row in _rows(policy, answers, plain=True)]
        try:
            packed = [answer_logprobs(policy, row, 1.0) for row in _rows(policy, answers, plain=False)]
        except (RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            log.info("update rows=plain reason=mask_refused error=%s", type(error).__name__)
            return False
    gap = float((torch.cat(packed) - torch.cat(plain)).abs().max())
    fits = gap <= _TOLERANCE[policy.model.dtype]
    log.info("update rows=%s self_check_gap=%.2e", "packed" if fits else "plain", gap)
    return fits


def _rows(policy: Policy, answers: Sequence[PackedAnswer], *, plain: bool) -> list[PackedRow]:
    return pack(answers, 1 << 30, device=policy.device, plain=plain)
