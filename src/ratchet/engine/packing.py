"""Packing: a common prefix, several prompts that continue it, and their answers, in one row without padding.

A prompt is computed once for all of its answers, and what all prompts of a row begin with (system prompt, few-shot
examples) once for all of them: C + p + A * R tokens instead of A * (C + p + R) for one prompt with A answers. Where
answers to a prompt begin alike, as a policy that is fairly sure of itself writes them, what they share is computed once
as well: they form a tree. Each token attends to its prefix, its prompt and its own answer alone, and positions restart
after the prompt, so every token sees exactly what it would see alone. Plain rows, one prompt with one answer under the
model's own causal mask, are the same thing with a budget of one answer a row; they serve architectures for which a mask
of our own is not the whole story.

Dimensions: T tokens of a row, A answers of a row, N their tokens, U of these that differ in themselves or in what comes
before them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# A shorter common beginning is not worth a segment of its own.
_SHORTEST_PREFIX = 8
# Answers to a prompt form a tree if that leaves out this share of their tokens and the tree is not larger than this:
# its attention is a mask over all of its tokens, while answers side by side look at themselves alone.
_TREE_SAVES = 0.1
_LARGEST_TREE = 512
# Our own decoder attends to a row's answers side by side, padded to the longest, and so to its prompts: to so many
# places a token at most. A long one among many short ones would otherwise take many times the row's memory and time.
_MOST_PLACES = 6


@dataclass(frozen=True)
class PackedAnswer:
    """One answer to train on. ``number`` identifies it within the step."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    number: int


@dataclass(frozen=True)
class PackedGroup:
    """Where a prompt, less the row's prefix, and its answers are in a row: (start, length) each, one after the other.

    Only answers that differ; the last token of an answer predicts nothing that is trained on, so it is not in the row.
    Of a row with trees, ``answers`` is one segment, and ``parents`` says for each of its tokens which of them comes
    before it, -1 where the prompt does; a parent stands before its children.
    """

    prompt: tuple[int, int]
    answers: tuple[tuple[int, int], ...]
    parents: tuple[int, ...] | None = None

    def ancestors(self) -> NDArray[np.bool_]:
        """Which tokens of the tree each one sees, itself included, (tokens, tokens)."""
        seen = np.eye(len(self.parents or ()), dtype=np.bool_)
        for token, parent in enumerate(self.parents or ()):
            if parent >= 0:
                seen[token] |= seen[parent]
        return seen


@dataclass(frozen=True)
class PackedRow:
    """One row for the model, and where the answer tokens in it are."""

    input_ids: Tensor  # (T,) tokens
    position_ids: Tensor  # (T,) positions, restarting after the prompt for each answer
    prefix_length: int  # how many tokens at the row's start belong to all of its prompts
    groups: tuple[PackedGroup, ...]  # the prompts with their answers
    sources: Tensor  # (U,) index in the row of the token whose logits predict an answer token
    targets: Tensor  # (U,) the answer tokens
    places: Tensor  # (N,) where in these each token of each answer is
    answer_index: Tensor  # (N,) 0 .. A-1, which answer of this row a token belongs to.
    numbers: tuple[int, ...]  # the A answers' numbers, in that order

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
                allowed[answer, answer] = True if group.parents is None else torch.from_numpy(group.ancestors())
        allowed = allowed.tril_().to(self.input_ids.device)
        lowest = torch.finfo(dtype).min
        mask = torch.zeros((length, length), dtype=dtype, device=allowed.device)
        return mask.masked_fill(~allowed, lowest)[None, None]


def pack(
    answers: Sequence[PackedAnswer], budget_tokens: int, *, device: torch.device, plain: bool, padded: bool = False
) -> list[PackedRow]:
    """Return all rows of ``packed_rows`` at once."""
    return list(packed_rows(answers, budget_tokens, device=device, plain=plain, padded=padded))


def packed_rows(
    answers: Iterable[PackedAnswer], budget_tokens: int, *, device: torch.device, plain: bool, padded: bool = False
) -> Iterator[PackedRow]:
    """Fill rows up to the budget, in order; an answer is never split, so one that exceeds it has a row of its own.

    Neighbouring answers with the same prompt share it, and a row of several prompts has their common beginning once.
    Plain rows hold one answer each. Rows that will be ``padded`` also end before answers of too uneven lengths. Each
    is made when it is asked for, so that a round's size does not show in memory.
    """
    plan: _RowPlan | None = None
    most_places = _MOST_PLACES if padded else None
    for answer in answers:
        if plan is None or plain or not plan.add(answer, budget_tokens, most_places):
            if plan is not None:
                yield plan.build(device)
            plan = _RowPlan(answer)
    if plan is not None:
        yield plan.build(device)


