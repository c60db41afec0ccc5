"""Attention over a packed row, part by part: no mask over the whole row, and no key that is masked out but multiplied.

A row holds a common prefix, prompts that continue it, and answers that continue the prompts (``packing.py``). A query
sees up to two kinds of keys: those of its path, which all queries of a prompt share (prefix, then prompt), and those
of its own segment, up to itself. Each kind is computed apart and the two are joined by their log-sum-exps, which is
exact (the identity behind FlashAttention: Dao et al. 2022, arXiv:2205.14135, section 3.1). Backward, each part's
probabilities follow from the joint log-sum-exp, so the parts need not know of each other.

Written by hand, forward and backward, for models on the CPU; other devices use torch's own attention under a mask.

Dimensions: T tokens of a row, m prompts, A answers to each (padded), R tokens of an answer (padded), p tokens of a
prompt after the prefix (padded), C of the prefix, kv key/value heads, r query heads for each of them, d width of a
head. "Rows" of heads are (token, head) pairs: T * (kv * r + 2 * kv) of them in the joint projection of a layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ratchet.engine.packing import PackedGroup, PackedRow

# Own segments up to this length are multiplied in full; beyond it, half of the work would be masked out.
_SHORT = 96
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Heads(NamedTuple):
    """How many query and key/value heads a layer has. In a joint row queries come before keys, keys before values."""

    query: int
    key: int

    @property
    def all(self) -> int:
        """All heads of a joint row."""
        return self.query + 2 * self.key

    @property
    def parts(self) -> tuple[int, int, int]:
        """How many are queries, keys, values."""
        return self.query, self.key, self.key


@dataclass(frozen=True)
class Level:
    """Segments of one kind side by side, padded to one length: prefix, prompts or answers.

    Indices name (token, head) rows of the joint projection, (T * heads.all, d), but for ``outputs``.

    Attributes:
        outputs: The same in (T * heads.query) rows; padding is the row past the last, which backward fills with zeros.
        own_mask: (groups * kv, r * length, length) to be added where the segments are trees: which tokens of its own
            segment each one sees. None where these are all up to itself.
    """

    shape: tuple[int, int, int, int, int]  # (groups, kv, members, r, length) of the queries
    queries: Tensor  # (groups * kv * members * r * length,)
    outputs: Tensor
    keys: Tensor  # (groups * kv * members * length,); values are ``heads.key`` rows further on
    path: Tensor | None  # (groups * kv * path_length,) keys of what comes before the segments, None where nothing does
    path_length: int
    path_mask: Tensor | None  # (groups, 1, 1, path_length) to be added where paths differ in length
    own_mask: Tensor | None = None


@dataclass(frozen=True)
class Layout:
    """Where everything is in a packed row, worked out once for all layers."""

    heads: Heads
    levels: tuple[Level, ...]  # prefix, prompts, answers; those that the row has
    gather_outputs: Tensor  # (T * heads.query,) where in the levels' outputs, one after the other, each row is
    gather_gradients: Tensor  # (T * heads.all,) where in the levels' gradients each row is: all queries, keys, values
    has_padding: bool  # whether any level has a place that no token takes


def layout(row: PackedRow, heads: Heads, dtype: torch.dtype) -> Layout:
    """Work out the layout of a row. ``dtype`` is that of the masks."""
    tokens, prefix, groups = len(row.input_ids), row.prefix_length, row.groups
    before = torch.arange(prefix).expand(len(groups), prefix)
    prompts = _padded([[group.prompt] for group in groups], 1)
    answers = _padded([group.answers for group in groups], max(len(group.answers) for group in groups))
    segments: list[tuple[Tensor, Tensor]] = [(prompts, before), (answers, torch.cat([before, prompts[:, 0]], dim=1))]
    if prefix:
        segments.insert(0, (before[:1, None], before[:1, :0]))
    levels: list[Level] = []
    outputs, gradients = [], []
    for own, path in segments:
        if own.shape[-1] == 0:  # every answer is a single token, which the prompt's last one predicts
            continue
        level = _level(own, path, heads, tokens, dtype)
        if own is answers and groups[0].parents is not None:
            level = replace(level, own_mask=_tree_mask(groups, level.shape, dtype))
        levels.append(level)
        is_token = own >= 0
        real_queries = is_token[:, None, :, None].expand(level.shape).flatten()
        real_keys = is_token[:, None].expand(-1, heads.key, -1, -1).flatten()
        outputs.append((level.outputs, real_queries))
        gradients.append((level, real_queries, real_keys))
    parts = [(level.queries, real) for level, real, _ in gradients]
    parts += [(level.keys, real) for level, _, real in gradients]
    parts += [(level.keys + heads.key, real) for level, _, real in gradients]
    return Layout(
        heads=heads,
        levels=tuple(levels),
        gather_outputs=_places(outputs, tokens * heads.query),
        gather_gradients=_places(parts, tokens * heads.all),
        has_padding=not all(bool(real.all()) for _, real in outputs),
    )


def _padded(segments: Sequence[Sequence[tuple[int, int]]], members: int) -> Tensor:
    """Return the tokens of (start, length) segments, (groups, members, longest), -1 where there is none."""
    longest = max(length for group in segments for _, length in group)
    starts = torch.zeros((len(segments), members, 1), dtype=torch.long)
    lengths = torch.zeros_like(starts)
    for index, group in enumerate(segments):
        starts[index, : len(group), 0] = torch.tensor([start for start, _ in group])
        lengths[index, : len(group), 0] = torch.tensor([length for _, length in group])
    position = torch.arange(longest)
    return torch.where(position < lengths, starts + position, -1)


def _level(own: Tensor, path: Tensor, heads: Heads, tokens: int, dtype: torch.dtype) -> Level:
    """Build a level from its tokens (groups, members, length) and its paths' (groups, path), -1 where padded."""
    groups, members, length = own.shape
    per_key = heads.query // heads.key
    shape = (groups, heads.key, members, per_key, length)
    head = torch.arange(heads.query).view(1, heads.key, 1, per_key, 1)
    token = own.clamp(min=0)[:, None, :, None]
    is_padding = (own < 0)[:, None, :, None].expand(shape)
    outputs = (token * heads.query + head).masked_fill(is_padding, tokens * heads.query)
    key_head = heads.query + torch.arange(heads.key)
    mask = None
    if bool((path < 0).any()):
        mask = torch.zeros(path.shape, dtype=dtype).masked_fill(path < 0, -torch.inf)[:, None, None]
    return Level(
        shape=shape,
        queries=(token * heads.all + head).flatten(),
        outputs=outputs.flatten(),
        keys=(own.clamp(min=0)[:, None] * heads.all + key_head[:, None, None]).flatten(),
        path=(path.clamp(min=0)[:, None] * heads.all + key_head[:, None]).flatten() if path.shape[1] else None,
        path_length=path.shape[1],
        path_mask=mask,
    )


