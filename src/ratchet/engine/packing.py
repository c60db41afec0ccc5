"""Packing: several prompts with their answers in one row, each answer attending to its prompt and to itself alone.

A group's prompt is computed once for all of its answers: P + G * R tokens instead of G * (P + R), without padding.
An answer's positions restart after its prompt, so every token sees exactly what it would see alone. Plain rows, one
prompt with one answer under the model's own causal mask, are the same thing with a budget of one answer a row; they
serve architectures for which a mask of our own is not the whole story.

Dimensions: T tokens of a row, N answer tokens of a row, A answers of a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Segment number of prompt tokens; answers count from 1.
_PROMPT = 0


@dataclass(frozen=True)
class PackedAnswer:
    """One answer to train on. ``number`` identifies it within the step."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    number: int


@dataclass(frozen=True)
class PackedRow:
    """One row for the model, and where the answer tokens in it are.

    Attributes:
        input_ids: (T,) tokens.
        position_ids: (T,) positions, restarting after the prompt for each answer.
        groups: (T,) which prompt a token belongs to.
        segments: (T,) 0 in prompts, 1, 2, ... in the answers of a group.
        sources: (N,) index in the row of the token whose logits predict an answer token.
        targets: (N,) the answer tokens.
        answer_index: (N,) 0 .. A-1, which answer of this row.
        numbers: The A answers' numbers, in that order.
    """

    input_ids: Tensor
    position_ids: Tensor
    groups: Tensor
    segments: Tensor
    sources: Tensor
    targets: Tensor
    answer_index: Tensor
    numbers: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the model's own causal mask is right: one prompt, one answer."""
        return len(self.numbers) == 1

    def attention_mask(self, dtype: torch.dtype) -> Tensor:
        """Return the additive mask, (1, 1, T, T): 0 where attention is allowed, the lowest number elsewhere."""
        length = self.input_ids.shape[0]
        order = torch.arange(length, device=self.input_ids.device)
        earlier = order[:, None] >= order[None, :]
        same_group = self.groups[:, None] == self.groups[None, :]
        visible = (self.segments[None, :] == _PROMPT) | (self.segments[:, None] == self.segments[None, :])
        allowed = earlier & same_group & visible
        lowest = torch.finfo(dtype).min
        return torch.zeros((length, length), dtype=dtype, device=allowed.device).masked_fill(~allowed, lowest)[
            None, None
        ]


def pack(answers: Sequence[PackedAnswer], budget_tokens: int, *, device: torch.device, plain: bool) -> list[PackedRow]:
    """Fill rows up to the budget, in order; an answer is never split, so one that exceeds it has a row of its own.

    Neighbouring answers with the same prompt share it. Plain rows hold one answer each.
    """
    rows: list[list[PackedAnswer]] = []
    used = 0
    for answer in answers:
        shares = bool(rows) and rows[-1][-1].prompt_token_ids == answer.prompt_token_ids
        added = len(answer.token_ids) + (0 if shares else len(answer.prompt_token_ids))
        if not rows or plain or used + added > budget_tokens:
            rows.append([])
            used = 0
            added = len(answer.token_ids) + len(answer.prompt_token_ids)
        rows[-1].append(answer)
        used += added
    return [_row(row, device) for row in rows]


def _row(answers: Sequence[PackedAnswer], device: torch.device) -> PackedRow:
    columns: dict[str, list[int]] = {name: [] for name in ("ids", "positions", "groups", "segments")}
    sources: list[int] = []
    targets: list[int] = []
    answer_index: list[int] = []

    def add(ids: Sequence[int], start: int, group: int, segment: int) -> None:
        columns["ids"] += ids
        columns["positions"] += range(start, start + len(ids))
        columns["groups"] += [group] * len(ids)
        columns["segments"] += [segment] * len(ids)

    for group, (prompt, members) in enumerate(_by_prompt(answers)):
        add(prompt, 0, group, _PROMPT)
        prompt_end = len(columns["ids"]) - 1
        for segment, (index, answer) in enumerate(members, start=1):
            first = len(columns["ids"])
            # The last token of an answer predicts nothing that is trained on, so it is left out of the row.
            add(answer.token_ids[:-1], len(prompt), group, segment)
            sources += [prompt_end, *range(first, first + len(answer.token_ids) - 1)]
            targets += answer.token_ids
            answer_index += [index] * len(answer.token_ids)
    return PackedRow(
        input_ids=torch.tensor(columns["ids"], device=device),
        position_ids=torch.tensor(columns["positions"], device=device),
        groups=torch.tensor(columns["groups"], device=device),
        segments=torch.tensor(columns["segments"], device=device),
        sources=torch.tensor(sources, device=device),
        targets=torch.tensor(targets, device=device),
        answer_index=torch.tensor(answer_index, device=device),
        numbers=tuple(answer.number for answer in answers),
    )


def _by_prompt(
    answers: Sequence[PackedAnswer],
) -> Iterator[tuple[tuple[int, ...], list[tuple[int, PackedAnswer]]]]:
    """Yield runs of neighbouring answers with the same prompt, each answer with its place in the row."""
    run: list[tuple[int, PackedAnswer]] = []
    for index, answer in enumerate(answers):
        if run and run[-1][1].prompt_token_ids != answer.prompt_token_ids:
            yield run[0][1].prompt_token_ids, run
            run = []
        run.append((index, answer))
    if run:
        yield run[0][1].prompt_token_ids, run
