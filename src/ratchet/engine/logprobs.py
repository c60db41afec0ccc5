"""Log-probabilities of answer tokens under the policy: the trainer's side, with gradients.

Left out: a (N, V) tensor of logits. ``Head`` computes them for a few tokens at a time and drops them. A taken token's
log-probability is one number, so its gradient is one vector of the hidden width: it is computed beside it, while the
logits are there, and backward only scales it. (Fused linear cross-entropy kernels rest on the same: Hsu et al. 2024,
arXiv:2410.10989, section 3.2.)

Rows go through our own decoder, through transformers packed under a mask of ours, or through transformers plain; and
the output layer is computed in chunks or whole. At the start of a run each way is held against the plain and whole
one, which is always right, and the first that agrees is taken (``chosen_forward``).

Dimensions: T tokens of a row, N answer tokens of a row, U of the answers that differ, H hidden width, V vocabulary. All
logs are natural.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ratchet.engine.decoder.attention import layout
from ratchet.engine.decoder.layer import Pass, last_norm, run_layers
from ratchet.engine.decoder.weights import product
from ratchet.engine.distribution import SamplingSettings, sampling_logprobs, scaled_logits, taken_logprobs
from ratchet.engine.memory import is_out_of_memory, out_of_memory_as
from ratchet.engine.packing import PackedAnswer, PackedRow, pack
from ratchet.engine.policy import Policy

# Numbers of a chunk of logits: few enough to stay in a processor's cache, enough for fast products.
_CHUNK_NUMBERS = 6 << 20


class Head:
    """The output layer: weight (V, H), bias (V,) or None, both frozen."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight.detach()
        self.bias = None if bias is None else bias.detach()

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (n, V) logits of (n, H) hidden states."""
        logits = product(hidden, self.weight)
        return logits if self.bias is None else logits.add_(self.bias)

    def logprobs(self, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
        """Return log-probabilities (N,) of target tokens (N,) under the temperature alone; gradients flow to hidden."""
        if torch.is_grad_enabled() and hidden.requires_grad:
            # torch's own functions carry no types.
            result: Tensor = _TakenLogprobs.apply(hidden, self, targets, temperature)  # type: ignore[no-untyped-call]
            return result
        return _taken(self, hidden.detach(), targets, temperature, None)

    def sampling_logprobs(self, hidden: Tensor, targets: Tensor, settings: SamplingSettings) -> Tensor:
        """Return log-probabilities (N,) of target tokens under the sampling distribution, without gradients."""
        with torch.no_grad():
            parts = [
                sampling_logprobs(self.logits(hidden[start:end]), targets[start:end], settings)
                for start in range(0, len(hidden), self.chunk_rows)
                for end in [start + self.chunk_rows]
            ]
        return torch.cat(parts)

    @property
    def chunk_rows(self) -> int:
        """For how many tokens logits are there at a time."""
        return max(1, _CHUNK_NUMBERS // self.weight.shape[0])


class _TakenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Head, targets: Tensor, temperature: float) -> Tensor:
        slopes = torch.empty_like(hidden)
        logprobs = _taken(head, hidden, targets, temperature, slopes)
        ctx.save_for_backward(slopes)
        return logprobs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (slopes,) = ctx.saved_tensors
        return slopes * gradients[0].to(slopes.dtype)[:, None], None, None, None


def _taken(head: Head, hidden: Tensor, targets: Tensor, temperature: float, slopes: Tensor | None) -> Tensor:
    """Return (N,) log-probabilities; put their derivatives by the hidden states into ``slopes`` (N, H) if given.

    With logits z = W h + b and probabilities p = softmax(z / T): d log p_t / d h = (W_t - sum_v p_v W_v) / T.
    """
    rows = head.chunk_rows
    results = []
    for start in range(0, len(hidden), rows):
        chunk, target = hidden[start : start + rows], targets[start : start + rows, None]
        logits = head.logits(chunk)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if temperature != 1.0:
            logits = logits.div_(temperature)
        taken = logits.gather(1, target)
        largest = logits.amax(dim=1, keepdim=True)
        probabilities = logits.softmax(dim=1)
        # The largest logit's probability is 1 over the sum of exponentials: torch's logsumexp takes ten times as long.
        logsumexp = largest - probabilities.amax(dim=1, keepdim=True).log_()
        results.append((taken - logsumexp)[:, 0])
        if slopes is not None:
            mean = product(probabilities.to(head.weight.dtype), head.weight.t())
            torch.sub(head.weight[target[:, 0]], mean, out=slopes[start : start + rows])
    if slopes is not None and temperature != 1.0:
        slopes.div_(temperature)
    return torch.cat(results)


log = logging.getLogger(__name__)

# How far log-probabilities (largest difference; the mean one for the two short formats, whose largest is chance) and
# gradients (length of the difference over the length) may be from the plain way's: rounding. A mask that is not
# honoured moves both by far more.
_TOLERANCE = {
    torch.float64: (1e-9, 1e-7),
    torch.float32: (1e-3, 1e-3),
    torch.bfloat16: (0.05, 0.1),
    torch.float16: (0.02, 0.05),
}


@dataclass(frozen=True)
class RowForward:
    """A way to compute rows. ``PLAIN`` is always right: one answer a row, all logits at once.

    With ``recompute`` our own decoder keeps each layer's input alone and computes the layer again in the backward pass;
    transformers' layers are set to it once (``memory.py``).
    """

    rows: Literal["decoder", "packed", "plain"]
    head: Literal["chunked", "whole"]
    recompute: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether each answer has a row of its own."""
        return self.rows == "plain"