def _tree_mask(groups: Sequence[PackedGroup], shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> Tensor:
    """Which tokens of its group's tree each query sees, (groups * kv, r * length, length), to be added."""
    length = shape[-1]
    # A place that no token takes sees itself, so that no softmax is empty.
    sees = torch.eye(length, dtype=torch.bool).repeat(len(groups), 1, 1)
    for index, group in enumerate(groups):
        ancestors = torch.from_numpy(group.ancestors())
        sees[index, : len(ancestors), : len(ancestors)] = ancestors
    mask = torch.zeros(sees.shape, dtype=dtype).masked_fill_(~sees, -torch.inf)
    return mask[:, None, None].expand(-1, shape[1], shape[3], -1, -1).reshape(-1, shape[3] * length, length)


def _places(parts: Sequence[tuple[Tensor, Tensor]], rows: int) -> Tensor:
    """Where in the concatenated parts each of the rows is. Each part: the rows it holds, and which are real."""
    held = torch.cat([index for index, _ in parts])
    real = torch.cat([is_real for _, is_real in parts])
    place = torch.empty(rows, dtype=torch.long)
    place[held[real]] = torch.arange(len(held))[real]
    return place


class Attended(NamedTuple):
    """What came out, (T * heads.query, d), and each level's joint log-sum-exps, (groups * kv, members * r * length)."""

    outputs: Tensor
    logsumexps: list[Tensor]


def attend(joint: Tensor, at: Layout, scale: float) -> Attended:
    """Attend within a packed row.

    Args:
        joint: (T * heads.all, d) queries, keys and values with their rotary positions.
        at: The row's layout.
        scale: What the products are multiplied by.
    """
    outputs, logsumexps = [], []
    for level in at.levels:
        query, key, value = _own(joint, at.heads, level)
        output, logsumexp = attend_own(query, key, value, level.own_mask, scale)
        if level.path is not None:
            query = query.view(level.shape[0], level.shape[1], -1, query.shape[-1])
            path_key, path_value = _path(joint, at.heads, level, level.path)
            output, logsumexp = attend_path(output, logsumexp, query, path_key, path_value, level.path_mask, scale)
        outputs.append(output.view(-1, joint.shape[-1]))
        logsumexps.append(logsumexp)
    together = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return Attended(together.index_select(0, at.gather_outputs), logsumexps)


def attend_backward(gradient: Tensor, joint: Tensor, attended: Attended, at: Layout, scale: float) -> Tensor:
    """Return the gradient of ``joint``, (T * heads.all, d).

    Args:
        gradient: (T * heads.query, d) of the outputs.
        joint: As it was given to ``attend``.
        attended: What ``attend`` returned for it.
        at: The row's layout.
        scale: As before.
    """
    width = joint.shape[-1]
    outputs = attended.outputs
    if at.has_padding:  # which reads the row of zeros past the end
        zeros = outputs.new_zeros((1, width))
        outputs, gradient = torch.cat([outputs, zeros]), torch.cat([gradient, zeros])
    queries: list[Tensor] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for level, logsumexp in zip(at.levels, attended.logsumexps, strict=True):
        groups, kv, members, _, length = level.shape
        query, key, value = _own(joint, at.heads, level)
        grad = gradient.index_select(0, level.outputs).view(query.shape)
        output = outputs.index_select(0, level.outputs).view(query.shape)
        grad_query, grad_key, grad_value = _own_backward(
            grad, (query, key, value), (output, logsumexp), level.own_mask, scale
        )
        grad_key = grad_key.view(groups, kv, members, length, width)
        grad_value = grad_value.view(groups, kv, members, length, width)
        if level.path is not None:
            path_key, path_value = _path(joint, at.heads, level, level.path)
            together = (groups, kv, -1, width)
            from_path = _flash_backward(
                grad.view(together),
                query.view(together),
                path_key,
                path_value,
                output.view(together),
                logsumexp.view(groups, kv, -1),
                0.0,
                False,
                attn_mask=level.path_mask,
                scale=scale,
            )
            grad_query = grad_query.add_(from_path[0].reshape(grad_query.shape))
            _to_path(keys, from_path[1])
            _to_path(values, from_path[2])
        queries.append(grad_query)
        keys.append(grad_key)
        values.append(grad_value)
    parts = [part.reshape(-1, width) for part in (*queries, *keys, *values)]
    return torch.cat(parts).index_select(0, at.gather_gradients)


def _to_path(levels: list[Tensor], gradient: Tensor) -> None:
    """Add a path's gradient (groups, kv, path, d) to what it consists of: the prefix, summed over groups; the prompts.

    ``levels`` holds the gradients of the levels above, (groups, kv, 1, length, d).
    """
    start = 0
    for level in levels:
        part = gradient[:, :, start : start + level.shape[3]]
        level += (part if level.shape[0] == part.shape[0] else part.sum(0, keepdim=True))[:, :, None]
        start += level.shape[3]


def _own(joint: Tensor, heads: Heads, level: Level) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (groups * kv * members, r * length, d) and keys, values (groups * kv * members, length, d)."""
    groups, kv, members, per_key, length = level.shape
    width = joint.shape[-1]
    query = joint.index_select(0, level.queries).view(groups * kv * members, per_key * length, width)
    key = joint.index_select(0, level.keys).view(groups * kv * members, length, width)
    value = joint[heads.key :].index_select(0, level.keys).view(groups * kv * members, length, width)
    return query, key, value


def _path(joint: Tensor, heads: Heads, level: Level, path: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values of the paths, (groups, kv, path, d)."""
    shape = (level.shape[0], level.shape[1], level.path_length, joint.shape[-1])
    key = joint.index_select(0, path).view(shape)
    return key, joint[heads.key :].index_select(0, path).view(shape)


def attend_path(
    output: Tensor, logsumexp: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend to a path as well, and join it with what came of the queries' own segments.

    Args:
        output: (B, n, d) of ``attend_own``; overwritten.
        logsumexp: (B, n) of ``attend_own``.
        query: The same queries, (groups, kv, ..., d).
        key: (groups, kv, path, d).
        value: As ``key``.
        mask: (groups, 1, 1, path) to be added, or None.
        scale: What the products are multiplied by.

    Returns:
        Outputs (B, n, d) and log-sum-exps (B, n) over both.
    """
    path_output, path_logsumexp = _flash(query, key, value, 0.0, False, attn_mask=mask, scale=scale)
    path_logsumexp = path_logsumexp.reshape(logsumexp.shape)
    total = torch.logaddexp(logsumexp, path_logsumexp)
    own_share = (logsumexp - total).exp_()[..., None]
    path_share = (path_logsumexp - total).exp_()[..., None]
    return output.mul_(own_share).addcmul_(path_output.reshape(output.shape), path_share), total


def attend_own(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Attend within segments of equal length; queries (B, r * L, d), keys (B, L, d).

    Causally, or under a mask (B, r * L, L) that is added to the products.

    Returns:
        Outputs (B, r * L, d) and log-sum-exps (B, r * L).
    """
    length = key.shape[1]
    if length > _SHORT and mask is None:
        spread = (query.shape[0], query.shape[1] // length, length, query.shape[2])
        output, logsumexp = _flash(
            query.view(spread), key[:, None].expand(spread), value[:, None].expand(spread), 0.0, True, scale=scale
        )
        return output.reshape(query.shape), logsumexp.reshape(query.shape[:2])
    weights, logsumexp = _own_weights(query, key, mask, scale)
    return torch.bmm(weights, value), logsumexp


def _own_backward(
    gradient: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    came: tuple[Tensor, Tensor],
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``attend_own``'s queries, keys and values, which are given as ``inputs``.

    ``came`` holds the outputs (B, r * L, d) and the log-sum-exps over all parts of the attention.
    """
    query, key, value = inputs
    output, logsumexp = came
    length = key.shape[1]
    if length > _SHORT and mask is None:
        spread = (query.shape[0], query.shape[1] // length, length, query.shape[2])
        grad_query, grad_key, grad_value = _flash_backward(
            gradient.view(spread),
            query.view(spread),
            key[:, None].expand(spread),
            value[:, None].expand(spread),
            output.view(spread),
            logsumexp.view(spread[:3]),
            0.0,
            True,
            scale=scale,
        )
        return grad_query.reshape(query.shape), grad_key.sum(1), grad_value.sum(1)
    weights, own_logsumexp = _own_weights(query, key, mask, scale)
    weights = weights.mul_((own_logsumexp - logsumexp.view(own_logsumexp.shape)).exp_()[..., None])
    grad_value = torch.bmm(weights.transpose(1, 2), gradient)
    # The derivative of a softmax: w * (g - sum(w * g)), where the sum is that of output and its gradient.
    inner = torch.linalg.vecdot(gradient, output)[..., None]
    grad_scores = torch.bmm(gradient, value.transpose(1, 2)).sub_(inner).mul_(weights).mul_(scale)
    return torch.bmm(grad_scores, key), torch.bmm(grad_scores.transpose(1, 2), query), grad_value


def _own_weights(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Return the softmax (B, r * L, L) of scaled products, and their log-sum-exps (B, r * L).

    By torch's softmax and not step by step: its exp_ is many times slower on minus infinity.
    """
    if mask is None:
        length = key.shape[1]
        mask = torch.full((length, length), -torch.inf, dtype=query.dtype).triu_(1).repeat(query.shape[1] // length, 1)
    scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=scale)
    weights = scores.softmax(dim=-1)
    # The largest product's weight is 1 over the sum of exponentials above it.
    return weights, scores.amax(dim=-1) - weights.amax(dim=-1).log_()
