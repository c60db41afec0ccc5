"""The last step of a model, from hidden states to log-probabilities of taken tokens, without a (N, V) tensor of logits.

Logits are computed for a few tokens at a time and dropped. A taken token's log-probability is one number, so its
gradient is one vector of the hidden width: it is computed beside it, while the logits are there, and backward only
scales it. (Fused linear cross-entropy kernels rest on the same: Hsu et al. 2024, arXiv:2410.10989, section 3.2.)

Dimensions: N tokens, H hidden width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from ratchet.engine.decoder.product import product
from ratchet.engine.distribution import SamplingSettings, sampling_logprobs

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