def common_prefix(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all prompts begin with, each keeping one of its own; 0 if too few to be worth sharing."""
    shared = shared_length(prompts)
    return shared if shared >= _SHORTEST_PREFIX else 0


def shared_length(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all prompts begin with, each keeping one of its own; 0 if no two prompts differ."""
    if len(set(prompts)) < 2:
        return 0
    # Of sorted sequences, what the first and the last share is shared by all.
    return _shared(min(prompts), max(prompts), min(map(len, prompts)) - 1)


def _shared(one: tuple[int, ...], other: tuple[int, ...], most: int) -> int:
    for position in range(most):
        if one[position] != other[position]:
            return position
    return most


class _Tree:
    """The answers to one prompt as a tree of their tokens, in which a parent stands before its children."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.tokens: list[int] = []
        self.depths: list[int] = []
        self.paths: dict[tuple[int, ...], list[int]] = {}  # of each answer, its nodes
        self._nodes: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.parents)

    def add(self, token_ids: tuple[int, ...]) -> None:
        if token_ids in self.paths:
            return
        path: list[int] = []
        parent = -1
        for depth, token in enumerate(token_ids):
            node = self._nodes.setdefault((parent, token), len(self.parents))
            if node == len(self.parents):
                self.parents.append(parent)
                self.tokens.append(token)
                self.depths.append(depth)
            path.append(node)
            parent = node
        self.paths[token_ids] = path

    def missing(self, token_ids: tuple[int, ...]) -> int:
        """How many nodes an answer would add."""
        parent = -1
        for depth, token in enumerate(token_ids):
            node = self._nodes.get((parent, token))
            if node is None:
                return len(token_ids) - depth
            parent = node
        return 0


class _RowPlan:
    """A row under construction. ``prefix`` is what its prompts share, the whole prompt as long as there is one."""

    def __init__(self, answer: PackedAnswer) -> None:
        self.answers = [answer]
        self.prompts = [answer.prompt_token_ids]
        self.trees = [_Tree()]
        self.trees[0].add(answer.token_ids)
        self.counts = _Counts(*[len(answer.token_ids)] * 3)
        self.longest, self.members = len(answer.token_ids), 1  # of all answers; of the prompt with the most of them
        # The second is of all prompts, each in full.
        self.prefix = self.prompt_tokens = self.longest_prompt = len(answer.prompt_token_ids)

    def add(self, answer: PackedAnswer, budget_tokens: int, most_places: int | None) -> bool:
        """Take in an answer if the row then fits the budget, and is not padded to too many places; tell whether so."""
        prompts, trees, prefix, prompt_tokens = self.prompts, self.trees, self.prefix, self.prompt_tokens
        if answer.prompt_token_ids != prompts[-1]:
            prompt = answer.prompt_token_ids
            prefix = _shared(prompt, prompts[-1], min(prefix, len(prompt) - 1, len(prompts[-1]) - 1))
            prompts, trees = [*prompts, prompt], [*trees, _Tree()]
            prompt_tokens += len(prompt)
        counts = self.counts.with_answer(trees[-1], answer.token_ids)
        saved = (len(prompts) - 1) * prefix if prefix >= _SHORTEST_PREFIX else 0
        if prompt_tokens - saved + counts.tokens > budget_tokens:
            return False
        longest = max(self.longest, len(answer.token_ids))
        members = max(self.members, len(trees[-1].paths) + (answer.token_ids not in trees[-1].paths))
        longest_prompt = max(self.longest_prompt, len(answer.prompt_token_ids))
        own = counts.largest if counts.uses_trees else members * longest
        places = len(prompts) * (own + longest_prompt - (prefix if saved else 0))
        if most_places is not None and places > most_places * (prompt_tokens - saved + counts.tokens):
            return False
        trees[-1].add(answer.token_ids)
        self.longest, self.members, self.longest_prompt = longest, members, longest_prompt
        self.answers.append(answer)
        self.prompts, self.trees, self.prefix, self.prompt_tokens = prompts, trees, prefix, prompt_tokens
        self.counts = counts
        return True

    def build(self, device: torch.device) -> PackedRow:
        columns = _Columns()
        prefix = common_prefix(self.prompts)
        columns.add(self.prompts[0][:prefix], range(prefix))
        groups, places = [], []
        runs = [list(run) for _, run in groupby(self.answers, key=lambda answer: answer.prompt_token_ids)]
        for run, tree in zip(runs, self.trees, strict=True):
            prompt = run[0].prompt_token_ids
            start = columns.add(prompt[prefix:], range(prefix, len(prompt)))
            segment = (start, len(prompt) - prefix)
            fill = columns.add_tree if self.counts.uses_trees else columns.add_chains
            group, paths = fill(tree, len(prompt), segment)
            groups.append(group)
            places += [paths[answer.token_ids] for answer in run]
        lengths = [len(answer.token_ids) for answer in self.answers]
        flat = [columns.ids, columns.positions, columns.sources, columns.targets, np.concatenate(places)]
        flat.append(np.repeat(np.arange(len(lengths)), lengths))
        tensors = [torch.from_numpy(np.asarray(column, dtype=np.int64)).to(device) for column in flat]
        input_ids, position_ids, sources, targets, place_ids, answer_index = tensors
        return PackedRow(
            input_ids=input_ids,
            position_ids=position_ids,
            prefix_length=prefix,
            groups=tuple(groups),
            sources=sources,
            targets=targets,
            places=place_ids,
            answer_index=answer_index,
            numbers=tuple(answer.number for answer in self.answers),
        )


class _Counts(NamedTuple):
    """Tokens of a row's answers: as trees, side by side without repeats, and of its largest tree."""

    branched: int
    chained: int
    largest: int

    @property
    def uses_trees(self) -> bool:
        return self.largest <= _LARGEST_TREE and self.branched <= (1 - _TREE_SAVES) * self.chained

    @property
    def tokens(self) -> int:
        return self.branched if self.uses_trees else self.chained

    def with_answer(self, tree: _Tree, token_ids: tuple[int, ...]) -> "_Counts":
        """What the counts are with one more answer to the tree's prompt."""
        missing = tree.missing(token_ids)
        chained = 0 if token_ids in tree.paths else len(token_ids)
        return _Counts(self.branched + missing, self.chained + chained, max(self.largest, len(tree) + missing))


@dataclass
class _Columns:
    """The tokens of a row, their positions, and what is predicted from where, as they are put together."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)

    def add(self, ids: Sequence[int], positions: Sequence[int]) -> int:
        """Append tokens; return where the first of them is."""
        start = len(self.ids)
        self.ids += ids
        self.positions += positions
        return start

    def add_chains(
        self, tree: _Tree, prompt_length: int, prompt: tuple[int, int]
    ) -> tuple[PackedGroup, dict[tuple[int, ...], NDArray[np.int64]]]:
        """Append a prompt's answers one after the other; return where each one's tokens are predicted as well."""
        segments, paths = [], {}
        for answer in tree.paths:
            length = len(answer) - 1
            start = self.add(answer[:-1], range(prompt_length, prompt_length + length))
            segments.append((start, length))
            paths[answer] = np.arange(len(self.targets), len(self.targets) + length + 1)
            self.sources += [sum(prompt) - 1, *range(start, start + length)]
            self.targets += answer
        return PackedGroup(prompt, tuple(segments)), paths

    def add_tree(
        self, tree: _Tree, prompt_length: int, prompt: tuple[int, int]
    ) -> tuple[PackedGroup, dict[tuple[int, ...], NDArray[np.int64]]]:
        """Append a prompt's answers as a tree; return where each one's tokens are predicted as well."""
        inner = sorted(set(tree.parents) - {-1})  # nodes that something follows
        number = {node: place for place, node in enumerate(inner)} | {-1: -1}
        start = self.add([tree.tokens[node] for node in inner], [prompt_length + tree.depths[node] for node in inner])
        paths = {answer: len(self.targets) + np.array(path) for answer, path in tree.paths.items()}
        self.sources += [sum(prompt) - 1 if parent < 0 else start + number[parent] for parent in tree.parents]
        self.targets += tree.tokens
        parents = tuple(number[tree.parents[node]] for node in inner)
        return PackedGroup(prompt, ((start, len(inner)),), parents), paths