PLAIN = RowForward("plain", "whole")


def answer_logprobs(policy: Policy, row: PackedRow, temperature: float, forward: RowForward) -> Tensor:
    """Return the log-probabilities of a row's answer tokens, (N,), scaled by the temperature, nothing truncated."""
    if forward.head == "chunked":
        logprobs = policy_head(policy).logprobs(row_states(policy, row, forward), row.targets, temperature)
    else:
        logprobs = taken_logprobs(scaled_logits(row_logits(policy, row), temperature), row.targets)
    return logprobs.index_select(0, row.places)


def drawn_logprobs(policy: Policy, row: PackedRow, settings: SamplingSettings, forward: RowForward) -> Tensor:
    """Return the answer tokens' log-probabilities under the sampling distribution, (N,), without gradients."""
    with torch.no_grad():
        if forward.head == "chunked":
            logprobs = policy_head(policy).sampling_logprobs(row_states(policy, row, forward), row.targets, settings)
        else:
            logprobs = sampling_logprobs(row_logits(policy, row), row.targets, settings)
        return logprobs.index_select(0, row.places)


def row_logits(policy: Policy, row: PackedRow) -> Tensor:
    """Run transformers' model over one row; return the logits that predict its answer tokens, (U, V)."""
    # Several answers share the last prompt token: its logits are computed once for each of them.
    result = policy.model(**_inputs(policy, row), logits_to_keep=row.sources)
    logits: Tensor = result.logits[0]
    return logits


def row_states(policy: Policy, row: PackedRow, forward: RowForward) -> Tensor:
    """What the output layer is given for a row's answer tokens, (U, H)."""
    if forward.rows != "decoder":
        trunk = policy.model.get_base_model().base_model
        states: Tensor = trunk(**_inputs(policy, row)).last_hidden_state[0]
        return states.index_select(0, row.sources)
    weights = policy.decoder
    if weights is None:
        raise ValueError("this model has no decoder of ours")
    cosine, sine = weights.angles(row.position_ids)
    at = layout(row, weights.heads, weights.embedding.dtype)
    run = Pass(weights, at, cosine, sine, with_adapter=not policy.is_base_alone, recompute=forward.recompute)
    return last_norm(run_layers(weights.embedding[row.input_ids], run).index_select(0, row.sources), weights)


def policy_head(policy: Policy) -> Head:
    """Return the model's output layer."""
    layer = policy.model.get_output_embeddings()
    return Head(layer.weight, getattr(layer, "bias", None))


