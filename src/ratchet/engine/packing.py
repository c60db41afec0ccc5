"""Packing: a common prefix, several prompts that continue it, and their answers, in one row without padding.

A prompt is computed once for all of its answers, and what all prompts of a row begin with (system prompt, worked
examples) once for all of them: C + p + A * R tokens instead of A * (C + p + R) for one prompt with A answers. Answers to
a prompt that are the same token for token, as a policy that is sure of itself writes them, are computed once. Each
token attends to its prefix, its prompt and its own answer alone, and positions restart after the prompt, so every
token sees exactly what it would see alone. Plain rows, one prompt with one answer under the model's own causal mask,
are the same thing with a budget of one answer a row; they serve architectures for which a mask of our own is not the
whole story.

Dimensions: T tokens of a row, A answers of a row, N their tokens, U tokens of the answers that differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

# A shorter common beginning is not worth a segment of its own.
_SHORTEST_PREFIX = 8


@dataclass(frozen=True)
class PackedAnswer:
    """One answer to train on. ``number`` identifies it within the step."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    number: int


@dataclass(frozen=True)
class PackedGroup:
    """Where a prompt, less the row's prefix, and its answers are in a row: (start, length) each, one after the other.

    Only answers that differ. The last token of an answer predicts nothing that is trained on, so it is not in the row.
    """

    prompt: tuple[int, int]
    answers: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PackedRow:
    """One row for the model, and where the answer tokens in it are.

    Attributes:
        input_ids: (T,) tokens.
        position_ids: (T,) positions, restarting after the prompt for each answer.
        prefix_length: How many tokens at the row's start belong to all of its prompts.
        groups: The prompts with their answers.
        sources: (U,) index in the row of the token whose logits predict an answer token.
        targets: (U,) the answer tokens.
        places: (N,) where in these each token of each answer is.
        answer_index: (N,) 0 .. A-1, which answer of this row a token belongs to.
        numbers: The A answers' numbers, in that order.
    """

    input_ids: Tensor
    position_ids: Tensor
    prefix_length: int
    groups: tuple[PackedGroup, ...]
    sources: Tensor
    targets: Tensor
    places: Tensor
    answer_index: Tensor
    numbers: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the model's own causal mask is right: one prompt, one answer."""
        return len(self.numbers) == 1

    def attention_mask(self, dtype: torch.dtype) -> Tensor:
        """Return the additive mask, (1, 1, T, T): 0 where attention is allowed, the lowest number elsewhere."""
        length = len(self.input_ids)
        allowed = torch.zeros((length, length), dtype=torch.bool)
        allowed[:, : self.prefix_length] = True
        for group in self.groups:
            start, prompt_length = group.prompt
            end = start + prompt_length + sum(answer_length for _, answer_length in group.answers)
            allowed[start:end, start : start + prompt_length] = True
            for answer_start, answer_length in group.answers:
                answer = slice(answer_start, answer_start + answer_length)
                allowed[answer, answer] = True
        allowed = allowed.tril_().to(self.input_ids.device)
        lowest = torch.finfo(dtype).min
        mask = torch.zeros((length, length), dtype=dtype, device=allowed.device)
        return mask.masked_fill(~allowed, lowest)[None, None]


def pack(answers: Sequence[PackedAnswer], budget_tokens: int, *, device: torch.device, plain: bool) -> list[PackedRow]:
    """Fill rows up to the budget, in order; an answer is never split, so one that exceeds it has a row of its own.

    Neighbouring answers with the same prompt share it, and a row of several prompts has their common beginning once.
    Plain rows hold one answer each.
    """
    rows: list[_RowPlan] = []
    for answer in answers:
        if plain or not rows or not rows[-1].add(answer, budget_tokens):
            rows.append(_RowPlan([answer], len(answer.prompt_token_ids), len(answer.token_ids)))
    return [row.build(device) for row in rows]


def common_prefix(prompts: Sequence[tuple[int, ...]]) -> int:
    """Return how many tokens all prompts begin with, each keeping one of its own; 0 if too few to be worth sharing."""
    if len(set(prompts)) < 2:
        return 0
    # Of sorted sequences, what the first and the last share is shared by all.
    shared = _shared(min(prompts), max(prompts), min(map(len, prompts)) - 1)
    return shared if shared >= _SHORTEST_PREFIX else 0


