"""How many multiply-adds a row needs at least, counted from the model's shape, and how long the machine takes for them.

The least a method of this kind can do: every prompt is computed once, however many answers it has (while sampling, what
all prompts begin with is computed once for all of them), nothing is padded, frozen weights get no gradient. An element
of attention is counted like any other multiply-add. Norms, activations, softmax, sampling and the optimizer are left
out, so a bound of this file is below what any program can reach. Knows no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rows import GrowthRow, PairRow, Point, RoundRow, SamplerRow, UpdateRow
from workload import LORA_RANK

# Widths of a pass at which rates are measured; work in larger ones is judged by the best of them.
PASS_TOKENS = (1, 8, 32, 128, 512)


@dataclass(frozen=True)
class Shape:
    """A decoder of the Llama kind with tied or untied output layer."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_width: int
    vocabulary: int

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the linear parts of one layer."""
        queries, keys = self.heads * self.head_width, self.key_value_heads * self.head_width
        h, inner = self.hidden, self.intermediate
        return ((h, queries), (h, keys), (h, keys), (queries, h), (h, inner), (h, inner), (inner, h))

    @property
    def trunk(self) -> int:
        """Multiply-adds of a token in all layers, attention left out."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linears)

    @property
    def adapter(self) -> int:
        """The same of the LoRA factors."""
        return self.layers * sum(LORA_RANK * (inputs + outputs) for inputs, outputs in self.linears)

    @property
    def output(self) -> int:
        """Multiply-adds of the logits of one token."""
        return self.hidden * self.vocabulary

    def attention(self, seen: float) -> float:
        """Multiply-adds of so many pairs of a token and one that it sees."""
        return 2 * self.layers * self.heads * self.head_width * seen


SHAPES = {
    "tiny": Shape(4, 128, 384, 4, 2, 32, 674),
    "random-3m": Shape(4, 256, 688, 8, 4, 32, 674),
    "smollm2-135m": Shape(30, 576, 1536, 9, 3, 64, 49_152),
}


@dataclass(frozen=True)
class Work:
    """Multiply-adds: of layers and of the output layer in passes of any width, and of the steps of decoding.

    ``live`` holds, for each step, how many answers are still being written: a step is a pass of so many tokens. All
    answers side by side is the fewest passes that there can be.
    """

    shape: Shape
    trunk: float = 0.0
    output: float = 0.0
    live: tuple[int, ...] = ()

    @property
    def total(self) -> float:
        # The first token of an answer comes from its prompt's pass.
        return self.trunk + self.output + sum(self.live[1:]) * self.shape.trunk + sum(self.live) * self.shape.output

    def seconds(self, passes: dict[str, Any]) -> float:
        """How long the machine takes at the rates that it was measured to reach at these shapes."""
        trunk = _PassSeconds(passes, "trunk_rate", self.shape.trunk)
        output = _PassSeconds(passes, "output_rate", self.shape.output)
        steps = sum(trunk.of(tokens) for tokens in self.live[1:]) + sum(output.of(tokens) for tokens in self.live)
        return self.trunk / trunk.best_rate + self.output / output.best_rate + steps


class _PassSeconds:
    """Seconds of a pass by its tokens: as measured, on straight lines between, at the best rate beyond."""

    def __init__(self, passes: dict[str, Any], rate: str, multiply_adds: int) -> None:
        rates = {tokens: float(passes[str(tokens)][rate]) for tokens in PASS_TOKENS}
        self.best_rate = max(rates.values())
        self._multiply_adds = multiply_adds
        self._points = [(tokens, tokens * multiply_adds / rates[tokens]) for tokens in PASS_TOKENS]

    def of(self, tokens: int) -> float:
        for (low, before), (high, after) in pairwise(self._points):
            if low <= tokens <= high:
                return before + (after - before) * (tokens - low) / (high - low)
        return tokens * self._multiply_adds / self.best_rate


def sampling(shape: Shape, prompt_tokens: Sequence[int], common: int, lengths: Sequence[int]) -> Work:
    """Return the work of answers of such lengths, equally many to each prompt. All of them are written side by side."""
    answers = len(lengths) // len(prompt_tokens)
    computed = common + sum(length - common for length in prompt_tokens)
    seen_in_prompts = common**2 / 2 + sum((length**2 - common**2) / 2 for length in prompt_tokens)
    owners = [length for length in prompt_tokens for _ in range(answers)]
    seen = sum(prompt * length + length**2 / 2 for prompt, length in zip(owners, lengths, strict=True))
    return Work(
        shape,
        trunk=computed * shape.trunk + shape.attention(seen_in_prompts + seen),
        live=tuple(sum(length > step for length in lengths) for step in range(max(lengths))),
    )


def update(shape: Shape, prompt_tokens: Sequence[int], answers: int, answer_tokens: int) -> Work:
    """Return the work of one step: forward, and backward to every activation but to no frozen weight."""
    fed = sum(length + answers * (answer_tokens - 1) for length in prompt_tokens)
    seen = sum(length**2 / 2 + answers * (length * answer_tokens + answer_tokens**2 / 2) for length in prompt_tokens)
    return Work(
        shape,
        trunk=fed * (2 * shape.trunk + 3 * shape.adapter) + 3 * shape.attention(seen),
        output=2 * len(prompt_tokens) * answers * answer_tokens * shape.output,
    )


def of_pair_row(row: PairRow, details: dict[str, Any]) -> dict[str, Work]:
    """Return a row's work by phase; ``details`` is what Ratchet said of its prompts."""
    shape = SHAPES[row.model]
    if isinstance(row, RoundRow):
        prompts = details["prompt_tokens"]
        lengths = [row.answer_tokens] * row.prompts * row.answers
        return {
            "sampling": sampling(shape, prompts, details.get("common_tokens", 0), lengths),
            "update": update(shape, prompts, row.answers, row.answer_tokens),
        }
    if isinstance(row, UpdateRow):
        return {"update": update(shape, [row.prompt_tokens] * row.prompts, row.answers, row.answer_tokens)}
    if isinstance(row, SamplerRow):
        return {"sampling": sampling(shape, details["prompt_tokens"], 0, row.lengths)}
    raise TypeError(f"no work is counted for {row.name}")


def of_point(row: GrowthRow, point: Point) -> dict[str, Work]:
    """Return the work of one size of the growth row."""
    prompts = [point.prompt_tokens] * point.prompts
    lengths = [point.answer_tokens] * point.prompts * point.answers
    shape = SHAPES[row.model]
    return {
        "sampling": sampling(shape, prompts, 0, lengths),
        "update": update(shape, prompts, point.answers, point.answer_tokens),
    }
