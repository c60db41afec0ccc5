"""Writing one token after another with our own decoder: adapters merged, the common prefix held once for all rows.

A row's keys and values (its prompt after the common prefix, and what it has written) end at the same column as every
other row's, so a step writes one column, and a new row is put in so that its prompt ends there. Columns before a
row's first are masked. The prefix is not copied: all rows read the same keys, as one product.

Dimensions: b rows, n prompts, p tokens of a prompt after the prefix (padded on the right), c columns, C tokens of the
prefix, kv key/value heads, r query heads for each, d width of a head, H hidden width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ratchet.engine.decoder.attention import Heads, attend_own, attend_path
from ratchet.engine.decoder.layer import inverse_rms, last_norm, normed, normed_heads, rotate_
from ratchet.engine.decoder.weights import (
    DecoderWeights,
    Layer,
    laid_out,
    product,
    product_plus,
    product_times,
    silu_product,
)

# Columns are added so many at a time, or a quarter of those in use.
_BLOCK = 64
# Steps are computed for a multiple of so many rows.
_ROUND_ROWS = 8
# The rows are moved together when this share of the slots is free: it costs about as much as a step.
_REPACK_SHARE = 0.25
# What the weights are laid out for: a batch of about so many rows.
_USUAL_ROWS = 64


@dataclass(frozen=True)
class _Merged:
    """One layer's weights with the adapter added, laid out for small batches."""

    layer: Layer
    joint: Tensor
    output: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class MergedDecoder:
    """The decoder's weights with the adapter as it is now added to them: what sampling works with."""

    def __init__(self, weights: DecoderWeights) -> None:
        self.weights = weights
        self.layers = [_merged(layer) for layer in weights.layers]
        self.head = laid_out(weights.head, _USUAL_ROWS)


def _merged(layer: Layer) -> _Merged:
    gate, up = layer.gate_up.merged().chunk(2)
    parts = (layer.joint.merged(), layer.output.merged(), gate, up, layer.down.merged())
    return _Merged(layer, *(laid_out(part, _USUAL_ROWS) for part in parts))


@dataclass(frozen=True)
class Prompts:
    """Prompts that were computed once: each layer's keys and values (n, kv, p, d), and the next token's logits."""

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor  # (n,)
    logits: Tensor  # (n, V)