def _inputs(policy: Policy, row: PackedRow) -> dict[str, object]:
    return {
        "input_ids": row.input_ids[None],
        "position_ids": row.position_ids[None],
        "attention_mask": None if row.is_plain else row.attention_mask(policy.model.dtype),
        "use_cache": False,
    }


def chosen_forward(
    policy: Policy, *trials: Sequence[PackedAnswer], tell: Callable[[str], None] = log.info
) -> RowForward:
    """Return the fastest way whose log-probabilities and gradients are those of the plain one, on each trial's answers.

    ``tell`` is given a line of numbers for each way that was tried.

    Layers that look back over a window only, or keep a state, do not follow a mask of ours in rows longer than the
    answers tried, so they are never packed. Nor are models that refuse such a mask.

    Raises:
        OutOfMemory: with stage "update".
    """
    with out_of_memory_as("update"), policy.with_working_adapter():
        expected = _tried(policy, trials, PLAIN)
        for way in _ways(policy, tell):
            try:
                found = _tried(policy, trials, way)
            except (RuntimeError, TypeError, ValueError, AttributeError) as error:
                if is_out_of_memory(error):
                    raise
                tell(f"update rows={way.rows} head={way.head} refused error={type(error).__name__}")
                continue
            gaps = _gaps(found, expected)
            tell(f"update rows={way.rows} head={way.head} gap={gaps[0]:.2e} gradient_gap={gaps[1]:.2e}")
            limits = _TOLERANCE[policy.model.dtype]
            if gaps[0] <= limits[0] and gaps[1] <= limits[1]:
                return way
    return PLAIN


def _ways(policy: Policy, tell: Callable[[str], None]) -> Iterator[RowForward]:
    """Yield the ways to try, fastest first."""
    if policy.decoder is not None:
        yield RowForward("decoder", "chunked")
    text = policy.model.config.get_text_config(decoder=True)
    layer_types = set(getattr(text, "layer_types", None) or ["full_attention"])
    if layer_types == {"full_attention"} and not getattr(text, "sliding_window", None):
        yield RowForward("packed", "chunked")
        yield RowForward("packed", "whole")
    else:
        tell("update rows=plain reason=window_or_state")
    yield RowForward("plain", "chunked")


def _tried(policy: Policy, trials: Sequence[Sequence[PackedAnswer]], way: RowForward) -> tuple[Tensor, Tensor]:
    """Return all log-probabilities, one after the other, and the gradient of a weighted sum of them, flattened."""
    rows = [row for trial in trials for row in pack(trial, 1 << 30, device=policy.device, plain=way.is_plain)]
    total = sum(len(row.places) for row in rows)
    # Weights that differ, so that a gradient which goes to the wrong answer shows.
    weights = torch.linspace(-1.0, 1.0, total, dtype=torch.float64).split_with_sizes([len(row.places) for row in rows])
    logprobs: list[Tensor] = []
    sums: list[Tensor | None] = [None] * len(policy.parameters)
    for row, weight in zip(rows, weights, strict=True):  # one by one: each row's graph is gone before the next
        found = answer_logprobs(policy, row, 1.0, way)
        logprobs.append(found.detach())
        weighted = (found * weight.to(found)).sum()
        gradients = torch.autograd.grad(weighted, policy.parameters, allow_unused=True)
        for index, gradient in enumerate(gradients):
            before = sums[index]
            if gradient is not None:
                sums[index] = gradient.double() if before is None else before + gradient
    return torch.cat(logprobs), torch.cat([gradient.flatten() for gradient in sums if gradient is not None])


def _gaps(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """How far log-probabilities and gradients are apart, in the measures of ``_TOLERANCE``."""
    if found[1].shape != expected[1].shape:
        return float("inf"), float("inf")
    differences = (found[0] - expected[0]).abs()
    exact = found[0].dtype == torch.float64 or found[0].dtype == torch.float32
    length = expected[1].norm()
    relative = (found[1] - expected[1]).norm() / length if length > 0 else found[1].norm()
    return float(differences.max() if exact else differences.mean()), float(relative)
