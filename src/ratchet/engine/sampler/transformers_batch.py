"""The decoding batch of any transformers model: the model's own forward pass over a shared key/value cache.

All rows write the keys and values of their next token at the same column of the cache, and each row's tokens stand
without a gap before it; what is left of a row's first token is masked. So a new row is put into the place of one that
left, its prompt ending at the column of the moment, and nothing else moves. Layers that look back over a window keep
every column too, and read the last ones alone: the rows of a batch begin at different times.

On a GPU the decoding step comes in fixed shapes and is captured in a CUDA graph where the model allows
(``static_step``); elsewhere, and after a capture that failed, it runs as it is, over the columns in use alone.

Left out: no kernels of its own, no paging.

Dimensions: b live rows, S rows of the cache (live ones and places of rows that left), n prompts, P tokens of the
longest prompt, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ratchet.engine.policy import Policy
from ratchet.engine.sampler.static_step import (
    BatchSteps,
    Buffers,
    Capture,
    CudaGraphs,
    Loaded,
    StaticSteps,
    buffer_shape,
)

# The cache grows by so many columns at a time.
_BLOCK_TOKENS = 64
# The cache is re-packed when this share of its rows has left: a copy costs about as much as a decoding step.
_REPACK_SHARE = 0.25


class _Layer(DynamicLayer):  # type: ignore[misc] # transformers carries no types
    """Keys and values of one layer, (rows, heads, columns, width) each, in buffers with room to spare.

    ``start`` to ``end`` are the columns in use. Buffers hold numbers everywhere: a mask does not hide NaN.
    """

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.is_sliding = window is not None
        self.window = window
        self.start = self.end = 0

    def hold(self, keys: Tensor, values: Tensor, end: int) -> None:
        """Take buffers whose first ``end`` columns are in use."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        self.keys, self.values, self.start, self.end = keys, values, 0, end

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        added = key_states.shape[-2]
        if not self.is_initialized:
            self.hold(key_states, value_states, added)
            return key_states, value_states
        _, hidden = self.get_mask_sizes(added)
        end = self.end + added
        self.keys[..., self.end : end, :] = key_states
        self.values[..., self.end : end, :] = value_states
        self.end = end
        visible = slice(self.start + hidden, end)
        return self.keys[..., visible, :], self.values[..., visible, :]

    def get_seq_length(self) -> int:
        return self.end - self.start

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many columns attention reads, and how many before them it does not."""
        seen = self.get_seq_length()
        hidden = max(seen - self.window + 1, 0) if self.window else 0
        return seen - hidden + query_length, hidden


@dataclass
class _Prompts:
    """Computed prompts: keys and values of each layer, (n, heads, P, width), every prompt at the right end."""

    layers: list[_Layer]
    lengths: Tensor  # (n,) on the CPU
    logits: Tensor  # (n, V)


class TransformersBatch:
    """See ``DecodingBatch``. ``static`` makes the steps of fixed shapes, while it can; without it there are none."""

    logits: Tensor
    branches = False

    @torch.inference_mode()
    def __init__(self, policy: Policy, common_prefix: tuple[int, ...], static: BatchSteps | None = None) -> None:
        self._policy = policy
        self._static = static
        self._cache_argument = policy.cache_argument  # looked up once: it inspects a signature
        self._cache = self._new_cache()
        self._end = 0  # the column that is written next
        # On the CPU: what decides about columns must not wait for the device.
        self._slots = torch.zeros(0, dtype=torch.long)  # (b,) each live row's row of the cache
        self._lengths = torch.zeros(0, dtype=torch.long)  # (S,) tokens of each row of the cache
        self._shared = len(common_prefix)
        self._prefix = self._new_cache()
        if common_prefix:
            self._forward(torch.tensor([common_prefix]), self._prefix, torch.tensor([self._shared]))

    def _new_cache(self) -> DynamicCache:
        cache = DynamicCache(config=self._policy.model.config)
        cache.layers = [_Layer(layer.sliding_window if layer.is_sliding else None) for layer in cache.layers]
        return cache

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> _Prompts:
        """Compute the last tokens of every prompt, as many of each as the longest has after the common prefix.

        The shorter ones compute a few tokens of the prefix again, where they would otherwise compute padding, and
        have no gap between the prefix and the rest.
        """
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest = int(lengths.max())
        own = longest - self._shared
        # Which id fills the room before a prompt does not matter: it is masked, never recognised by its id.
        input_ids = torch.zeros((len(prompts), own), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            last = prompt[-own:]
            input_ids[row, own - len(last) :] = torch.tensor(last)
        cache = self._new_cache()
        if self._shared:
            columns = torch.arange(self._shared) - (longest - lengths)[:, None]  # (n, shared)
            columns = columns.clamp(min=0).to(self._policy.device)
            for layer, prefix in zip(cache.layers, self._prefix.layers, strict=True):
                if prefix.is_initialized:
                    copies = (_copies(buffer, columns, longest) for buffer in (prefix.keys, prefix.values))
                    layer.hold(*copies, end=self._shared)
        return _Prompts(cache.layers, lengths, self._forward(input_ids, cache, lengths))

    @torch.inference_mode()
    def admit(self, prompts: _Prompts, owners: Sequence[int]) -> None:
        """Copy prompts into the places of rows that left, into new ones where there are too few."""
        chosen = torch.tensor(owners)
        lengths = prompts.lengths[chosen]
        longest = int(lengths.max())
        if not self._lengths.numel():
            for layer, computed in zip(self._cache.layers, prompts.layers, strict=True):
                if computed.is_initialized:  # a layer that reads another one's keys and values has none of its own
                    layer.hold(computed.keys[:0, :, :0], computed.values[:0, :, :0], end=0)
        if len(owners) > self._lengths.numel() - self._slots.numel() or longest > self._end:
            self._rebuild(len(owners), longest)
        is_free = torch.ones_like(self._lengths, dtype=torch.bool)
        is_free[self._slots] = False
        slots = is_free.nonzero().squeeze(1)[: len(owners)]
        there, source = slots.to(self._policy.device), chosen.to(self._policy.device)
        for layer, computed in zip(self._cache.layers, prompts.layers, strict=True):
            if computed.is_initialized:
                layer.keys[there, :, self._end - longest : self._end] = computed.keys[source, :, -longest:]
                layer.values[there, :, self._end - longest : self._end] = computed.values[source, :, -longest:]
        logits = prompts.logits[source]
        self.logits = torch.cat([self.logits, logits]) if self._slots.numel() else logits
        self._slots = torch.cat([self._slots, slots])
        self._lengths[slots] = lengths

    @torch.inference_mode()
    def keep(self, staying: Tensor) -> None:
        """Let go of the other rows. They stay in the cache as dead weight until their places are taken or re-packed."""
        left = torch.ones_like(self._slots, dtype=torch.bool)
        left[staying] = False
        self._lengths[self._slots[left]] = 1
        self._slots = self._slots[staying]

    @torch.inference_mode()
    def advance(self, tokens: Tensor) -> None:
        """Feed the live rows their new tokens (b,) and compute the logits of the next ones."""
        rows = self._lengths.numel()
        is_full = any(layer.is_initialized and layer.keys.shape[-2] == self._end for layer in self._cache.layers)
        if is_full or self._shape(self._slots.numel(), 0)[0] <= rows * (1 - _REPACK_SHARE):
            self._rebuild()
        self._lengths[self._slots] += 1
        self.logits = self._next_logits(tokens)
        self._end += 1

    def close(self) -> None:
        """Throw a captured step away: it reads the model's weights where they are now."""
        self._static = None

    def _next_logits(self, tokens: Tensor) -> Tensor:
        if self._static is not None:
            loaded = Loaded(tokens, self._slots, self._lengths, self._end)
            logits = self._static.logits(self._buffers, loaded, lambda: self._plain_logits(tokens))
            if logits is not None:
                return logits
            self._static = None
        return self._plain_logits(tokens)

    def _buffers(self) -> list[Buffers]:
        return [Buffers(layer.keys, layer.values, layer.window) for layer in self._cache.layers]

    def _plain_logits(self, tokens: Tensor) -> Tensor:
        """Compute the next logits of the live rows, (b, V), reading no more columns than are in use."""
        slots = self._slots.to(tokens.device)
        input_ids = tokens.new_zeros((self._lengths.numel(), 1))
        input_ids[slots, 0] = tokens
        start = self._end + 1 - int(self._lengths[self._slots].max())  # columns before it are of no live row
        for layer in self._cache.layers:
            layer.start, layer.end = start, self._end
        return self._forward(input_ids, self._cache, self._lengths)[slots]

    def _shape(self, rows: int, end: int) -> tuple[int, int]:
        """Return the rows and columns of buffers for so many rows and columns in use."""
        if self._static is None:
            return rows, end + _BLOCK_TOKENS
        return buffer_shape(rows, end, self._present_shape())

    def _present_shape(self) -> tuple[int, int]:
        columns = [layer.keys.shape[-2] for layer in self._cache.layers if layer.is_initialized]
        return self._lengths.numel(), columns[0] if columns else 0

    def _rebuild(self, new_rows: int = 0, longest: int = 0) -> None:
        """Pack the live rows together, with places for ``new_rows`` more and for prompts of ``longest``.

        They are copied to new buffers, or within the ones there are if these have the right shape.
        """
        live = self._slots.numel()
        used = int(self._lengths[self._slots].max()) if live else 0
        end = max(used, longest)
        rows, columns = self._shape(live + new_rows, end)
        if self._static is not None and (rows, columns) != self._present_shape():
            self._static.forget()
        slots = self._slots.to(self._policy.device)
        for layer in self._cache.layers:
            if layer.is_initialized:
                packed = []
                for buffer in (layer.keys, layer.values):
                    _, heads, _, width = buffer.shape
                    kept = buffer[:, :, self._end - used : self._end][slots]
                    if (buffer.shape[0], buffer.shape[2]) != (rows, columns):
                        buffer = buffer.new_zeros((rows, heads, columns, width))
                    buffer[:live, :, end - used : end] = kept
                    packed.append(buffer)
                layer.hold(*packed, end=end)
        self._end = end
        self._lengths = torch.cat([self._lengths[self._slots], self._lengths.new_ones(rows - live)])
        self._slots = torch.arange(live)

    def _forward(self, input_ids: Tensor, cache: DynamicCache, lengths: Tensor) -> Tensor:
        """Run the model over the last tokens of every row, (rows, t); return the last one's logits, (rows, V)."""
        device = self._policy.device
        width = cache.get_seq_length() + input_ids.shape[1]
        columns = torch.arange(width, device=device)
        first = (width - lengths)[:, None].to(device)
        result = self._policy.model(
            input_ids=input_ids.to(device),
            attention_mask=(columns >= first).long(),
            position_ids=(columns[-input_ids.shape[1] :] - first).clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        logits: Tensor = result.logits[:, -1]
        return logits


def _copies(prefix: Tensor, columns: Tensor, room: int) -> Tensor:
    """Copy a prefix (1, heads, c, d) to (n, heads, room, d), column j of row i from its column ``columns[i, j]``."""
    _, heads, _, width = prefix.shape
    copies = prefix.new_zeros((columns.shape[0], heads, room, width))
    copies[:, :, : columns.shape[1]] = prefix[0][:, columns].movedim(1, 0)
    return copies


class TransformersBatches:
    """See ``Batches``: the adapter is merged into the weights while a batch lives, and taken out again exactly.

    ``graphs`` says whether the decoding step is captured in CUDA graphs: None does so on CUDA alone. Where the model
    does not allow it, or once it failed, the step runs as it is. ``new_capture`` makes, for each batch, what captures
    its steps, in the place of CUDA graphs.

    Raises:
        ValueError: graphs are asked for on another device, with nothing in their place.
    """

    def __init__(
        self, policy: Policy, graphs: bool | None = None, new_capture: Callable[[], Capture] | None = None
    ) -> None:
        self._policy = policy
        is_cuda = policy.device.type == "cuda"
        if graphs and not is_cuda and new_capture is None:
            raise ValueError(f"CUDA graphs are on, but the device is {policy.device}. Leave them to None or False.")
        self._steps: StaticSteps | None = None
        if graphs or (graphs is None and is_cuda):
            self._steps = StaticSteps(policy, new_capture or (lambda: CudaGraphs(policy.device)))

    @contextmanager
    def batch(self, common_prefix: tuple[int, ...], most_rows: int) -> Iterator[TransformersBatch]:
        """Return a batch of the policy as it is now; its cache grows row by row, so ``most_rows`` tells it nothing."""
        with self._policy.merged():
            batch = TransformersBatch(self._policy, common_prefix, self._steps.of_batch() if self._steps else None)
            try:
                yield batch
            finally:
                batch.close()

    def rest(self) -> None:
        """Nothing is held between batches."""