class DecoderBatch:
    """See ``DecodingBatch``: rows with their keys and values, and the logits of each row's next token.

    A row that leaves frees its slot of the buffers, which a new row takes; until then its keys are read in vain. A row
    that branches is copied: its own keys and values, not those of the prefix.
    """

    branches = True

    @torch.inference_mode()
    def __init__(self, merged: MergedDecoder, prefix: tuple[int, ...], most_rows: int) -> None:
        weights = merged.weights
        self._merged = merged
        self._most_rows = most_rows
        self._heads: Heads = weights.heads
        self._width = weights.layers[0].joint.weight.shape[0] // weights.heads.all
        self._prefix: Prompts | None = None
        self._prefix_length = len(prefix)
        if prefix:
            self._prefix = self._computed([prefix])
        self._keys: list[Tensor] = []  # of each layer, (slots, kv, room for columns, d)
        self._values: list[Tensor] = []
        self._column = 0  # where the next token's keys go
        self._slots = torch.zeros(0, dtype=torch.long)  # (b,) where each row is
        self._starts = torch.zeros(0, dtype=torch.long)  # (b,) first column of each row
        self._kept: Tensor | None = None  # rows of ``logits`` that are still there, where not all are
        self.logits = weights.head.new_zeros((0, weights.head.shape[0]))

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> Prompts:
        """Compute prompts; each begins with the common prefix and has at least one token more."""
        return self._computed([prompt[self._prefix_length :] for prompt in prompts])

    @torch.inference_mode()
    def admit(self, prompts: Prompts, owners: Sequence[int]) -> None:
        """Append a row for each owner, the number of its prompt in ``prompts``."""
        owner = torch.tensor(owners)
        lengths = prompts.lengths[owner]
        longest = int(lengths.max())
        slots = self._free_slots(len(owners), longest)
        column, kv = self._column, self._heads.key
        # A prompt's last token goes to the last column, so shorter ones are shifted by what they lack.
        place = (torch.arange(longest) - (longest - lengths)[:, None]).clamp(min=0)  # (new, longest)
        source = (owner[:, None] * kv + torch.arange(kv))[:, :, None] * prompts.keys[0].shape[2] + place[:, None]
        shape = (len(owners), kv, longest, self._width)
        for buffers, held in ((self._keys, prompts.keys), (self._values, prompts.values)):
            for buffer, tensor in zip(buffers, held, strict=True):
                new = tensor.view(-1, self._width).index_select(0, source.flatten()).view(shape)
                buffer[:, :, column - longest : column].index_copy_(0, slots, new)
        self._slots = torch.cat([self._slots, slots])
        self._starts = torch.cat([self._starts, column - lengths])
        before = self.logits if self._kept is None else self.logits[self._kept]
        self.logits, self._kept = torch.cat([before, prompts.logits[owner]]), None

    @torch.inference_mode()
    def keep(self, staying: Tensor) -> None:
        """Keep these rows, (k,) in rising order; the others leave. A row that is named several times branches."""
        # Most often the rows advance next, and nothing has to be copied.
        self._kept = staying if self._kept is None else self._kept[staying]
        is_first = torch.ones(len(staying), dtype=torch.bool)
        is_first[1:] = staying[1:] != staying[:-1]
        origin = is_first.cumsum(0) - 1  # (k,) among the rows that are kept
        kept = staying[is_first]
        self._slots, self._starts = self._slots[kept], self._starts[kept]
        if not bool(is_first.all()):
            new = self._free_slots(len(staying) - len(kept), 0)
            source = self._slots[origin[~is_first]]
            columns = slice(int(self._starts.min()), self._column)
            for buffer in (*self._keys, *self._values):
                view = buffer[:, :, columns]
                view.index_copy_(0, new, view.index_select(0, source))
            slots = torch.empty_like(staying)
            slots[is_first], slots[~is_first] = self._slots, new
            self._slots, self._starts = slots, self._starts[origin]

    @torch.inference_mode()
    def advance(self, tokens: Tensor) -> None:
        """Give each row its new token (b,) and compute the logits of the next."""
        weights, rows = self._merged.weights, len(tokens)
        used = int(self._slots.max()) + 1
        if self._column == self._keys[0].shape[2] or rows <= used * (1 - _REPACK_SHARE):
            self._rebuild(len(self._keys[0]), 0)
            used = rows
        column = self._column
        # Rows of zeros up to a round number: products prepare a routine for each number of rows that they meet.
        padded = rows + -rows % _ROUND_ROWS
        pad = torch.nn.functional.pad
        cosine, sine = weights.angles(pad(self._prefix_length + column - self._starts, (0, padded - rows)))
        low = int(self._starts.min())
        columns = slice(low, column + 1)
        mask = None
        if int(self._starts.max()) > low:
            mask = torch.zeros((used, 1, 1, column + 1 - low), dtype=weights.head.dtype)
            before = torch.arange(low, column + 1) < self._starts[:, None]
            mask[self._slots, 0, 0] = mask.new_zeros(before.shape).masked_fill_(before, -torch.inf)
        in_place = rows == used and bool((self._slots == torch.arange(rows)).all())
        hidden = weights.embedding[pad(tokens, (0, padded - rows))]
        for number, merged in enumerate(self._merged.layers):
            joint = self._joint(hidden, merged, cosine, sine)[:rows]  # (b, heads, d)
            if not in_place:
                spread = joint.new_zeros((used, *joint.shape[1:]))
                joint = spread.index_copy_(0, self._slots, joint)
            query, key, value = joint.split_with_sizes(list(self._heads.parts), dim=1)
            self._keys[number][:used, :, column] = key
            self._values[number][:used, :, column] = value
            outputs = self._attended(query, number, columns, mask)
            if not in_place:
                outputs = outputs.index_select(0, self._slots)
            outputs = outputs if padded == rows else pad(outputs, (0, 0, 0, padded - rows))
            hidden = self._after_attention(hidden, outputs, merged)
        self._column, self._kept = column + 1, None
        self.logits = product(last_norm(hidden, weights), self._merged.head)[:rows]

    def _attended(self, query: Tensor, number: int, columns: slice, mask: Tensor | None) -> Tensor:
        """Attend from each slot's newest token, (slots, heads, d), to the prefix and to its row; (slots, heads * d)."""
        slots, kv, width = len(query), self._heads.key, self._width
        keys, values = self._keys[number][:slots, :, columns], self._values[number][:slots, :, columns]
        grouped = (query * self._merged.weights.scale).view(slots, kv, -1, width)
        scores = torch.matmul(grouped, keys.transpose(2, 3))  # (slots, kv, r, columns)
        if mask is not None:
            scores += mask
        if self._prefix is None:
            return torch.matmul(scores.softmax(dim=-1), values).view(slots, -1)
        flat = grouped.transpose(0, 1).reshape(kv, -1, width)  # (kv, slots * r, d)
        before = torch.bmm(flat, self._prefix.keys[number][0].transpose(1, 2))
        before = before.view(kv, slots, -1, self._prefix_length).transpose(0, 1)  # (slots, kv, r, C)
        shares = torch.cat([before, scores], dim=-1).softmax(dim=-1)
        own = torch.matmul(shares[..., self._prefix_length :], values)
        flat = shares[..., : self._prefix_length].transpose(0, 1).reshape(kv, -1, self._prefix_length)
        shared = torch.bmm(flat, self._prefix.values[number][0]).view(kv, slots, -1, width).transpose(0, 1)
        return own.add_(shared).view(slots, -1)

    def _joint(self, hidden: Tensor, merged: _Merged, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return queries, keys and values of tokens (t, H) with their positions, (t, heads, d)."""
        weights, layer = self._merged.weights, merged.layer
        joint = product(normed(hidden, inverse_rms(hidden, weights.epsilon), layer.attention_norm), merged.joint)
        if layer.joint.bias is not None:
            joint.add_(layer.joint.bias)
        joint = normed_heads(joint.view(len(hidden), self._heads.all, -1), layer, weights)
        rotate_(joint[:, : self._heads.query + self._heads.key], cosine, sine)
        return joint

    def _after_attention(self, hidden: Tensor, outputs: Tensor, merged: _Merged) -> Tensor:
        """Return the layer's result (t, H) from its input and its attention's outputs."""
        weights, layer = self._merged.weights, merged.layer
        middle = product_plus(outputs, merged.output, hidden)
        inner = normed(middle, inverse_rms(middle, weights.epsilon), layer.network_norm)
        active = product_times(inner, merged.up, silu_product(inner, merged.gate))
        return product_plus(active, merged.down, middle)

    def _computed(self, prompts: Sequence[tuple[int, ...]]) -> Prompts:
        """Run whole prompts that follow the prefix, where there is one."""
        weights = self._merged.weights
        count, longest = len(prompts), max(map(len, prompts))
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        # Which id fills the gap does not matter: no token looks at a later one.
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
        start = 0 if self._prefix is None else self._prefix_length
        cosine, sine = weights.angles(torch.arange(start, start + longest).repeat(count))
        hidden = weights.embedding[ids.flatten()]
        keys, values = [], []
        for number, merged in enumerate(self._merged.layers):
            joint = self._joint(hidden, merged, cosine, sine).view(count, longest, self._heads.all, -1)
            query, key, value = (
                part.transpose(1, 2) for part in joint.split_with_sizes(list(self._heads.parts), dim=2)
            )  # (n, heads, p, d)
            key, value = key.contiguous(), value.contiguous()
            keys.append(key)
            values.append(value)
            outputs = self._prompt_attention(query.contiguous(), key, value, number)
            outputs = outputs.transpose(1, 2).reshape(count * longest, -1)
            hidden = self._after_attention(hidden, outputs, merged)
        last = hidden.view(count, longest, -1)[torch.arange(count), lengths - 1]
        return Prompts(keys, values, lengths, product(last_norm(last, weights), self._merged.head))

    def _prompt_attention(self, query: Tensor, key: Tensor, value: Tensor, number: int) -> Tensor:
        """Attend causally within prompts, (n, heads, p, d) each, and to the prefix; return (n, heads, p, d)."""
        count, kv, longest, width = key.shape
        scale = self._merged.weights.scale
        grouped = query.view(count * kv, -1, width)  # (n * kv, r * p, d)
        output, logsumexp = attend_own(
            grouped, key.view(count * kv, longest, width), value.view(count * kv, longest, width), None, scale
        )
        if self._prefix is not None:
            shape = (count, kv, self._prefix_length, width)
            output, _ = attend_path(
                output,
                logsumexp,
                grouped.view(count, kv, -1, width),
                self._prefix.keys[number].expand(shape),
                self._prefix.values[number].expand(shape),
                None,
                scale,
            )
        return output.view(query.shape)

    def _free_slots(self, count: int, prompt: int) -> Tensor:
        """Return slots (count,) for new rows, with room for a prompt of that length before the current column."""
        rows = len(self._slots)
        if not rows:
            self._column = 0
        there = len(self._keys[0]) if self._keys else 0
        if rows + count > there or prompt > self._column:
            # Twice as many, so that rows which branch one after the other move seldom.
            more = max(rows + count, min(2 * there, self._most_rows))
            self._rebuild(there if rows + count <= there else more, prompt)
        is_free = torch.ones(len(self._keys[0]), dtype=torch.bool)
        is_free[self._slots] = False
        return is_free.nonzero()[:count, 0]

    def _rebuild(self, slots: int, prompt: int) -> None:
        """Move the rows to the first of so many slots, and leave out columns that no row uses any more.

        Afterwards there is room for a prompt of that length before the current column, and for new columns after it.
        """
        rows = len(self._slots)
        low = int(self._starts.min()) if rows else self._column
        used = self._column - low
        column = max(used, prompt)
        room = (slots, self._heads.key, column + max(_BLOCK, used // 4), self._width)
        for buffers in (self._keys, self._values):
            for number in range(len(self._merged.layers)):
                # Zeros: columns before a row's first are masked, which does not hide NaN.
                buffer = self._merged.weights.head.new_zeros(room)
                if rows:
                    held = buffers[number][:, :, low : self._column].index_select(0, self._slots)
                    buffer[:rows, :, column - used : column] = held
                if number < len(buffers):
                    buffers[number] = buffer
                else:
                    buffers.append(buffer)
        self._starts = self._starts + (column - self._column)
        self._column = column
        self._slots = torch.arange(rows)