def _shared(one: tuple[int, ...], other: tuple[int, ...], most: int) -> int:
    for position in range(most):
        if one[position] != other[position]:
            return position
    return most


@dataclass
class _RowPlan:
    """A row under construction. ``prefix`` is what its prompts share, the whole prompt as long as there is one."""

    answers: list[PackedAnswer]
    prefix: int
    answer_tokens: int
    prompt_tokens: int = field(init=False)  # of the distinct prompts, each in full
    prompts: int = 1
    seen: set[tuple[int, ...]] = field(init=False)  # answers to the last prompt
    shortest: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_tokens = self.shortest = len(self.answers[0].prompt_token_ids)
        self.seen = {self.answers[0].token_ids}

    def add(self, answer: PackedAnswer, budget_tokens: int) -> bool:
        """Take in an answer if the row then fits the budget; tell whether it did."""
        prompt, last = answer.prompt_token_ids, self.answers[-1].prompt_token_ids
        prefix, prompt_tokens, prompts, shortest = self.prefix, self.prompt_tokens, self.prompts, self.shortest
        if prompt != last:
            shortest = min(shortest, len(prompt))
            prefix = _shared(prompt, last, min(prefix, shortest - 1))
            prompt_tokens += len(prompt)
            prompts += 1
        saved = (prompts - 1) * prefix if prefix >= _SHORTEST_PREFIX else 0
        is_new = prompt != last or answer.token_ids not in self.seen
        answer_tokens = self.answer_tokens + (len(answer.token_ids) if is_new else 0)
        if prompt_tokens - saved + answer_tokens > budget_tokens:
            return False
        self.answers.append(answer)
        self.prefix, self.prompt_tokens, self.prompts, self.shortest = prefix, prompt_tokens, prompts, shortest
        self.answer_tokens = answer_tokens
        self.seen = {answer.token_ids} if prompt != last else self.seen | {answer.token_ids}
        return True

    def build(self, device: torch.device) -> PackedRow:
        runs = [list(run) for _, run in groupby(self.answers, key=lambda answer: answer.prompt_token_ids)]
        prefix = common_prefix([run[0].prompt_token_ids for run in runs])
        ids: list[Sequence[int]] = [runs[0][0].prompt_token_ids[:prefix]]
        positions = [np.arange(prefix)]
        groups: list[PackedGroup] = []
        sources, targets, places = [], [], []
        end, predicted = prefix, 0
        for run in runs:
            prompt = run[0].prompt_token_ids
            segment = (end, len(prompt) - prefix)
            ids.append(prompt[prefix:])
            positions.append(np.arange(prefix, len(prompt)))
            end = prompt_end = end + segment[1]
            segments: dict[tuple[int, ...], tuple[tuple[int, int], int]] = {}  # with where its tokens are predicted
            for answer in run:
                length = len(answer.token_ids) - 1
                if answer.token_ids not in segments:
                    segments[answer.token_ids] = ((end, length), predicted)
                    ids.append(answer.token_ids[:-1])
                    positions.append(np.arange(len(prompt), len(prompt) + length))
                    sources.append(np.concatenate([[prompt_end - 1], np.arange(end, end + length)]))
                    targets.append(answer.token_ids)
                    end += length
                    predicted += length + 1
                first = segments[answer.token_ids][1]
                places.append(np.arange(first, first + length + 1))
            groups.append(PackedGroup(segment, tuple(place for place, _ in segments.values())))
        lengths = [len(answer.token_ids) for answer in self.answers]
        columns = [np.concatenate(parts) for parts in (ids, positions, sources, targets, places)]
        columns.append(np.repeat(np.arange(len(lengths)), lengths))
        tensors = [torch.from_numpy(column.astype(np.int64)).to(device) for column in columns]
        input_ids, position_ids, source_ids, target_ids, place_ids, answer_index = tensors
        return PackedRow(
            input_ids=input_ids,
            position_ids=position_ids,
            prefix_length=prefix,
            groups=tuple(groups),
            sources=source_ids,
            targets=target_ids,
            places=place_ids,
            answer_index=answer_index,
            numbers=tuple(answer.number for answer in self.answers),
        )
