"""The sampling distribution: from logits to log-probabilities and drawn tokens.

The one place that says what temperature, top-k and top-p mean, so that sampler and trainer cannot disagree.
Tensor arithmetic only; no model, no random generator: uniform numbers are handed in.

Dimensions: b rows, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ratchet.config import RlSettings


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn. ``greedy`` takes the likeliest token and leaves the other three unused."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    greedy: bool = False

    @classmethod
    def of(cls, settings: RlSettings) -> "SamplingSettings":
        """Return what the training rounds of these settings sample with."""
        return cls(temperature=settings.temperature, top_p=settings.top_p, top_k=settings.top_k)

    @property
    def truncates(self) -> bool:
        """Whether top-k or top-p can leave tokens out."""
        return not self.greedy and (self.top_p < 1.0 or self.top_k > 0)


GREEDY = SamplingSettings(greedy=True)


def scaled_logits(logits: Tensor, temperature: float) -> Tensor:
    """Return float32 (or wider) logits divided by the temperature; shape as given."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature == 1.0 else logits / temperature


def truncated(logits: Tensor, top_k: int, top_p: float, keep: Tensor | None = None) -> Tensor:
    """Set the logits of tokens that are never sampled to minus infinity.

    First the ``top_k`` likeliest tokens are kept (ties with the last of them too), then, of these, the smallest set
    of likeliest tokens whose probabilities add up to ``top_p`` or more (nucleus sampling, Holtzman et al. 2020,
    arXiv:1904.09751, section 3.1). At least one token stays.

    Args:
        logits: (b, V), already divided by the temperature.
        top_k: 0 is off.
        top_p: 1 is off.
        keep: (b,) tokens that stay whatever their rank: the ones known to have been drawn. Rounding may put a token
            at the edge on different sides for sampler and trainer.

    Returns:
        (b, V).
    """
    masked = logits
    if 0 < top_k < logits.shape[-1]:
        smallest_kept = logits.topk(top_k, dim=-1).values[..., -1:]
        masked = logits.masked_fill(logits < smallest_kept, -torch.inf)
    if top_p < 1.0:
        ordered, order = masked.sort(dim=-1, descending=True, stable=True)
        before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        dropped = (before >= top_p).scatter(-1, order, before >= top_p)
        masked = masked.masked_fill(dropped, -torch.inf)
    if keep is not None and masked is not logits:
        kept = keep[..., None]
        masked = masked.scatter(-1, kept, logits.gather(-1, kept))
    return masked


def taken_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the natural log of the softmax probability of ``tokens``.

    ``gather - logsumexp`` instead of ``log_softmax``: the (b, V) result would be kept for the backward pass.

    Args:
        logits: (b, V).
        tokens: (b,) int64.

    Returns:
        (b,).
    """
    return logits.gather(-1, tokens[..., None]).squeeze(-1) - logits.logsumexp(dim=-1)


def sampling_logprobs(logits: Tensor, tokens: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of drawn tokens, under the sampling distribution and under the temperature alone.

    Args:
        logits: (b, V) of the model, unscaled.
        tokens: (b,) int64, the drawn tokens.
        settings: What they were drawn with.

    Returns:
        Two (b,) tensors; the same one twice where nothing is truncated.
    """
    scaled = scaled_logits(logits, 1.0 if settings.greedy else settings.temperature)
    full = taken_logprobs(scaled, tokens)
    if not settings.truncates:
        return full, full
    return taken_logprobs(truncated(scaled, settings.top_k, settings.top_p, keep=tokens), tokens), full


def draw(logits: Tensor, uniform: Tensor | None, settings: SamplingSettings) -> Tensor:
    """Draw one token per row by inverting the cumulative distribution at a uniform number.

    Args:
        logits: (b, V) of the model, unscaled.
        uniform: (b,) in [0, 1), or None when greedy.
        settings: Temperature, top-k, top-p, or greedy.

    Returns:
        (b,) int64. A token of probability 0 is never drawn. Of a row with logits that are not finite some token of
        the vocabulary, whose log-probability is not finite either.
    """
    if settings.greedy or uniform is None:
        return logits.argmax(dim=-1)
    scaled = truncated(scaled_logits(logits, settings.temperature), settings.top_k, settings.top_p)
    # In float64: a GPU adds in parallel, and a float32 sum so made need not rise from token to token.
    cumulative = scaled.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)  # (b, V)
    total = cumulative[:, -1]
    # Rounding may lift uniform * total to total itself, which no token covers.
    target = torch.minimum(uniform.to(total) * total, torch.nextafter(total, torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(-1)
    return drawn.clamp(max=logits.shape[-1] - 1)  # past the end where the sums are NaN
