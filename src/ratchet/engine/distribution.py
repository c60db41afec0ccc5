"""The sampling distribution: from logits to log-probabilities and drawn tokens.

The one place that says what temperature, top-k and top-p mean, so that sampler and trainer cannot disagree.
Tensor arithmetic only; no model, no random generator: uniform numbers are handed in.

Dimensions: b rows, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ratchet.config import RlSettings

# Tokens of a block when the cumulative distribution is inverted: the root of a usual vocabulary.
_BLOCK = 256


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are drawn. ``greedy`` takes the most likely token and leaves the other three unused."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    greedy: bool = False

    @classmethod
    def of(cls, settings: RlSettings) -> "SamplingSettings":
        """What the training rounds of these settings sample with."""
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

    First the ``top_k`` most likely tokens are kept (ties with the last of them too), then, of these, the smallest set
    of most likely tokens whose probabilities add up to ``top_p`` or more (nucleus sampling, Holtzman et al. 2020,
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
        dropped = before >= top_p
        dropped[..., 0] = False  # also where top_p is below the smallest float32 and compares as 0
        masked = masked.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)
    if keep is not None and masked is not logits:
        kept = keep[..., None]
        masked = masked.scatter(-1, kept, logits.gather(-1, kept))
    return masked


def taken_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the natural log of the softmax probability of ``tokens``, (b,), under logits (b, V).

    ``gather - logsumexp`` instead of ``log_softmax``: the (b, V) result would be kept for the backward pass.
    """
    return logits.gather(-1, tokens[..., None]).squeeze(-1) - logits.logsumexp(dim=-1)


def draw_with_logprobs(
    logits: Tensor, uniform: Tensor | None, settings: SamplingSettings, rows: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw tokens from rows of logits by inverting the cumulative distribution at uniform numbers.

    Args:
        logits: (u, V) of the model, unscaled.
        uniform: (b,) in [0, 1), or None when greedy.
        settings: Temperature, top-k, top-p, or greedy.
        rows: (b,) int64, which of them each token is drawn from; None draws one from each.

    Returns:
        Three (b,) tensors: the tokens, int64; their log-probabilities under the sampling distribution; and under the
        temperature alone, which is the same tensor where nothing is truncated. A token of probability 0 is never
        drawn. Of a row with logits that are not finite some token of the vocabulary is drawn, whose log-probabilities
        are not finite either.
    """
    if rows is None:
        rows = torch.arange(len(logits), device=logits.device)
    scaled = scaled_logits(logits, 1.0 if settings.greedy else settings.temperature)
    probabilities = scaled.softmax(dim=-1)
    full = _log_normaliser(scaled, probabilities)[rows]
    if settings.greedy or uniform is None:
        tokens = logits.argmax(dim=-1)[rows]
    elif not settings.truncates:
        tokens = _inverted(probabilities, rows, uniform)
    else:
        kept = truncated(scaled, settings.top_k, settings.top_p)
        probabilities = kept.softmax(dim=-1)
        tokens = _inverted(probabilities, rows, uniform)
        taken = kept[rows, tokens] - _log_normaliser(kept, probabilities)[rows]
        return tokens, taken, scaled[rows, tokens] - full
    taken = scaled[rows, tokens] - full
    return tokens, taken, taken


def sampling_logprobs(logits: Tensor, tokens: Tensor, settings: SamplingSettings) -> Tensor:
    """Return the log-probabilities (b,) of drawn tokens (b,) under the sampling distribution of logits (b, V)."""
    scaled = scaled_logits(logits, 1.0 if settings.greedy else settings.temperature)
    if settings.truncates:
        scaled = truncated(scaled, settings.top_k, settings.top_p, keep=tokens)
    return taken_logprobs(scaled, tokens)


def _log_normaliser(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Return the log of the sum of exponentials (b,), given the softmax of the same logits.

    The largest logit's probability is 1 over the sum of exponentials above it. torch's own logsumexp takes ten times
    as long on a CPU.
    """
    return logits.amax(dim=-1) - probabilities.amax(dim=-1).log()


def _inverted(probabilities: Tensor, rows: Tensor, uniform: Tensor) -> Tensor:
    """Return the token (b,) at which a row's cumulative distribution, of (u, V), passes the uniform number (b,).

    In two steps, over sums of blocks and within the block: a sum over the whole vocabulary for each token of it is
    most of the work otherwise. Sums run in float64: a GPU adds in parallel, and a float32 sum so made need not rise
    from token to token.
    """
    vocabulary = probabilities.shape[1]
    whole = vocabulary - vocabulary % _BLOCK
    sums = probabilities[:, :whole].reshape(len(probabilities), -1, _BLOCK).sum(dim=-1)
    if whole < vocabulary:
        sums = torch.cat([sums, probabilities[:, whole:].sum(dim=-1, keepdim=True)], dim=-1)
    blocks = sums.cumsum(dim=-1, dtype=torch.float64)[rows]
    target = uniform.to(blocks) * blocks[:, -1]
    block = _passed(blocks, target)
    before = torch.where(block > 0, blocks.gather(1, (block - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    token = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=block.device)  # (b, block)
    within = probabilities[rows[:, None], token.clamp(max=vocabulary - 1)].masked_fill(token >= vocabulary, 0.0)
    within = within.cumsum(dim=-1, dtype=torch.float64)
    drawn = block * _BLOCK + _passed(within, target - before)
    return drawn.clamp(max=vocabulary - 1)  # past the end where the sums are NaN


def _passed(cumulative: Tensor, target: Tensor) -> Tensor:
    """Return the first place (b,) at which a cumulative sum (b, n) exceeds the target (b,)."""
    total = cumulative[:, -1]
    # Rounding may lift the target to the total itself or past it, which no place covers.
    below = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, below[:, None], right=True).squeeze(-1).clamp(max=cumulative.shape[1] - 1)
